"""Off-policy estimates of trained policies beside what they really earn: PPO on CartPole-v1, from another one's data.

    python -m benchmarks.off_policy_runs [--discount 0.99]

The data are episodes of an early policy. It and later ones are judged from them, and then played for the truth.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import pappus
from pappus.data.dataset import open_dataset
from pappus.play import Playing, play

ENV = "CartPole-v1"
EARLY = 12_000
"""Env steps that the behaviour policy was trained for."""
LATER = (12_000, 16_000, 24_000, 40_000)


def trained(folder: Path, steps: int) -> Path:
    """A run of so many steps."""
    run = folder / f"run-{steps}"
    pappus.train("ppo", ENV, run_dir=run, steps=steps, seed=1, runtime="inline", actors=1)
    return run


def played(run: Path, data: Path, episodes: int, seed: int) -> Path:
    """What the policy of a run plays as it samples, recorded."""
    play(Playing(str(run), data, episodes=episodes, seed=seed, sample=True))
    return data


def mean_return(data: Path, discount: float) -> tuple[float, float]:
    """Mean discounted return of the episodes, and its standard error."""
    dataset = open_dataset(data)
    episodes = dataset.read(range(dataset.num_episodes))
    returns = [float(one.reward @ discount ** np.arange(one.length)) for one in episodes]
    return float(np.mean(returns)), float(np.std(returns) / np.sqrt(len(returns)))


def main(discount: float) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            runs = {steps: trained(folder, steps) for steps in {EARLY, *LATER}}
            data = played(runs[EARLY], folder / "data", 200, 2)
        print("| policy after | truth | effective | is | wis | dr | wdr | fqe | seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for steps in LATER:
            truth = mean_return(played(runs[steps], folder / f"truth-{steps}", 800, 3), discount)
            began = time.monotonic()
            found = pappus.estimate(runs[steps], data, discount=discount)
            cells = [f"{steps:,} steps", f"{truth[0]:.1f} ± {truth[1]:.1f}", f"{found['is'].effective:.1f}"]
            for one in found.estimates:
                reach = "" if one.interval is None else f" ({one.interval[0]:.1f} … {one.interval[1]:.1f})"
                cells.append(f"{one.value:.1f}{reach}")
            print("| " + " | ".join([*cells, f"{time.monotonic() - began:.0f}"]) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--discount", type=float, default=0.99)
    main(parser.parse_args().discount)
