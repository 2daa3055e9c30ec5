"""Items from offline data: the columns that are stored (no behaviour, no recurrent state), and the number of items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pappus.experience import Experience, SequenceStats, Transitions
from pappus.types import Array, ArraySpec


@dataclass(frozen=True)
class Logged:
    """The rules of items (`core.ItemRules`) from offline data. Their TD errors are unknown: all priorities are 1."""

    experience: Experience
    behaviour: dict[str, ArraySpec] = field(default_factory=dict)

    def initial_priority(self, steps: Any) -> Array:
        return np.ones(steps.reward.shape[1] if isinstance(steps, SequenceStats) else len(steps.reward))


def items_of(experience: Experience, lengths: Array, terminated: Array) -> Array:
    """Items that a recorder makes of whole episodes, from their numbers of steps and which of them terminated, `[E]`.

    Of transitions one begins with every step. A sequence ends with row length − 1 of an episode, and again every
    `period` rows; and with the last one, unless it is part of a sequence already. A truncated episode has one row more,
    that of its final observation, which alone is no sequence.
    """
    if isinstance(experience, Transitions):
        return lengths
    last = np.where(terminated, lengths - 1, lengths)
    whole = np.maximum(0, (last - experience.length + 1) // experience.period + 1)
    ends = (whole - 1) * experience.period + experience.length - 1  # of the last whole one; too small without any
    covered = (whole > 0) & (ends == last)
    count: Array = whole + (~covered & (terminated | (whole * experience.period < last)))
    return count
