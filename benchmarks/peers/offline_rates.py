"""How long an update takes in Pappus and in d3rlpy, in turn: the same data, networks, batches and one thread each.

    python -m benchmarks.peers.offline_rates PYTHON --data DIR --env Pendulum-v1 --algorithms td3-bc iql awac

PYTHON is that of `d3rlpy.txt`. Time is processor time, which other processes lengthen less than they do wall-clock.
Each side makes a short and a long run; the difference has no start, no reading and no evaluation in it. Lines give
milliseconds per update of both, and their ratio, once per round.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

PEER = Path(__file__).with_name("d3rlpy_offline.py")


def seconds(command: list[str]) -> float:
    """Processor time of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(arguments: argparse.Namespace, algorithm: str, updates: int) -> float:
    """Of a run in one thread that evaluates nothing; `layer_norm` is off, as in d3rlpy's encoders."""
    with tempfile.TemporaryDirectory() as folder:
        return seconds([
            sys.executable, "-m", "pappus", "train", algorithm, "--data", str(arguments.data), "--env", "none",
            "--runtime", "inline", "--steps", str(updates), "--batch-size", str(arguments.batch_size),
            "--network.hidden-sizes", *map(str, arguments.hidden), "--network.layer-norm", "false",
            "--precision", arguments.precision, "--run-dir", f"{folder}/run",
        ])


def theirs(arguments: argparse.Namespace, algorithm: str, updates: int) -> float:
    """Of d3rlpy's algorithm of the same name."""
    return seconds([
        arguments.python, str(PEER), "--algorithm", algorithm, "--data", str(arguments.data), "--env", arguments.env,
        "--steps", str(updates), "--hidden", *map(str, arguments.hidden), "--batch-size", str(arguments.batch_size),
        "--episodes", "1",
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
    short, long = arguments.updates
    for algorithm in arguments.algorithms:
        for _ in range(arguments.rounds):
            spent = [
                1_000 * (side(arguments, algorithm, long) - side(arguments, algorithm, short)) / (long - short)
                for side in (ours, theirs)
            ]
            print(f"{algorithm:12} {spent[0]:8.2f} ms   {spent[1]:8.2f} ms   {spent[1] / spent[0]:5.2f}", flush=True)


if __name__ == "__main__":
    main()
