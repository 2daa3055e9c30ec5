"""From the step results of a vector env to transitions in the convention of `pappus.types`.

    NEXT_STEP   … o_T (final)  --ignored action-->  o_0 (reset)  --a_0--> …
    SAME_STEP   … o_{T-1}  --a_{T-1}-->  o_0 (reset)  --a_0--> …

With next-step autoreset the stream shows every final observation, and the step after it is the
pseudo-transition: valid False, reward and discount 0, `first` True.

With same-step autoreset (and with autoreset disabled, where the backend resets at once) the final observation
has no place in the stream: N envs step together, so one env cannot wait to show it. A terminated transition does
not need it, because its discount of 0 multiplies whatever follows: it stays valid and the reset observation comes
next. A truncated transition would bootstrap from the wrong observation: it is marked invalid.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from pappus.types import Array, Episodes, Nest


class Transition(NamedTuple):
    """A Timestep without its observation; the arrays are new in each step."""

    first: Array
    reward: Array
    discount: Array
    valid: Array
    episodes: Episodes | None


class Stream(Protocol):
    """Turns the results of N envs into transitions; remembers which episodes are over."""

    def reset(self) -> Transition:
        """All envs start an episode; there was no transition before it."""

    def step(self, reward: Array, terminated: Array, truncated: Array) -> Transition:
        """One step of all envs, `[N]` each."""

    def snapshot(self) -> Nest:
        """The state to continue from."""

    def restore(self, snapshot: Nest) -> None:
        """Continue from a snapshot of the same number of envs."""


class EpisodeTracker:
    """Sums raw rewards and steps per env and returns both when an episode ends.

    With `pseudo_steps`, the step after the end of an episode leads to the next one and does not count.
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
        """Add one step; the episodes that it `ended`, or None."""
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
        """Continue from a snapshot of the same number of envs."""
        self._returns[:] = snapshot["returns"]
        self._lengths[:] = snapshot["lengths"]


class NextStepStream:
    """For envs that show the final observation and reset in the step after it."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._tracker = EpisodeTracker(num_envs, pseudo_steps=True)
        self._over, self._some_over = np.zeros(num_envs, np.bool_), False

    def reset(self) -> Transition:
        """All envs start an episode; there was no transition before it."""
        self._tracker.reset()
        self._over, self._some_over = np.zeros(self._num_envs, np.bool_), False
        return _start(self._num_envs)

    def step(self, reward: Array, terminated: Array, truncated: Array) -> Transition:
        """One step; envs whose episode was over before it took the pseudo-transition."""
        restarted = self._over
        valid = ~restarted
        terminated = np.asarray(terminated, np.bool_)
        self._over = terminated | np.asarray(truncated, np.bool_)
        reward = np.array(reward, np.float32)
        if self._some_over:
            reward[restarted] = 0
        episodes = self._tracker.update(reward, self._over)
        self._some_over = episodes is not None
        return Transition(restarted, reward, (valid > terminated).astype(np.float32), valid, episodes)

    def snapshot(self) -> Nest:
        """Running sums, and which episodes are over."""
        return {"episodes": self._tracker.snapshot(), "over": self._over.copy()}

    def restore(self, snapshot: Nest) -> None:
        """Continue from a snapshot of the same number of envs."""
        self._tracker.restore(snapshot["episodes"])
        self._over = np.array(snapshot["over"], np.bool_)
        self._some_over = bool(self._over.any())


class SameStepStream:
    """For envs that show the reset observation in the step that ended the episode."""

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._tracker = EpisodeTracker(num_envs, pseudo_steps=False)

    def reset(self) -> Transition:
        """All envs start an episode; there was no transition before it."""
        self._tracker.reset()
        return _start(self._num_envs)

    def step(self, reward: Array, terminated: Array, truncated: Array) -> Transition:
        """One step; a truncated transition is invalid, because its successor cannot be shown."""
        terminated = np.asarray(terminated, np.bool_)
        first = terminated | np.asarray(truncated, np.bool_)
        going_on = ~first
        valid = terminated | going_on
        reward = np.asarray(reward).astype(np.float32)
        episodes = self._tracker.update(reward, first)
        reward[~valid] = 0
        return Transition(first, reward, going_on.astype(np.float32), valid, episodes)

    def snapshot(self) -> Nest:
        """The running sums."""
        return {"episodes": self._tracker.snapshot()}

    def restore(self, snapshot: Nest) -> None:
        """Continue from a snapshot of the same number of envs."""
        self._tracker.restore(snapshot["episodes"])


def _start(num_envs: int) -> Transition:
    nothing = np.zeros(num_envs, np.float32)
    return Transition(np.ones(num_envs, np.bool_), nothing, nothing.copy(), np.zeros(num_envs, np.bool_), None)
