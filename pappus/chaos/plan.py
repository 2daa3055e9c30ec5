"""Which fault comes when: drawn from a seed, so that the same command means the same faults at the same times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Planned:
    """A fault of the plan."""

    at: float
    """Seconds after training began. It comes later if the one before it takes longer to heal."""
    kind: str
    draw: float
    """A number in [0, 1) for what the fault chooses by chance: which process, which byte."""


def plan(seed: int, seconds: float, every: float, weights: Mapping[str, int], once: bool = False) -> list[Planned]:
    """Faults for `seconds`, one every `every` seconds on average. Kinds are dealt like cards, `weights` of each: all
    come before one comes more often than its weight. With `once`, each kind comes once."""
    rng = random.Random(f"pappus chaos {seed}")
    if once:
        kinds = rng.sample(list(weights), len(weights))
        return [Planned(round(every * (1 + i), 2), kind, round(rng.random(), 6)) for i, kind in enumerate(kinds)]
    planned: list[Planned] = []
    deck: list[str] = []
    at = 0.0
    while weights:
        at += rng.uniform(0.5, 1.5) * every
        if at >= seconds:
            break
        if not deck:
            deck = [kind for kind, copies in weights.items() for _ in range(copies)]
            rng.shuffle(deck)
        planned.append(Planned(round(at, 2), deck.pop(), round(rng.random(), 6)))
    return planned
