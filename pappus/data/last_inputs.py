"""Logged observations for networks that see their last action and reward, too (R2D2)."""

from __future__ import annotations

import numpy as np

from pappus.data.episode import Episode
from pappus.envs.vector import LAST_ACTION, LAST_REWARD
from pappus.types import Array


def with_last_inputs(episode: Episode) -> Episode:
    """The episode as `envs.vector.WithLastInputs` would have shown it; unchanged if it was recorded like that."""
    own = episode.observation if isinstance(episode.observation, dict) else {"observation": episode.observation}
    if LAST_ACTION in own:
        return episode
    last = {LAST_ACTION: _delayed(episode.action), LAST_REWARD: _delayed(episode.reward)}
    return episode._replace(observation={**own, **last})


def _delayed(rows: Array) -> Array:
    """The row before each, `[T + 1, …]`; zeros at the start."""
    return np.concatenate([np.zeros_like(rows[:1]), rows])
