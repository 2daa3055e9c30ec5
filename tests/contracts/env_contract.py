"""What every `VectorEnv` must do. An adapter passes it in three lines:

class TestCartPole(EnvContract):
    def make(self, num_envs, seed):
        return make_env("CartPole-v1", num_envs, seed, EnvOptions())
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest

from pappus.envs import VectorEnv
from pappus.envs.check import random_action
from pappus.types import Array, ArraySpec, Episodes, Nest, Timestep


class Recording(NamedTuple):
    """T timesteps of N envs, stacked `[T, N, …]`, the reset first; episodes per timestep."""

    observation: Nest
    first: Array
    reward: Array
    discount: Array
    valid: Array
    episodes: list[Episodes | None]


class EnvContract:
    """Subclass and provide `make`; switch off what an env cannot promise."""

    num_envs = 3
    steps = 120
    next_step = True  # False: the reset observation is shown in the step that ended the episode
    lives = False  # True: episodes end for the learner while the game goes on
    snapshots = True
    raw_rewards = True  # False: some rewards are changed for the learner
    ends = True  # False: no episode ends within `steps`

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls) -> Iterator[VectorEnv]:
        """One for all tests that do not ask how it began: a game of Atari takes a second to make."""
        env = cls().make(cls.num_envs, 7)
        yield env
        env.close()

    @pytest.fixture
    def recording(self) -> Recording:
        return recorded(type(self), 7)

    def test_shapes_and_dtypes_are_those_of_the_spec(self, env: VectorEnv) -> None:
        start = env.reset()
        for timestep in (start, self._step(env, start)):
            optree.tree_map(self._assert_fits, env.spec.observation, timestep.observation)
            for array, dtype in zip(timestep[1:5], ("bool", "float32", "float32", "bool"), strict=True):
                self._assert_fits(ArraySpec((), dtype), array)

    def test_reset_starts_all_episodes_and_is_no_transition(self, recording: Recording) -> None:
        assert recording.first[0].all() and not recording.valid[0].any() and recording.episodes[0] is None

    def test_invalid_rows_have_no_reward_and_no_discount(self, recording: Recording) -> None:
        assert not recording.reward[~recording.valid].any() and not recording.discount[~recording.valid].any()

    def test_a_step_is_invalid_only_where_an_episode_ends_or_has_just_ended(self, recording: Recording) -> None:
        """Actors count the valid steps of all others without a look at them."""
        ended = np.array([episodes is not None for episodes in recording.episodes])
        assert recording.valid[1:][~(ended[1:] | ended[:-1])].all()

    def test_discount_is_zero_or_one(self, recording: Recording) -> None:
        assert np.isin(recording.discount, (0, 1)).all()

    def test_nothing_is_carried_over_into_a_first_observation(self, recording: Recording) -> None:
        assert not recording.discount[recording.first].any()

    def test_an_ended_episode_is_followed_by_a_first_observation(self, recording: Recording) -> None:
        ended = ended_rows(recording)
        assert ended.any() == self.ends
        if self.next_step:
            assert recording.first[1:][ended[:-1]].all() and not recording.valid[1:][ended[:-1]].any()
            assert recording.valid[ended].all() and not recording.first[ended].any()
        else:
            assert recording.first[ended].all()

    def test_a_first_observation_follows_an_ended_episode(self, recording: Recording) -> None:
        ended = ended_rows(recording)
        cause = ended[:-1] if self.next_step else ended[1:]
        if self.lives:
            cause = cause | (recording.valid[1:] & (recording.discount[1:] == 0))
        assert not (recording.first[1:] & ~cause).any()

    def test_a_terminated_transition_is_valid_with_discount_zero(self, recording: Recording) -> None:
        terminated = recording.valid & (recording.discount == 0)
        assert self.lives or not (terminated & ~ended_rows(recording)).any()

    def test_returns_are_the_summed_raw_rewards(self, recording: Recording) -> None:
        if not self.raw_rewards:
            pytest.skip("rewards are changed for the learner")
        for time, env, episode_return, length in finished_episodes(recording):
            rewards = recording.reward[time - length + 1 : time + 1, env]
            assert episode_return == pytest.approx(rewards.astype(np.float64).sum(), rel=1e-5, abs=1e-5)

    def test_lengths_count_the_transitions_of_an_episode(self, recording: Recording) -> None:
        for time, env, _, length in finished_episodes(recording):
            assert recording.first[time - length, env]
            assert self.lives or not recording.first[time - length + 1 : time, env].any()

    def test_same_seed_gives_the_same_stream(self, recording: Recording) -> None:
        env = self.make(self.num_envs, 7)
        assert_same(play(env, env.reset(), self.steps), recording)
        env.close()

    def test_envs_of_one_seed_and_of_different_seeds_differ(self, recording: Recording) -> None:
        other = recorded(type(self), 8)
        mine = [streams(recording, i) for i in range(self.num_envs)] + [streams(other, i) for i in range(self.num_envs)]
        assert all(not _equal(a, b) for i, a in enumerate(mine) for b in mine[:i])

    def test_reset_starts_anew_at_any_time(self, env: VectorEnv) -> None:
        play(env, env.reset(), 3)
        timestep = env.reset()
        assert timestep.first.all() and not timestep.valid.any() and timestep.episodes is None
        assert not play(env, timestep, 1).first[1:].any()

    def test_a_snapshot_goes_on_identically(self, env: VectorEnv) -> None:
        middle = play(env, env.reset(), 13)
        timestep = last(middle)
        snapshot = env.snapshot()
        assert (snapshot is not None) == self.snapshots
        if snapshot is None:
            return
        assert_plain(snapshot)
        expected = play(env, timestep, 30)
        fresh = self.make(self.num_envs, 99)
        for resumed in (env, fresh):
            resumed.restore(snapshot)
            assert_same(play(resumed, timestep, 30), expected)
        fresh.close()

    def test_close_may_be_called_twice(self) -> None:
        env = self.make(1, 0)
        env.reset()
        closings = [env.close(), env.close()]
        assert closings == [None, None]

    def _step(self, env: VectorEnv, timestep: Timestep) -> Timestep:
        return env.step(random_action(env.spec, timestep.observation, env.num_envs, np.random.default_rng(0)))

    def _assert_fits(self, spec: ArraySpec, leaf: Array) -> None:
        assert leaf.shape == (self.num_envs, *spec.shape) and str(leaf.dtype) == spec.dtype
        assert leaf.flags.c_contiguous


@functools.cache
def recorded(contract: type[EnvContract], seed: int) -> Recording:
    """Random play from reset on, once per class and seed."""
    env = contract().make(contract.num_envs, seed)
    recording = play(env, env.reset(), contract.steps)
    env.close()
    return recording


def play(env: VectorEnv, timestep: Timestep, steps: int, seed: int = 0) -> Recording:
    """Random allowed actions from `timestep` on; everything copied."""
    rng = np.random.default_rng(seed)
    seen = [copied(timestep)]
    for _ in range(steps):
        timestep = env.step(random_action(env.spec, timestep.observation, env.num_envs, rng))
        seen.append(copied(timestep))
    stacked = [optree.tree_map(lambda *leaves: np.stack(leaves), *(t[i] for t in seen)) for i in range(5)]
    return Recording(*stacked, [t.episodes for t in seen])


def copied(timestep: Timestep) -> Timestep:
    """A timestep that outlives the next step."""
    return Timestep(*(optree.tree_map(np.copy, part) for part in timestep[:5]), timestep.episodes)


def last(recording: Recording) -> Timestep:
    """The newest timestep of a recording."""
    return Timestep(*(optree.tree_map(lambda leaf: leaf[-1], part) for part in recording[:5]))


def ended_rows(recording: Recording) -> Array:
    """`[T, N]`: where an episode was reported."""
    ended = np.zeros(recording.first.shape, np.bool_)
    for time, episodes in enumerate(recording.episodes):
        if episodes is not None:
            ended[time, episodes.envs] = True
    return ended


def finished_episodes(recording: Recording) -> list[tuple[int, int, float, int]]:
    """(time of the end, env, return, length) of every episode."""
    return [
        (time, int(env), float(episode_return), int(length))
        for time, episodes in enumerate(recording.episodes)
        if episodes is not None
        for episode_return, length, env in zip(*episodes, strict=True)
    ]


def streams(recording: Recording, env: int) -> Nest:
    """What one env showed."""
    return optree.tree_map(lambda leaf: leaf[:, env], recording.observation)


def assert_same(left: Recording, right: Recording) -> None:
    """Bit for bit."""
    for a, b in zip(left[:5], right[:5], strict=True):
        assert _equal(a, b)
    assert [_lists(e) for e in left.episodes] == [_lists(e) for e in right.episodes]


def assert_plain(value: Any) -> None:
    """Only arrays, numbers, strings, None, lists and dicts with string keys."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            assert_plain(item)
    else:
        assert value is None or type(value) in (np.ndarray, bool, int, float, str), type(value)


def _lists(episodes: Episodes | None) -> Any:
    return None if episodes is None else [part.tolist() for part in episodes]


def _equal(left: Nest, right: Nest) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(optree.tree_leaves(left), optree.tree_leaves(right), strict=True))
