"""What every agent of continuous control does in the comparison, ours among them, and how its curve is kept.

Imported by each peer's own python, so standard library only.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HIDDEN = (256, 256)
"""Units of policy and critics of SAC and TD3, with relu; PPO has two layers of 64 with tanh."""
BATCH, CAPACITY, RANDOM_STEPS = 256, 1_000_000, 10_000
"""Of each update, of the replay buffer, and before the first update, unless the command line says otherwise."""
LEARNING_RATE, DISCOUNT, TARGET_SHARE = 3e-4, 0.99, 0.005
NOISE, DELAY, SMOOTHING = 0.1, 2, 0.2
"""Of TD3: exploration, updates of the critics per update of policy and targets, noise of the target's actions."""
ROLLOUT, MINIBATCH, EPOCHS, CLIP, LAMBDA, LARGEST_NORM = 2_048, 64, 10, 0.2, 0.95, 0.5
"""Of PPO: one env, observations and rewards normalised, the value loss at half the squared error, no entropy bonus."""


@dataclass(frozen=True)
class Point:
    """A greedy evaluation after so many env steps."""

    steps: int
    score: float
    """Mean return."""
    seconds: float
    """Since the run began, evaluations left out."""
    processor: float
    """Seconds of the processor, evaluations left out."""


@dataclass(frozen=True)
class Run:
    """One agent on one env, and where its evaluations are kept: a file of its own, a line each."""

    peer: str
    algorithm: str
    env: str
    seed: int
    steps: int
    every: int
    episodes: int
    warm_up: int
    """Random steps before the first update."""
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / f"{self.peer}-{self.algorithm}-{self.env.replace('/', '-')}-{self.seed}.jsonl"

    @property
    def done(self) -> bool:
        """Whether all its steps were made; a run that was cut is made again."""
        kept = self.path.read_text().splitlines() if self.path.exists() else []
        return bool(kept) and json.loads(kept[-1])["steps"] >= self.steps

    def keep(self, point: Point) -> None:
        about = {"peer": self.peer, "algorithm": self.algorithm, "env": self.env, "seed": self.seed}
        with self.path.open("a") as file:
            file.write(json.dumps({**about, **asdict(point)}) + "\n")


class Stopwatch:
    """Seconds of wall-clock and of the processor, while it runs."""

    def __init__(self) -> None:
        self._wall, self._processor = -time.perf_counter(), -time.process_time()

    def pause(self) -> None:
        self._wall, self._processor = self._wall + time.perf_counter(), self._processor + time.process_time()

    def go_on(self) -> None:
        self._wall, self._processor = self._wall - time.perf_counter(), self._processor - time.process_time()

    @property
    def stopped_at(self) -> tuple[float, float]:
        """Of a stopwatch that pauses."""
        return round(self._wall, 2), round(self._processor, 2)


def wanted(peer: str) -> Run:
    """The run that the command line asks for; what is left of one that was cut goes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=("sac", "td3", "ppo"))
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--every", type=int, default=25_000, help="steps between two evaluations")
    parser.add_argument("--episodes", type=int, default=10, help="of each evaluation")
    parser.add_argument("--warm-up", type=int, default=RANDOM_STEPS, help="steps before the first update")
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    run = Run(peer, **vars(parser.parse_args()))
    if run.done:
        raise SystemExit(f"{run.path} is whole")
    run.folder.mkdir(parents=True, exist_ok=True)
    run.path.unlink(missing_ok=True)
    return run
