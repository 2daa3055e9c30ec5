"""What learns from replay eats: items over the stream of `types.py`, and batches of them.

    transition   o_t, a_t, r_t + γ r_{t+1} + … (n terms), γⁿ, o_{t+n}
    sequence     some steps of one episode in a row, and the recurrent state before the first of them

Neither reaches over the end of an episode: a transition that would is shorter, and bootstraps from the final
observation (or, after a termination, not at all).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pappus.types import Nest

SMALLEST_PRIORITY = 1e-6
"""Added to every priority: an error of 0 does not mean that there is nothing to learn."""


@dataclass(frozen=True)
class Transitions:
    """n-step transitions, one from every step on."""

    n_step: int
    discount: float
    """γ."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it."""


@dataclass(frozen=True)
class Sequences:
    """Sequences that are learnt from for `length` steps, after `burn_in` more that only warm the state up.

    A new one begins every `period` steps. The first of an episode has no burn-in: its state is known.
    """

    burn_in: int
    length: int
    period: int
    n_step: int
    discount: float
    """γ."""
    rescaling: float
    """ε of the scale on which errors are measured (`ops/rescaling.py`); 0: as they are."""
    eta: float
    """η: share of the largest error of a sequence in its priority; the rest is their mean."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it."""


Experience: TypeAlias = Transitions | Sequences


@dataclass(frozen=True)
class TargetUpdates:
    """Every so many updates the target network takes over this share of the network's weights (1: all of them)."""

    every: int
    share: float = 1.0


class Transition(NamedTuple):
    """A batch `[B, …]`. `reward` is the n-step sum, `discount` γⁿ times the env's (0 after a termination).

    Observations of an env whose frames are stacked are stacks, `[B, k, …]`, the oldest frame first.
    """

    observation: Nest
    action: Any
    reward: Any
    discount: Any
    next_observation: Nest


class Sequence(NamedTuple):
    """A batch `[T, B, …]` of burn_in + length steps, and the state before the first of them `[B, …]`.

    `valid` says which transitions can be learnt from: those whose next observation is there, or does not count.
    """

    observation: Nest
    first: Any
    action: Any
    reward: Any
    discount: Any
    valid: Any
    state: Nest


class ItemBatch(NamedTuple):
    """A batch out of replay: `Transition` or `Sequence`, and what belongs to its items."""

    keys: Any
    items: Any
    weight: Any
    """Importance weights `[B]`."""
    age: float
    """Items that came since these did, on average."""
    service: int = 0
    """Which life of the service it came from: in another one the same keys are other items."""


class LossOutput(NamedTuple):
    """A loss, named scalars to report in the order in which they were computed, and a priority for every item."""

    loss: Any
    scalars: dict[str, Any]
    priority: Any
