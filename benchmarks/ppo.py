"""PPO on CartPole against Stable-Baselines3 and the single file that people write themselves.

Everybody does the same work (`benchmarks.peers.ppo_work`), learns from the same seeds, and takes turns on the machine:

    python -m benchmarks.ppo --seeds 1 2 3 4 5 --steps 300000 --plot docs/results/figures/ppo.png

Speed is that of the second half of a run. Then the same with a target: seconds from the command to the end of a process
that stops when the mean return of 100 episodes reaches it; ours goes on to evaluate and save what it learnt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.peers import ppo_work as work
from benchmarks.peers.environments import HERE, ensure_environment
from benchmarks.throughput import provenance
from pappus.ops.intervals import T_QUANTILES

Curve: TypeAlias = list[tuple[int, float, float]]
"""Steps, seconds since the process began, return."""
TARGET = 475.0
SETTINGS = {
    "algorithm.discount": work.DISCOUNT,
    "algorithm.gae-lambda": work.LAMBDA, "algorithm.clip": work.CLIP, "algorithm.baseline-cost": work.VALUE_COST,
    "algorithm.entropy-cost": work.ENTROPY_COST, "optimizer.learning-rate": work.LEARNING_RATE,
    "optimizer.epsilon": work.EPSILON, "optimizer.clip-norm": work.LARGEST_NORM,
}
LOG_OFTEN = (
    "import pappus.runtimes.controller as c, sys; c.LOG_SECONDS = 0.1; from pappus.cli import main; sys.exit(main())"
)
"""`pappus`, with ten points of the curve a second instead of one."""


def ours(name: str, seed: int, steps: int, target: float | None) -> Curve:
    amount = work.WORKS[name]
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        command = [sys.executable, "-c", LOG_OFTEN, "train", "ppo", "--env", work.ENV, "--seed", str(seed)]
        command += [f"--{name}={value}" for name, value in SETTINGS.items()]
        command += ["--algorithm.no-normalize-returns", "--optimizer.no-anneal"]
        command += [f"--envs-per-actor={amount.envs}", f"--unroll-length={amount.rollout}"]
        command += [f"--algorithm.epochs={amount.epochs}", f"--algorithm.minibatches={amount.minibatches}"]
        command += ["--steps", str(steps), "--run-dir", str(run)]
        command += [f"--target-return={target}"] if target else ["--evaluation.episodes=1"]
        began = time.time()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = [row for row in rows if row.get("charts/episodic_return") is not None and "charts/SPS" in row]
    return [(row["step"], row["time"] - began, row["charts/episodic_return"]) for row in known]


def peer(script: str) -> Callable[[str, int, int, float | None], Curve]:
    def curve(name: str, seed: int, steps: int, target: float | None) -> Curve:
        command = [str(ensure_environment("sb3")), str(HERE / script), name, str(seed), str(steps)]
        command += [str(target)] if target else []
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        points: Curve = [tuple(point) for point in json.loads(printed)]
        return points

    return curve


WHO: dict[str, Callable[[str, int, int, float | None], Curve]] = {
    "pappus": ours, "SB3": peer("sb3_ppo_curve.py"), "single file": peer("single_file_ppo.py"),
}


def speed(curve: Curve) -> float:
    """Steps per second of the second half."""
    half = next(point for point in curve if point[0] >= curve[-1][0] / 2)
    return (curve[-1][0] - half[0]) / (curve[-1][1] - half[1])


def at(curves: Sequence[Curve], steps: Sequence[int]) -> np.ndarray:
    """Returns `[seeds, points]` after so many steps."""
    return np.stack([np.interp(steps, [p[0] for p in curve], [p[2] for p in curve]) for curve in curves])


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds, and how far the 95 % interval of it reaches to either side (Student's t)."""
    count = len(values)
    if count < 2:
        return values.mean(0), np.zeros(values.shape[1])
    t = T_QUANTILES[min(count - 1, len(T_QUANTILES)) - 1]
    return values.mean(0), t * values.std(0, ddof=1) / count**0.5


def plot(path: Path, curves: dict[str, list[Curve]], steps: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    grid = np.linspace(steps / 100, steps, 120)
    for name, runs in curves.items():
        mean, reach = interval(at(runs, grid.tolist()))
        axes.plot(grid, mean, label=name)
        axes.fill_between(grid, mean - reach, mean + reach, alpha=0.2)
    axes.set(xlabel="env steps", ylabel=f"return, mean of {work.EPISODES} episodes", title=f"PPO on {work.ENV}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--work", choices=tuple(work.WORKS), default="preset")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    curves: defaultdict[str, list[Curve]] = defaultdict(list)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for seed in arguments.seeds:
        for name, train in WHO.items():
            curves[name].append(train(arguments.work, seed, arguments.steps, None))
            print(f"seed {seed}, {name}: {speed(curves[name][-1]):,.0f} steps/s", flush=True)
        for name, train in WHO.items():
            began = time.perf_counter()
            last = train(arguments.work, seed, arguments.steps, TARGET)[-1]
            seconds[name].append(time.perf_counter() - began)
            print(f"seed {seed}, {name}: {last[2]:.0f} after {last[0]:,} steps, {seconds[name][-1]:.1f} s", flush=True)
    report(arguments.work, curves, seconds, arguments.steps)
    if arguments.plot:
        plot(arguments.plot, curves, arguments.steps)


def report(name_of_work: str, curves: dict[str, list[Curve]], seconds: dict[str, list[float]], steps: int) -> None:
    """Who is how fast, and how good after a quarter, a half and all of the steps."""
    points = [steps // 4, steps // 2, steps]
    seeds = len(curves["pappus"])
    title = f"PPO on {work.ENV}, {work.WORKS[name_of_work]}, {seeds} seeds: medians (least … most), means ± 95 %"
    table = Table(title=title)
    for column in ("", "steps/s", "ours is faster by", "command to solved", *(f"return at {p:,}" for p in points)):
        table.add_column(column, justify="right")
    own = [speed(curve) for curve in curves["pappus"]]
    for name, runs in curves.items():
        speeds = [speed(curve) for curve in runs]
        ratios = [one / other for one, other in zip(own, speeds, strict=True)]
        mean, reach = interval(at(runs, points))
        table.add_row(
            name, f"{np.median(speeds):,.0f}", f"{np.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})",
            f"{np.median(seconds[name]):.1f} s ({min(seconds[name]):.1f} … {max(seconds[name]):.1f})",
            *(f"{m:.0f} ± {r:.0f}" for m, r in zip(mean, reach, strict=True)),
        )
    console = Console(width=150)
    console.print(table)
    console.print(provenance())


if __name__ == "__main__":
    main()
