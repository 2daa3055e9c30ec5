"""Curves of SAC, TD3 and PPO on MuJoCo beside Stable-Baselines3's at the same settings: one file per run, then a table.

    python -m benchmarks.control run sac --env HalfCheetah-v5 --seed 1 --folder RESULTS
    PYTHON benchmarks/peers/sb3_control.py sac --env HalfCheetah-v5 --seed 1 --folder RESULTS
    python -m benchmarks.control report RESULTS --plot control.png

PYTHON is that of `peers/sb3.txt`. Both sides do what `peers/control_work.py` says, in one thread each, and skip runs
that are whole. The report compares, for each algorithm and env, the steps that all runs of both sides have made: the
last score, and the mean over the curve with the interval of the difference.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import pappus
from benchmarks.peers import control_work as work
from pappus.ops.intervals import half_interval, interval

OFF_POLICY: Mapping[str, Any] = {
    "envs_per_actor": 1, "batch_size": work.BATCH, "network.hidden_sizes": work.HIDDEN,
    "topology.replay.capacity": work.CAPACITY,
    "topology.replay.samples_per_insert": float(work.BATCH), "optimizer.learning_rate": work.LEARNING_RATE,
    "algorithm.discount": work.DISCOUNT, "algorithm.target_share": work.TARGET_SHARE,
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "sac": OFF_POLICY,
    "td3": {
        **OFF_POLICY, "algorithm.noise.sigma": work.NOISE, "algorithm.policy_delay": work.DELAY,
        "algorithm.target_every": work.DELAY, "algorithm.smoothing": work.SMOOTHING,
    },
    "ppo": {
        "envs_per_actor": 1, "unroll_length": work.ROLLOUT, "algorithm.epochs": work.EPOCHS,
        "algorithm.minibatches": work.ROLLOUT // work.MINIBATCH, "algorithm.discount": work.DISCOUNT,
        "algorithm.gae_lambda": work.LAMBDA, "algorithm.clip": work.CLIP, "algorithm.entropy_cost": 0.0,
        "algorithm.baseline_cost": 1.0, "network.normalize": True, "network.hidden_sizes": (64, 64),
        "optimizer.learning_rate": work.LEARNING_RATE, "optimizer.clip_norm": work.LARGEST_NORM,
        "optimizer.anneal": False,
    },
}


def settings(run: work.Run) -> dict[str, Any]:
    """Of ours, for the work that both sides do; whatever a preset says."""
    warm_up = {} if run.algorithm == "ppo" else {"topology.replay.warm_up": run.warm_up}
    evaluation = {"evaluation.every_steps": run.every, "evaluation.episodes": run.episodes}
    return {**SETTINGS[run.algorithm], **warm_up, **evaluation, "runtime": "inline"}


def train(run: work.Run) -> None:
    """Our side of a run. Its seconds count evaluations, too."""
    with tempfile.TemporaryDirectory() as folder:
        pappus.train(
            run.algorithm, run.env, steps=run.steps, seed=run.seed, run_dir=Path(folder) / "run",
            settings=settings(run),
        )
        for point in points(Path(folder) / "run"):
            run.keep(point)


def points(directory: Path) -> list[work.Point]:
    """The evaluations of a run; the last one is of its end."""
    found: dict[int, work.Point] = {}
    for line in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines()):
        score = line.get("eval/episodic_return")
        if score is not None:
            steps = int(line.get("eval/step", line["step"]))
            seconds, processor = line["cost/wall_seconds"], line["cost/cpu_seconds"]
            found.setdefault(steps, work.Point(steps, round(score, 2), round(seconds, 2), round(processor, 2)))
    return [*found.values()]


class Curve(NamedTuple):
    """The evaluations of a run, in order."""

    algorithm: str
    env: str
    peer: str
    points: tuple[work.Point, ...]

    def until(self, steps: int) -> Curve:
        return self._replace(points=tuple(point for point in self.points if point.steps <= steps))

    @property
    def mean(self) -> float:
        """Of all its scores."""
        return fmean(point.score for point in self.points)

    @property
    def step_milliseconds(self) -> float:
        """Processor time of a step; the first part has steps without updates."""
        first, last = self.points[0], self.points[-1]
        return 1_000 * (last.processor - first.processor) / (last.steps - first.steps)


def read(path: Path) -> Curve:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    about = lines[0]
    kept = tuple(work.Point(*(line[name] for name in work.Point.__dataclass_fields__)) for line in lines)
    return Curve(about["algorithm"], about["env"], about["peer"], kept)


def compared(curves: Iterable[Curve]) -> dict[tuple[str, str], dict[str, list[Curve]]]:
    """Curves of each algorithm and env by peer, as far as all of them reach."""
    found: dict[tuple[str, str], list[Curve]] = defaultdict(list)
    for curve in curves:
        found[curve.algorithm, curve.env].append(curve)
    sides: dict[tuple[str, str], dict[str, list[Curve]]] = {}
    for case, runs in sorted(found.items()):
        shared = min(run.points[-1].steps for run in runs)
        sides[case] = {peer: [run.until(shared) for run in runs if run.peer == peer] for peer in ("pappus", "sb3")}
    return sides


def report(folder: Path, plot: Path | None) -> None:
    """A line for each side of each case, and one about their difference."""
    cases = compared(read(path) for path in sorted(folder.glob("*.jsonl")))
    for (algorithm, env), sides in cases.items():
        for peer, runs in sides.items():
            if not runs:
                continue
            last = [run.points[-1].score for run in runs]
            print(
                f"{algorithm:4} {env:15} {peer:7} {len(runs)} seeds, {runs[0].points[-1].steps:,} steps   last "
                f"{interval(last):>16}   mean of the curve {interval([run.mean for run in runs]):>16}   "
                f"{median(run.step_milliseconds for run in runs):.2f} ms a step"
            )
        if all(sides.values()):
            print(f"{algorithm:4} {env:15} {verdict(*([run.mean for run in runs] for runs in sides.values()))}")
    if plot is not None:
        draw(cases, plot)


def verdict(ours: list[float], theirs: list[float]) -> str:
    """Of the means of our curves and of theirs."""
    difference, margin = fmean(ours) - fmean(theirs), math.hypot(half_interval(ours), half_interval(theirs))
    word = "above" if difference > margin else "below" if difference < -margin else "within"
    return f"{word}: the difference is {difference:,.0f} ± {margin:,.0f}"


def draw(cases: Mapping[tuple[str, str], Mapping[str, list[Curve]]], path: Path) -> None:
    """A panel for each case: every run, thin, and the mean of each side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(cases), figsize=(3.4 * len(cases), 3.2), squeeze=False)
    for panel, ((algorithm, env), sides) in zip(panels[0], cases.items(), strict=True):
        for colour, (peer, runs) in enumerate(sides.items()):
            for run in runs:
                steps = [point.steps / 1_000 for point in run.points]
                panel.plot(steps, [point.score for point in run.points], color=f"C{colour}", alpha=0.3, linewidth=0.8)
            means = [fmean(point.score for point in at) for at in zip(*(run.points for run in runs), strict=False)]
            panel.plot(steps[: len(means)], means, color=f"C{colour}", label=peer)
        panel.set(title=f"{algorithm}, {env}", xlabel="thousand steps")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("greedy return")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    command = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if command == "run":
        return train(work.wanted("pappus"))
    if command != "report":
        raise SystemExit(__doc__)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where results are kept")
    parser.add_argument("--plot", type=Path, help="picture of the curves")
    return report(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
