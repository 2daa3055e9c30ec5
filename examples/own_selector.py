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
"""Draws between two sorts. Ranks change slowly, so those of the last sort are good enough."""


class RankBased(RandomSelector):
    """Draws by rank, so that a few huge errors cannot crowd out the rest. New items come last until the next sort."""

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        super().__init__(capacity, alpha)
        self._weight = np.arange(1.0, 2 * capacity + 1) ** -alpha
        self._running = np.cumsum(self._weight)
        self._ranked = np.zeros(2 * capacity, np.int64)
        """Places by rank; deleted ones stay until the next sort."""
        self._rank = np.full(capacity, -1)
        self._end = self._draws = 0
        self._total = 0.0

    def insert(self, places: Array, priorities: Array) -> None:
        super().insert(places, priorities)
        if self._end + len(places) > len(self._ranked):
            self._sort()
        else:
            self._append(places)

    def delete(self, places: Array) -> None:
        super().delete(places)
        self._total -= self._weight[self._rank[places]].sum()
        self._rank[places] = -1

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if self._draws % SORT_EVERY == 0 or self._total < self._running[self._end - 1] / 2:
            self._sort()
        self._draws += 1
        drawn = self._ranked[:0]
        while len(drawn) < count:  # draws of deleted places do not count
            rank = np.searchsorted(self._running[: self._end - 1], rng.random(count) * self._running[self._end - 1])
            drawn = np.concatenate([drawn, self._ranked[rank[self._rank[self._ranked[rank]] == rank]]])
        drawn = drawn[:count]
        return drawn, self._weight[self._rank[drawn]] / self._total

    def in_use(self) -> Array:
        self._draws = 0  # the next draw sorts, as that of a restored selector does
        return super().in_use()

    def _sort(self) -> None:
        self._end, self._total = 0, 0.0
        self._append(self.places[np.argsort(-self.priorities[self.places], kind="stable")])

    def _append(self, places: Array) -> None:
        rank = np.arange(self._end, self._end + len(places))
        self._ranked[rank], self._rank[places] = places, rank
        self._end += len(places)
        self._total += self._weight[rank].sum()


if __name__ == "__main__":
    replay = {"sampler": "own_selector:RankBased", "priority_exponent": 0.7}
    pappus.train("dqn", "CartPole-v1", steps=100_000, target_return=475.0, topology={"replay": replay})
