"""Times the peers' prioritized replay on this machine, each in its own environment and processes.

Prints a line per peer:

    python -m benchmarks.peers.replay --workload atari --capacity 100000 --seconds 5
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import HERE, PeerError
from benchmarks.peers.measuring import STARTUP_SECONDS
from benchmarks.peers.run import python_or_error, run_script

PEERS = ("reverb", "cpprb", "torchrl", "tianshou")
CAPACITIES = {"atari": 100_000, "sequences": 1_000, "small": 1_000_000}
"""Items; a sequence is one item of 120 steps."""
SLOWEST_FILL = {"atari": 1_000.0, "sequences": 50.0, "small": 2_000.0}
"""Items per second below which filling a store counts as stuck: a fraction of what the slowest peer does."""
BUILD_SECONDS = {"torchrl": 300.0}
"""For what a script compiles on its first run; torchrl's takes a minute or two on two cores."""
WINDOWS = 4
COLUMNS = {"insert_per_second": "insert/s", "sample_per_second": "sample/s", "update_per_second": "update/s"}
COLUMNS |= {"cycle_per_second": "cycle/s", "bytes_per_item": "bytes/item"}


def measure(workload: str, capacity: int, seconds: float, peers: Sequence[str] = PEERS) -> list[dict[str, Any]]:
    """What each peer's script printed, one after the other; a peer that failed is a dict with an `error`."""
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown or workload not in CAPACITIES:
        raise ValueError(f"no replay of {unknown or workload}; peers are {PEERS} and workloads {tuple(CAPACITIES)}")
    # All installs come first: none runs beside a measurement.
    pythons = {peer: python_or_error(peer) for peer in peers}
    return [_measure(peer, python, workload, capacity, seconds) for peer, python in pythons.items()]


def _measure(peer: str, python: Path | PeerError, workload: str, capacity: int, seconds: float) -> dict[str, Any]:
    startup = STARTUP_SECONDS + BUILD_SECONDS.get(peer, 0.0)
    deadline = startup + capacity / SLOWEST_FILL[workload] + 2.0 * WINDOWS * seconds
    arguments = [f"--workload={workload}", f"--capacity={capacity}", f"--seconds={seconds}"]
    try:
        if isinstance(python, PeerError):
            raise python
        command = [str(python), str(HERE / f"replay_{peer}.py"), *arguments]
        return run_script(peer, command, f"{peer}-replay-{workload}.log", deadline)
    except (PeerError, OSError, ValueError) as error:
        return {"peer": peer, "workload": workload, "capacity": capacity, "error": str(error)}


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """One line per peer, with what it says of itself below."""
    print(f"{'peer':<10}{'version':<10}" + "".join(f"{title:>14}" for title in COLUMNS.values()))
    for result in results:
        if "error" in result:
            print(f"{result['peer']:<20}  {result['error']}")
            continue
        print(f"{result['peer']:<10}{result['version']:<10}" + "".join(f"{result[key]:>14,.0f}" for key in COLUMNS))
        print(f"{'':<10}{result['note']}")


def main() -> int:
    """Prints the table; fails when a peer did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(CAPACITIES), default="atari")
    parser.add_argument("--capacity", type=int, help=f"items; by default {CAPACITIES}")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each of the timed windows")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    args = parser.parse_args()
    results = measure(args.workload, args.capacity or CAPACITIES[args.workload], args.seconds, args.peers)
    print_table(results)
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
