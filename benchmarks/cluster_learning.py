"""Does a run on a cluster learn what a run on one machine does?

Each system reaches the target from several seeds, on this machine alone (`--runtime local`) and on a Ray cluster of
three nodes with whoever steps envs on other nodes than whoever learns. Compared are the env steps that it took.

    python -m benchmarks.cluster_learning --seeds 1 2 3
    python -m benchmarks.cluster_learning --systems impala a3c --seeds 1 2 3 4 5
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.learning import train
from benchmarks.ray_nodes import RayNodes, ray_nodes
from benchmarks.throughput import provenance

SYSTEMS = ["impala", "seed-vtrace", "apex-dqn", "a3c", "ppo", "gorila-dqn", "r2d2"]
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Of the 95 % interval of a mean, by the number of values."""


def reached(system: str, env: str, target: float, seed: int, words: list[str]) -> float:
    """The env steps after which a greedy evaluation reached the target; infinite if none did."""
    with tempfile.TemporaryDirectory() as parent:
        words = [system, "--env", env, "--seed", str(seed), "--target-return", str(target), *words]
        summary = train(Path(parent) / "run", *words)
    return summary["solved_at_step"] or math.inf


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval of the mean, both infinite where a value is."""
    if not all(map(math.isfinite, values)):
        return math.inf, math.inf
    if len(values) < 2:
        return values[0], math.inf
    factor = STUDENT.get(len(values), 2.0)
    return statistics.mean(values), factor * statistics.stdev(values) / math.sqrt(len(values))


def words_of(runtime: str, system: str, env: str, nodes: RayNodes) -> list[str]:
    """Options that say where a run runs; a3c on one machine is that of the cluster, whose updates are serialised."""
    if runtime == "ray":
        return nodes.place(system, env)
    return ["--runtime", "local", *(["--topology.updates", "serialised"] if system == "a3c" else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runtimes", nargs="+", default=["local", "ray"], choices=["local", "ray"])
    given = parser.parse_args()
    table = Table(title=f"env steps to {given.target:g} on {given.env}")
    for column in ("system", "runtime", "seeds reached", "steps, by seed", "mean ± 95 %"):
        table.add_column(column)
    with ray_nodes(3) as nodes:
        for system in given.systems:
            for runtime in given.runtimes:
                words = words_of(runtime, system, given.env, nodes)
                steps = [reached(system, given.env, given.target, seed, words) for seed in given.seeds]
                mean, half = interval(steps)
                found = f"{sum(map(math.isfinite, steps))} of {len(steps)}"
                listed = " · ".join(f"{one:,.0f}" for one in steps)
                print(f"{system} {runtime}: {listed}", flush=True)
                table.add_row(system, runtime, found, listed, f"{mean:,.0f} ± {half:,.0f}")
    console = Console(width=140)
    console.print(table)
    console.print(provenance())


if __name__ == "__main__":
    main()
