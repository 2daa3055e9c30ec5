"""How long an update takes in Pappus and in d3rlpy, in turn: the same data, networks, batches and one thread each.

    python -m benchmarks.peers.offline_rates PYTHON --data DIR --env Pendulum-v1 --algorithms td3-bc iql awac

PYTHON is that of `d3rlpy.txt`. Each side makes a short and a long run; the difference has no start, no reading and no
evaluation in it. Lines give milliseconds of processor time per update of both, their ratio, and that of their
wall-clock, which other processes lengthen more, once per round. `cql-dqn` needs data of discrete actions.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PEER = Path(__file__).with_name("d3rlpy_offline.py")
PEER_NAMES = {"cql-dqn": "discrete-cql"}


class Spent(NamedTuple):
    """Seconds of a command and its children."""

    processor: float
    wall: float


def spent(command: list[str]) -> Spent:
    """What a command takes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def ours(arguments: argparse.Namespace, algorithm: str, updates: int) -> Spent:
    """Of a run in one thread that evaluates nothing; `layer_norm` is off, as in d3rlpy's encoders."""
    with tempfile.TemporaryDirectory() as folder:
        return spent([
            sys.executable, "-m", "pappus", "train", algorithm, "--data", str(arguments.data), "--env", "none",
            "--runtime", "inline", "--steps", str(updates), "--batch-size", str(arguments.batch_size),
            "--network.hidden-sizes", *map(str, arguments.hidden), "--network.layer-norm", "false",
            "--precision", arguments.precision, "--run-dir", f"{folder}/run",
        ])


def theirs(arguments: argparse.Namespace, algorithm: str, updates: int) -> Spent:
    """Of the same algorithm of d3rlpy."""
    return spent([
        arguments.python, str(PEER), "--algorithm", PEER_NAMES.get(algorithm, algorithm),
        "--data", str(arguments.data), "--env", arguments.env, "--steps", str(updates),
        "--hidden", *map(str, arguments.hidden), "--batch-size", str(arguments.batch_size), "--episodes", "1",
    ])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="that has d3rlpy")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--env", default="Pendulum-v1", help="that d3rlpy plays one episode of")
    parser.add_argument("--algorithms", nargs="+", default=["td3-bc", "iql", "awac"])
    parser.add_argument("--updates", type=int, nargs=2, default=[200, 1_200], help="of the short and of the long run")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precision", default="auto", help="of Pappus")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    for algorithm in arguments.algorithms:
        for _ in range(arguments.rounds):
            own, other = (per_update(side, arguments, algorithm) for side in (ours, theirs))
            print(
                f"{algorithm:12} {own.processor:8.2f} ms   {other.processor:8.2f} ms   "
                f"{other.processor / own.processor:5.2f}   wall-clock {other.wall / own.wall:5.2f}", flush=True,
            )


def per_update(
    side: Callable[[argparse.Namespace, str, int], Spent], arguments: argparse.Namespace, algorithm: str
) -> Spent:
    """Milliseconds per update of the longer run that the shorter one has not."""
    few, many = (side(arguments, algorithm, updates) for updates in arguments.updates)
    short, long = arguments.updates
    return Spent(*(1_000 * (late - early) / (long - short) for early, late in zip(few, many, strict=True)))


if __name__ == "__main__":
    main()
