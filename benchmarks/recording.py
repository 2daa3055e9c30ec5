"""What does `--record` cost a run?

    python -m benchmarks.recording
    python -m benchmarks.recording --cases impala-cartpole --seconds 20 --rounds 7

Every case is trained with and without `--record` in turn, round by round. A line gives the steps/s of each round, their
ratio, and the median ratio of the case. What is written when a run is over is no part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import pappus
from pappus.data.dataset import open_dataset

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "impala-cartpole": ("impala", "CartPole-v1", {}),
    "seed-vtrace-cartpole": ("seed-vtrace", "CartPole-v1", {}),
    "ppo-cartpole": ("ppo", "CartPole-v1", {}),
    "apex-dqn-cartpole": ("apex-dqn", "CartPole-v1", {}),
    "sac-pendulum": ("sac", "Pendulum-v1", {}),
    "impala-pong": ("impala", "ALE/Pong-v5", {}),
}
"""System, env and settings. CartPole's steps are the cheapest, and so the worst case."""


def speed(case: str, seconds: float, recorded: bool) -> tuple[float, int]:
    """Steps/s of a run, and the steps in its data set."""
    system, env, settings = CASES[case]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        data = Path(folder) / "data"
        more = {"record": str(data)} if recorded else {}
        chosen = {"evaluation.episodes": 1, "evaluation.every_steps": 0, "steps": 10**10, **settings, **more}
        result = pappus.train(system, env, chosen, seconds=seconds, run_dir=Path(folder) / "run")
        return result.summary.steps_per_second, open_dataset(data).num_steps if recorded else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for case in arguments.cases:
        ratios = []
        for number in range(arguments.rounds):
            order = (True, False) if number % 2 else (False, True)
            found = {recorded: speed(case, arguments.seconds, recorded) for recorded in order}
            (with_it, kept), (without, _) = found[True], found[False]
            ratios.append(with_it / without)
            print(f"{case:22} {without:10,.0f} {with_it:10,.0f} steps/s  {ratios[-1]:5.3f}  {kept:,} kept", flush=True)
        print(f"{case:22} median {median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
