"""Curves of SAC, TD3 and PPO on MuJoCo beside Stable-Baselines3's at the same settings: one file per run, then a table.

    python -m benchmarks.control run sac --env HalfCheetah-v5 --seed 1 --folder RESULTS
    PYTHON benchmarks/peers/sb3_control.py sac --env HalfCheetah-v5 --seed 1 --folder RESULTS
    python -m benchmarks.control report RESULTS --plot control.png

PYTHON is that of `peers/sb3.txt`. Both sides do what `peers/control_work.py` says, in one thread each, and skip runs
that are whole.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pappus
from benchmarks.peers import control_work as work

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


def main() -> None:
    command = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if command == "run":
        train(work.wanted("pappus"))


if __name__ == "__main__":
    main()
