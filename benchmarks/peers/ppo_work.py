"""What every PPO does in the comparison, ours among them, and what is told of it.

Imported by each peer's own python, so standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Sequence

ENV = "CartPole-v1"
ENVS, ROLLOUT, EPOCHS, MINIBATCHES = 16, 128, 4, 4
HIDDEN = 64
"""Units of each of two layers with tanh, which policy and value share."""
LEARNING_RATE, EPSILON, LARGEST_NORM = 1e-3, 1e-5, 0.5
"""Of Adam; the step size falls to 0 over the run, gradients are clipped."""
DISCOUNT, LAMBDA, CLIP = 0.99, 0.95, 0.2
VALUE_COST, ENTROPY_COST = 0.5, 0.01
"""Of half the squared error, and of the entropy."""
EPISODES = 100
"""Of which the return is a mean."""


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


def arguments() -> tuple[int, int, float | None]:
    """`SEED STEPS [TARGET]` of the command line."""
    seed, steps, *target = sys.argv[1:]
    return int(seed), int(steps), float(target[0]) if target else None


def result_descriptor() -> int:
    """Where the result goes; whatever else is printed joins stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor
