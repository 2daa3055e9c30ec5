"""The time convention, step by step, on counters whose every number is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs import make_env
from pappus.envs.gym_vector import NextStepStream, SameStepStream
from pappus.errors import UserError
from tests.contracts.env_contract import Recording, play
from tests.envs import toy_envs
from tests.envs.toy_envs import LENGTH

SUM = LENGTH * (LENGTH + 1) / 2


def recorded(source: Any, steps: int, **kwargs: str) -> Recording:
    env = make_env(source, 2, 0, EnvOptions(kwargs=kwargs))
    return play(env, env.reset(), steps)


def test_a_terminated_episode_has_discount_zero_and_its_final_observation() -> None:
    seen = recorded(toy_envs.Counter, LENGTH + 1, ends="terminate")
    assert seen.observation[:, 0, 1].tolist() == [0, 1, 2, 3, 4, 0]
    assert seen.reward[:, 0].tolist() == [0, 1, 2, 3, 4, 0]
    assert seen.discount[:, 0].tolist() == [0, 1, 1, 1, 0, 0]
    assert seen.first[:, 0].tolist() == [True, False, False, False, False, True]
    assert seen.valid[:, 0].tolist() == [False, True, True, True, True, False]


def test_a_truncated_episode_keeps_discount_one_and_shows_its_final_observation() -> None:
    seen = recorded(toy_envs.Counter, LENGTH + 1, ends="truncate")
    assert seen.observation[LENGTH, 0, 1] == LENGTH and seen.valid[LENGTH, 0]
    assert seen.discount[:, 0].tolist() == [0, 1, 1, 1, 1, 0]
    assert seen.first[:, 0].tolist() == [True, False, False, False, False, True]


def test_a_final_observation_belongs_to_the_episode_that_it_ends() -> None:
    seen = recorded(toy_envs.Counter, LENGTH + 1)
    assert seen.observation[LENGTH, 0, 0] == seen.observation[0, 0, 0] != seen.observation[LENGTH + 1, 0, 0]


@pytest.mark.parametrize("source", [toy_envs.same_step, toy_envs.reset_by_hand])
def test_without_next_step_autoreset_a_terminated_transition_leads_to_the_reset_observation(source: Any) -> None:
    seen = recorded(source, LENGTH + 1)
    assert seen.observation[:, 0, 1].tolist() == [0, 1, 2, 3, 0, 1]
    assert seen.reward[:, 0].tolist() == [0, 1, 2, 3, 4, 1]
    assert seen.discount[:, 0].tolist() == [0, 1, 1, 1, 0, 1]
    assert seen.first[:, 0].tolist() == [True, False, False, False, True, False]
    assert seen.valid[:, 0].tolist() == [False, True, True, True, True, True]


@pytest.mark.parametrize("source", [toy_envs.same_step, toy_envs.reset_by_hand])
def test_without_next_step_autoreset_a_truncated_transition_is_invalid(source: Any) -> None:
    seen = recorded(source, 2 * LENGTH)
    end = 2 * LENGTH
    assert not seen.valid[end].any() and seen.first[end].all()
    assert not seen.reward[end].any() and not seen.discount[end].any()


@pytest.mark.parametrize("source", [toy_envs.Counter, toy_envs.same_step, toy_envs.reset_by_hand])
def test_returns_are_raw_and_whole_whatever_the_autoreset_mode(source: Any) -> None:
    ended = [episodes for episodes in recorded(source, 4 * LENGTH).episodes if episodes is not None]
    assert len(ended) >= 3
    for episodes in ended:
        assert episodes.returns.tolist() == [SUM, SUM] and episodes.lengths.tolist() == [LENGTH, LENGTH]
        assert episodes.envs.tolist() == [0, 1]


def test_an_env_that_hides_its_autoreset_mode_is_refused() -> None:
    with pytest.raises(UserError, match="autoreset_mode"):
        make_env(toy_envs.without_mode, 2, 0, EnvOptions())


def test_a_pseudo_transition_has_no_reward_even_if_the_env_gives_one() -> None:
    stream, no, yes = NextStepStream(1), np.array([False]), np.array([True])
    stream.reset()
    stream.step(np.array([2.0]), no, yes)
    pseudo = stream.step(np.array([5.0]), no, no)
    ended = stream.step(np.array([3.0]), yes, no).episodes
    assert pseudo.reward[0] == 0 and not pseudo.valid[0]
    assert ended is not None and ended.returns.tolist() == [3.0] and ended.lengths.tolist() == [1]


def test_termination_wins_over_truncation_in_the_same_step() -> None:
    stream, yes = SameStepStream(1), np.array([True])
    stream.reset()
    both = stream.step(np.array([2.0]), yes, yes)
    assert both.valid[0] and both.discount[0] == 0 and both.reward[0] == 2 and both.first[0]


def test_no_array_of_a_transition_is_changed_by_the_next_step() -> None:
    env = make_env("CartPole-v1", 2, 0, EnvOptions(kwargs={"max_episode_steps": 2}))
    env.reset()
    seen = [env.step(np.zeros(2, np.int64)) for _ in range(6)]
    assert [t.first.all() for t in seen] == [False, False, True, False, False, True]
    assert [t.valid.all() for t in seen] == [True, True, False, True, True, False]
