"""How long does a checkpoint keep others waiting, and is everything there after kill -9?

    python -m benchmarks.replay_checkpoint --gigabytes 1

Fills a server, then writes and samples without a pause while it makes checkpoints; the longest insert and the longest
sample are what somebody had to wait, with and without a checkpoint under way. Then the server is killed, started again
and compared with what it held at the last checkpoint.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

from pappus.replay import Trajectory, col, connect

ENVS = 16
TABLES = {
    "tables": [
        {
            "name": "replay", "sampler": {"prioritized": 0.6}, "remover": "fifo", "rate_limiter": {"min_size": 1000},
            "max_size": 0,
            "signature": {
                "obs": {"shape": [84, 84], "dtype": "uint8"}, "number": {"shape": [], "dtype": "int64"},
            },
        }
    ],
}


class Timed(threading.Thread):
    """Does something over and over, and remembers when each time began and how long it took."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._action, self.stopped = action, threading.Event()
        self.times: list[tuple[float, float]] = []

    def run(self) -> None:
        while not self.stopped.is_set():
            began = time.perf_counter()
            self._action()
            self.times.append((began, time.perf_counter() - began))

    def longest(self, spans: list[tuple[float, float]], inside: bool) -> tuple[float, int]:
        """The longest one, in ms, that overlapped one of the spans (or none of them), and how many did."""
        chosen = [
            took for began, took in self.times
            if any(began < end and began + took > start for start, end in spans) == inside
        ]
        return max(chosen, default=0.0) * 1e3, len(chosen)


def serve(folder: str, config: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "pappus", "replay", "serve", "--config", config, "--checkpoints", folder]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(line.strip())
        if "listening" in line:
            print("\n".join(lines))
            threading.Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
            return server, line.split()[4].rstrip(";")
    raise SystemExit("the server did not start: " + " ".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--checkpoints", type=int, default=3)
    parser.add_argument("--way", choices=["shared", "grpc"], default="shared")
    arguments = parser.parse_args()
    items = int(arguments.gigabytes * 1e9 / 7064)
    TABLES["tables"][0]["max_size"] = items
    with tempfile.TemporaryDirectory() as folder:
        config = f"{folder}/tables.yaml"
        Path(config).write_text(yaml.safe_dump(TABLES))
        server, address = serve(f"{folder}/saved", config)
        try:
            before = under_load(address if arguments.way == "shared" else f"tcp:{address}", items, arguments, folder)
            server.kill()
            server.wait()
            server, address = serve(f"{folder}/saved", config)
            compare(address, before)
        finally:
            server.kill()
            server.wait()


def under_load(address: str, items: int, arguments: argparse.Namespace, folder: str) -> dict[int, int]:
    """Write and sample while checkpoints are made; the items (key → number) of the last one, made in a quiet moment."""
    client, controller = connect(address), connect(address)
    frames = np.random.default_rng(0).integers(0, 256, (8, ENVS, 84, 84), np.uint8)
    writer = client.writer(envs=ENVS, history=4, max_pending=ENVS)

    def insert() -> None:
        step = writer.steps
        numbers = np.arange(ENVS) + step * ENVS
        writer.append({"obs": frames[step % 8], "number": numbers}, first=step == 0)
        writer.create_item("replay", 1.0, {name: writer.history[name][-1:] for name in ("obs", "number")})
        writer.flush()

    while writer.steps * ENVS < items:
        insert()
    shape = Trajectory(obs=col("obs")[0])
    inserting, sampling = Timed(insert), Timed(lambda: void(client.sample("replay", 64, shape)))
    inserting.start()
    sampling.start()
    spans = []
    for number in range(arguments.checkpoints):
        time.sleep(2.0)
        began = time.perf_counter()
        controller.checkpoint(f"{folder}/saved/replay-{number}")
        spans.append((began, time.perf_counter()))
    time.sleep(2.0)
    for thread in (inserting, sampling):
        thread.stopped.set()
        thread.join()
    for name, thread in (("insert of 16", inserting), ("sample of 64", sampling)):
        (during, many), (otherwise, _) = thread.longest(spans, True), thread.longest(spans, False)
        print(f"longest {name}: {during:.1f} ms during a checkpoint ({many:,} of them), {otherwise:.1f} ms otherwise")
    print("checkpoints took " + ", ".join(f"{end - start:.2f} s" for start, end in spans))
    controller.checkpoint(f"{folder}/saved/replay-{arguments.checkpoints}")
    held = contents(address)
    for _ in range(100):  # what came after the checkpoint is lost with the server, and nothing else
        insert()
    return held


def void(_: object) -> None: ...


def contents(address: str) -> dict[int, int]:
    """All items that can be found by sampling, with a checksum of their frames."""
    client, found = connect(address), {}
    shape = Trajectory(obs=col("obs")[0], number=col("number")[0])
    size = client.info("replay")["size"]
    for _ in range(12 * size // 2048):
        batch = client.sample("replay", 2048, shape)
        sums = batch.data["obs"].sum((1, 2), dtype=np.int64) * 2**31 + batch.data["number"]
        found.update(zip(batch.keys.tolist(), sums.tolist(), strict=True))
    print(f"{len(found):,} of {size:,} items seen by sampling")
    return found


def compare(address: str, before: dict[int, int]) -> None:
    after = contents(address)
    common = before.keys() & after.keys()
    wrong = sum(before[key] != after[key] for key in common)
    size = connect(address).info("replay")["size"]
    print(f"after kill -9: {size:,} items; {len(common):,} seen both times, {wrong} of them differ")


if __name__ == "__main__":
    main()
