"""Record and replay of asynchronous runs: `docs/concepts/trace-and-replay.md`."""
