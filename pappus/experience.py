"""Item types of algorithms that learn from replay, and batches of them.

    transition   o_t, a_t, r_t + γ r_{t+1} + … (n terms), γⁿ, o_{t+n}
    sequence     consecutive steps of one episode, and the recurrent state before the first

Items never cross the end of an episode. A transition that would is shorter: it bootstraps from the final observation
or, after a termination, not at all. The time convention is that of `types.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pappus.types import Array, Nest

SMALLEST_PRIORITY = 1e-6
"""Added to every priority, so that items with an error of 0 can still be drawn."""


@dataclass(frozen=True)
class Transitions:
    """n-step transitions, one from every step on."""

    n_step: int
    discount: float
    """γ."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it."""
    next_action: bool = False
    """Whether items tell what was done at o_{t+n}, for continuous actions."""


@dataclass(frozen=True)
class Sequences:
    """Sequences of `length` steps to learn from, preceded by `burn_in` steps that only refresh the recurrent state.

    A new sequence begins every `period` steps. The first of an episode has no burn-in, since its state is known.
    """

    burn_in: int
    length: int
    period: int
    reward_scale: float = 1.0
    """Rewards are multiplied by it."""


Experience: TypeAlias = Transitions | Sequences


class TransitionStats(NamedTuple):
    """What was recorded of n new transitions: the input of their initial priorities."""

    behaviour: Mapping[str, Array]
    """Recorded by the policy at the first step, `[n, …]` for each key of `Algorithm.behaviour`."""
    next_behaviour: Mapping[str, Array]
    """The same at the observation that the transition bootstraps from; meaningless where `discount` is 0."""
    reward: Array
    """The scaled n-step reward, `[n]` float64."""
    discount: Array
    """γⁿ times the env's discounts, `[n]` float64; 0 after a termination."""


class SequenceStats(NamedTuple):
    """What was recorded of n new sequences, without burn-in. T is `Sequences.length`; shorter ones are padded."""

    behaviour: Mapping[str, Array]
    """Recorded by the policy, `[T, n, …]` for each key of `Algorithm.behaviour`."""
    reward: Array
    """Scaled rewards, `[T, n]` float32."""
    discount: Array
    """The env's discounts (without γ), `[T, n]` float32; 0 at a termination."""
    valid: Array
    """Transitions that can be learned from, `[T, n]` bool: padding and steps without a next observation cannot."""


@dataclass(frozen=True)
class TargetUpdates:
    """Every `every` updates the target network moves by `share` towards the network's weights (1: copies them)."""

    every: int
    share: float = 1.0


class Transition(NamedTuple):
    """A batch `[B, …]`. `reward` is the n-step sum, `discount` γⁿ times the env's (0 after a termination).

    Observations of an env with frame stacking are stacks, `[B, k, …]`, oldest frame first.
    """

    observation: Nest
    action: Any
    reward: Any
    discount: Any
    next_observation: Nest
    next_action: Any = ()
    """What was done there, if it was asked for (`Transitions.next_action`); NaN where the episode ended."""


class Sequence(NamedTuple):
    """A batch `[T, B, …]` of burn_in + length steps, and the recurrent state before the first `[B, …]`. An episode may
    begin within the burn-in (what lies before it is padding) or right after it, never later.

    `valid` marks transitions that can be learned from: their next observation is there, or they terminated.
    """

    observation: Nest
    first: Any
    action: Any
    reward: Any
    discount: Any
    valid: Any
    state: Nest


class ItemBatch(NamedTuple):
    """A batch from replay: a `Transition` or a `Sequence`, and what belongs to its items."""

    keys: Any
    items: Any
    weight: Any
    """Importance weights `[B]`."""
    age: float
    """Mean number of items that were inserted after these."""
    service: int = 0
    """Number of the service's incarnation: in another one the same keys name other items."""
    parts: tuple[Any, ...] = ()
    """Of a batch from several tables: what came from each. `keys` and `age` are those of the first."""
    new_rows: tuple[Any, ...] = ()
    """Where the learner keeps rows (`ItemSource.keep_rows`): those that it must store before it looks up this batch."""


class LossOutput(NamedTuple):
    """A loss, named scalars to report in the order in which they were computed, and a priority `[B]` per item."""

    loss: Any
    scalars: dict[str, Any]
    priority: Any
