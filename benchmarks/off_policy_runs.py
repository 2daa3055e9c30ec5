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

import gymnasium as gym
import numpy as np

import pappus
from pappus.config import EnvOptions
from pappus.data.dataset import DatasetWriter
from pappus.data.episode import Episode
from pappus.envs.vector import make_env
from pappus.trained import policy_on_data
from pappus.types import Array

ENV = "CartPole-v1"
EARLY = 12_000
"""Env steps that the behaviour policy was trained for."""
LATER = (12_000, 16_000, 24_000, 40_000)
ENVS = 16


def trained(folder: Path, steps: int) -> Path:
    """A run of so many steps."""
    run = folder / f"run-{steps}"
    pappus.train("ppo", ENV, run_dir=run, steps=steps, seed=1, runtime="inline", actors=1)
    return run


def played(run: Path, episodes: int, seed: int) -> list[Episode]:
    """Whole episodes of a run's policy as it samples, the same number of every env: short ones are no more likely."""
    env = make_env(ENV, ENVS, seed, EnvOptions())
    policy = policy_on_data(run, env.spec, num_envs=ENVS, seed=seed)
    seen, done = env.reset(), list[Episode]()
    shown: list[list[Array]] = [[row] for row in seen.observation]
    steps: list[list[tuple[Array, ...]]] = [[] for _ in range(ENVS)]
    left = np.full(ENVS, episodes // ENVS)
    while left.any():
        action, behaviour = policy.act(seen)
        seen = env.step(action)
        for i in range(ENVS):
            if not seen.valid[i]:
                shown[i], steps[i] = [], []
            else:
                steps[i].append((action[i], seen.reward[i], behaviour["log_prob"][i]))
            shown[i].append(seen.observation[i].copy())
        for i in [] if seen.episodes is None else seen.episodes.envs:
            if left[i]:
                left[i] -= 1
                actions, rewards, log_probs = (np.array(column) for column in zip(*steps[i], strict=True))
                ended = seen.discount[i] == 0
                done.append(
                    Episode(np.array(shown[i]), actions, rewards, ended, not ended, {"log_prob": log_probs})
                )
    return done


def mean_return(episodes: list[Episode], discount: float) -> tuple[float, float]:
    """Mean discounted return, and its standard error."""
    returns = [float(one.reward @ discount ** np.arange(one.length)) for one in episodes]
    return float(np.mean(returns)), float(np.std(returns) / np.sqrt(len(returns)))


def main(discount: float) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            runs = {steps: trained(Path(folder), steps) for steps in {EARLY, *LATER}}
        data, env = Path(folder).resolve() / "data", gym.make(ENV)
        about = make_env(ENV, 1, 0, EnvOptions())
        writer = DatasetWriter(data, about.spec, env.observation_space, env.action_space, ENV)
        writer.add(played(runs[EARLY], 208, 2), about.to_action)
        print("| policy after | truth | effective | is | wis | dr | wdr | fqe | seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for steps in LATER:
            truth, began = mean_return(played(runs[steps], 800, 3), discount), time.monotonic()
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
