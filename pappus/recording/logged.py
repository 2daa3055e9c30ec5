"""What a table stores of logged steps: nothing of the policy that acted, and no recurrent state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pappus.experience import Experience, SequenceStats
from pappus.types import Array, ArraySpec


@dataclass(frozen=True)
class Logged:
    """The rules of items (`core.ItemRules`) that come from data. Nobody knows their errors: all priorities are 1."""

    experience: Experience
    behaviour: dict[str, ArraySpec] = field(default_factory=dict)

    def initial_priority(self, steps: Any) -> Array:
        return np.ones(steps.reward.shape[1] if isinstance(steps, SequenceStats) else len(steps.reward))
