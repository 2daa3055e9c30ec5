"""A replay selector of your own: rank-based prioritization (Schaul et al. 2016, section 3.3).

    python examples/own_selector.py

The item with the rank-th largest priority is drawn with a probability proportional to 1 / rank^α. A selector is one
class; its name, `module:name`, is a setting of the run, so the command line takes it as well:

    PYTHONPATH=examples pappus train dqn --env CartPole-v1 --topology.replay.sampler own_selector:RankBased
"""

from __future__ import annotations

import numpy as np

import pappus
from pappus.replay import RandomSelector
from pappus.types import Array

SORT_EVERY = 100
"""Draws between two sorts: ranks change slowly, and sorting takes longer than drawing."""


class RankBased(RandomSelector):
    """Draws by rank, so that a few huge errors cannot crowd out the rest."""

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        super().__init__(capacity, alpha)
        self._ranked = np.zeros(0, np.int64)
        """Places by falling priority."""
        self._share = np.zeros(0)
        """Probability of each of them."""
        self._draws = 0

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if self._draws % SORT_EVERY == 0 or len(self._ranked) != len(self.places):
            self._sort()
        self._draws += 1
        rank = np.searchsorted(np.cumsum(self._share), rng.random(count)).clip(max=len(self._share) - 1)
        return self._ranked[rank], self._share[rank]

    def delete(self, places: Array) -> None:
        super().delete(places)
        self._ranked = self._ranked[:0]  # some of it is gone: sort before the next draw

    def _sort(self) -> None:
        self._ranked = self.places[np.argsort(-self.priorities[self.places], kind="stable")]
        weight = np.arange(1.0, len(self._ranked) + 1) ** -self.alpha
        self._share = weight / weight.sum()


if __name__ == "__main__":
    replay = {"sampler": "own_selector:RankBased", "priority_exponent": 0.7}
    pappus.train("dqn", "CartPole-v1", steps=100_000, target_return=475.0, topology={"replay": replay})
