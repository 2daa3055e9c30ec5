"""What every PPO does in the comparison, ours among them, and what is told of it.

Imported by each peer's own python, so standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

ENV = "CartPole-v1"
HIDDEN = 64
"""Units of each of two layers with tanh, which policy and value share."""
VALUE_COST, ENTROPY_COST = 0.001, 0.01
"""Of half the squared error, and of the entropy. Values of up to 100 share layers with the policy: the usual 0.5 would
leave those layers to the values, and nobody solves the task."""
LEARNING_RATE, EPSILON, LARGEST_NORM = 1e-3, 1e-5, 0.5
"""Of Adam, whose gradients are clipped."""
DISCOUNT, LAMBDA, CLIP = 0.99, 0.95, 0.2
EPISODES = 100
"""Of which the return is a mean."""


@dataclass(frozen=True)
class Work:
    """How much is done between two updates, and how often it is gone over."""

    envs: int
    rollout: int
    epochs: int
    minibatches: int

    @property
    def batch(self) -> int:
        return self.envs * self.rollout


WORKS = {
    "preset": Work(envs=16, rollout=128, epochs=4, minibatches=4),
    "zoo": Work(envs=8, rollout=32, epochs=20, minibatches=1),
    "cleanrl": Work(envs=4, rollout=128, epochs=4, minibatches=4),
    "sb3": Work(envs=1, rollout=2048, epochs=10, minibatches=32),
}
"""Our preset's; RL Zoo's for SB3's PPO on CartPole; the defaults of CleanRL's `ppo.py`, and of SB3."""


class Curve:
    """Steps, seconds since the process began, and the mean return of the last episodes, once per batch."""

    def __init__(self, steps: int, target: float | None) -> None:
        self.steps, self._target = steps, target
        self._returns: deque[float] = deque(maxlen=EPISODES)
        self._points: list[tuple[int, float, float]] = []

    @property
    def full(self) -> bool:
        """Whether there is no need to go on."""
        if not self._points:
            return False
        steps, _, found = self._points[-1]
        solved = self._target is not None and len(self._returns) == EPISODES and found >= self._target
        return steps >= self.steps or solved

    def observe(self, steps: int, ended: Sequence[float]) -> bool:
        """So many steps were learned from, and these episodes ended since; whether that is enough."""
        self._returns.extend(ended)
        if self._returns:
            self._points.append((steps, seconds_alive(), sum(self._returns) / len(self._returns)))
        return self.full

    def print(self, fd: int) -> None:
        os.write(fd, (json.dumps(self._points) + "\n").encode())


def seconds_alive() -> float:
    """Since this process began, imports included."""
    with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
        began = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(uptime.read().split()[0]) - began


def arguments() -> tuple[Work, int, int, float | None]:
    """`WORK SEED STEPS [TARGET]` of the command line."""
    work, seed, steps, *target = sys.argv[1:]
    return WORKS[work], int(seed), int(steps), float(target[0]) if target else None


def result_descriptor() -> int:
    """Where the result goes; whatever else is printed joins stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor
