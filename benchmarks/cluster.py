"""The ray runtime: what it costs, what travels, and what a larger cluster would need.

    python -m benchmarks.cluster overhead --systems impala seed-vtrace --env CartPole-v1 benchmarks.synthetic:frames
    python -m benchmarks.cluster broadcast --readers 1 4 16 --sizes 10_000 1_000_000 10_000_000
    python -m benchmarks.cluster messages --systems impala seed-vtrace apex-dqn --seconds 8 --out traffic.json
    python -m benchmarks.cluster thousand --traffic traffic.json --steps-per-second 1000
    python -m benchmarks.cluster weights --seconds 600

All nodes are on this machine (`benchmarks.ray_nodes`): they share its cores, and loopback is their network. Times and
rates are those of a cluster that is short of cores; messages and bytes are those of any. What happens when parts die
is in `benchmarks.cluster_failures`. Words behind `--` are options of `pappus train`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cluster_arithmetic import thousand
from benchmarks.cluster_messages import messages
from benchmarks.cluster_overhead import overhead
from benchmarks.cluster_weights import broadcast, weights

SYSTEMS = ["impala", "seed-vtrace", "apex-dqn", "r2d2", "a3c", "ppo", "gorila-dqn"]


def parser() -> argparse.ArgumentParser:
    """All that can be asked for."""
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(required=True, metavar="WHAT")
    _add_overhead(_command(commands, "overhead", overhead))
    _add_broadcast(_command(commands, "broadcast", broadcast))
    _add_messages(_command(commands, "messages", messages))
    _add_thousand(_command(commands, "thousand", thousand))
    _add_weights(_command(commands, "weights", weights))
    return whole


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str,
    run: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    made = commands.add_parser(
        name, help=run.__doc__, description=run.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.set_defaults(run=run)
    return made


def _add_overhead(made: argparse.ArgumentParser) -> None:
    made.add_argument("--systems", nargs="+", default=["impala", "seed-vtrace"])
    made.add_argument("--env", nargs="+", default=["CartPole-v1", "benchmarks.synthetic:frames"])
    made.add_argument("--rounds", type=int, default=3, help="each of one local and one ray run")
    made.add_argument("--seconds", type=float, default=15.0, help="of training in a run")
    made.add_argument("--peers", action="store_true", help="also RLlib's IMPALA")
    made.add_argument("options", nargs="*", help="of `pappus train`, behind --")


def _add_broadcast(made: argparse.ArgumentParser) -> None:
    made.add_argument("--readers", type=int, nargs="+", default=[1, 4, 16])
    made.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000], help="float32 numbers")
    made.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    _add_pause(made)


def _add_messages(made: argparse.ArgumentParser) -> None:
    made.add_argument("--systems", nargs="+", default=SYSTEMS)
    made.add_argument("--env", default="CartPole-v1")
    made.add_argument("--actors", type=int, default=2)
    made.add_argument("--seconds", type=float, default=8.0, help="of training in a run")
    made.add_argument("--out", type=Path, metavar="FILE", help="keep the measurements, for `thousand`")
    made.add_argument("options", nargs="*", help="of `pappus train`, behind --")


def _add_thousand(made: argparse.ArgumentParser) -> None:
    made.add_argument("--traffic", type=Path, nargs="+", required=True, metavar="FILE", help="of `messages --out`")
    made.add_argument("--actors", type=int, default=1000)
    made.add_argument("--actors-per-node", type=int, default=50)
    made.add_argument("--steps-per-second", type=float, default=1000.0, help="of each actor")
    made.add_argument("--envs", type=int, default=0, help="of each actor; 0: as measured")
    made.add_argument("--versions-per-second", type=float, default=10.0, help="that the learner publishes")
    made.add_argument("--links", type=float, nargs="+", default=[10.0, 25.0], metavar="GBITS")
    made.add_argument("--seconds", type=float, default=3.0, help="of each measurement of the node agents")


def _add_weights(made: argparse.ArgumentParser) -> None:
    made.add_argument("--seconds", type=float, default=600.0)
    made.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    made.add_argument("--readers", type=int, default=6)
    made.add_argument("--size", type=int, default=1_000_000, help="float32 numbers")
    _add_pause(made)


def _add_pause(made: argparse.ArgumentParser) -> None:
    made.add_argument("--pause", type=float, default=0.0, help="seconds between two versions; 0: as fast as it can")


def main(words: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(words)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
