"""Processor time of a step of training in Pappus and in Stable-Baselines3, in turn, one thread each.

    python -m benchmarks.peers.control_rates PYTHON --algorithms sac td3 ppo

PYTHON is that of `sb3.txt`. With SAC and TD3 a step is one of the env and one update; with PPO one of the env and its
share of all epochs. Networks, batches and everything else are those of `control_work.py`. Each side makes a short and a
long run; the difference has no start and no evaluation in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from statistics import median

from benchmarks.peers.environments import HERE
from benchmarks.peers.offline_rates import Spent, spent

WARM_UP = 500
"""Steps without updates, in the short and in the long run."""


def per_step(command: list[str], steps: list[int]) -> Spent:
    """Milliseconds per step of the longer run that the shorter one has not."""
    found = []
    for amount in steps:
        with tempfile.TemporaryDirectory() as folder:
            found.append(spent([
                *command, "--steps", str(amount), "--every", "1000000000", "--episodes", "1",
                "--warm-up", str(WARM_UP), "--folder", folder,
            ]))
    short, long = steps
    return Spent(*(1_000 * (late - early) / (long - short) for early, late in zip(*found, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="that has Stable-Baselines3")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--algorithms", nargs="+", default=["sac", "td3", "ppo"])
    parser.add_argument("--steps", type=int, nargs=2, default=[1_000, 3_000], help="of the short and the long run")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    for algorithm in arguments.algorithms:
        steps = [4 * amount for amount in arguments.steps] if algorithm == "ppo" else arguments.steps
        ratios = []
        for _ in range(arguments.rounds):
            own, other = (per_step([*side, algorithm, "--env", arguments.env], steps) for side in (
                [sys.executable, "-m", "benchmarks.control", "run"], [arguments.python, str(HERE / "sb3_control.py")],
            ))
            ratios.append(other.processor / own.processor)
            print(
                f"{algorithm:5} {own.processor:8.3f} ms   {other.processor:8.3f} ms   {ratios[-1]:5.2f}   "
                f"wall-clock {other.wall / own.wall:5.2f}", flush=True,
            )
        print(f"{algorithm:5} median {median(ratios):5.2f}", flush=True)


if __name__ == "__main__":
    main()
