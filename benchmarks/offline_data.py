"""Data sets of CartPole to learn from: random, replay, medium, expert.

    python -m benchmarks.offline_data DIR

replay is all that a DQN run saw until it reached returns of about 150, medium the policy that it ended with (with 15 %
random actions), expert a solved PPO policy.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENV = "CartPole-v1"


def pappus(*words: str) -> None:
    """One command; its report goes to the terminal."""
    subprocess.run([sys.executable, "-m", "pappus", *words], check=True)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    learnt, solved = (str(folder / name) for name in ("run-dqn", "run-ppo"))
    pappus("train", "dqn", "--env", ENV, "--steps", "20000", "--run-dir", learnt, "--record", str(folder / "replay"))
    pappus("train", "ppo", "--env", ENV, "--target-return", "490", "--run-dir", solved)
    played = {
        "random": ("random", "--env", ENV, "--episodes", "450"),
        "medium": (learnt, "--epsilon", "0.15", "--episodes", "80"), "expert": (solved, "--episodes", "20"),
    }
    for name, (policy, *options) in played.items():
        pappus("data", "record", "--policy", policy, "--out", str(folder / name), *options)


if __name__ == "__main__":
    main()
