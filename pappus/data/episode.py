"""One episode of logged experience, in the time convention of `pappus.types`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pappus.types import Array, Nest


class Episode(NamedTuple):
    """T steps of one env, whole and in order: o_0 … o_T, and T of the rest.

    An episode that neither terminated nor was truncated was cut off where the recording ended. It is learned from like
    a truncated one, whose last step bootstraps from o_T.
    """

    observation: Nest
    """`[T + 1, …]`, as `EnvSpec.observation` says; action masks are a part of it."""
    action: Array
    """`[T, …]`, in the units of policies, as `EnvSpec.action.array` says."""
    reward: Array
    """`[T]` float32."""
    terminated: bool
    truncated: bool
    behaviour: Mapping[str, Array] = {}
    """Recorded outputs of the acting policy, `[T, …]` by name; `log_prob` where it is known."""
    seed: int | None = None
    """The seed that the episode began with, where it is known."""

    @property
    def length(self) -> int:
        """T."""
        return len(self.reward)
