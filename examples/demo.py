"""`make demo`: train IMPALA on CartPole until it is solved, play with the result, and say what to try next."""

from __future__ import annotations

import sys

import pappus

SOLVED = 475.0


def main() -> int:
    result = pappus.train("impala", env="CartPole-v1", target_return=SOLVED, steps=3_000_000)
    evaluation = pappus.evaluate(result.directory, episodes=20)
    print(f"\n{evaluation}\n")
    print(f"""\
Trained on {result.summary.steps:,} steps in {result.summary.train_seconds:.1f} s; the run is in {result.directory}.
What to try next:

  .venv/bin/pappus eval {result.directory} --video     # watch it
  .venv/bin/pappus train impala --env Acrobot-v1 --target-return -100
  .venv/bin/pappus train impala --env CartPole-v1 --core lstm --actors 2
  .venv/bin/pappus train impala --env ALE/Pong-v5
  .venv/bin/pappus systems
""")
    return 0 if evaluation.mean >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main())
