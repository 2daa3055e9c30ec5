"""Raw returns and lengths of the episodes that N envs are in."""

from __future__ import annotations

import numpy as np

from pappus.types import Array, Episodes, Nest


class EpisodeTracker:
    """Sums raw rewards and steps per env and hands both out when an episode ends.

    With `pseudo_steps`, the step after the end of an episode leads to the next one and is not counted.
    """

    def __init__(self, num_envs: int, pseudo_steps: bool) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._length_after_end = -1 if pseudo_steps else 0

    def reset(self) -> None:
        """Forget the unfinished episodes."""
        self._returns[:] = 0
        self._lengths[:] = 0

    def update(self, reward: Array, ended: Array) -> Episodes | None:
        """Add one step; the episodes `ended` by it, or None when there are none."""
        self._returns += reward
        self._lengths += 1
        envs = ended.nonzero()[0]
        if not len(envs):
            return None
        episodes = Episodes(self._returns[envs], self._lengths[envs], envs)
        self._returns[envs] = 0
        self._lengths[envs] = self._length_after_end
        return episodes

    def snapshot(self) -> Nest:
        """Copies of the running sums."""
        return {"returns": self._returns.copy(), "lengths": self._lengths.copy()}

    def restore(self, snapshot: Nest) -> None:
        """Go on from a snapshot of as many envs."""
        self._returns[:] = snapshot["returns"]
        self._lengths[:] = snapshot["lengths"]
