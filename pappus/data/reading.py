"""Which episodes of a set are read, in which order, and as what: once, or shuffled for ever."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pappus.data.dataset import Dataset
from pappus.data.episode import Episode
from pappus.envs.vector import LAST_ACTION, LAST_REWARD
from pappus.types import Array


def once(dataset: Dataset, episodes: Array) -> Iterator[Episode]:
    """These episodes in this order."""
    return dataset.read(episodes.tolist())


def for_ever(dataset: Dataset, episodes: Array, seed: int, reader: int = 0, readers: int = 1) -> Iterator[Episode]:
    """Passes over these episodes without an end, each in an order of its own. Of every pass each of several readers
    with the same seed reads another part."""
    rng = np.random.default_rng(seed)
    while True:
        yield from dataset.read(rng.permutation(episodes)[reader::readers].tolist())


def shown(episodes: Iterator[Episode], last_inputs: bool, clip_rewards: bool = False) -> Iterator[Episode]:
    """The same as the network is shown them: with its last action and reward, too, if it wants them (R2D2);
    with clipped rewards where envs clip them."""
    if clip_rewards:
        episodes = (episode._replace(reward=episode.reward.clip(-1.0, 1.0)) for episode in episodes)
    return map(with_last_inputs, episodes) if last_inputs else episodes


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
