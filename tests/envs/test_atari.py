"""Atari as ale-py plays it: single frames, raw returns, lives and clipping for the learner only."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from pappus.config import AtariOptions, EnvOptions
from pappus.envs import VectorEnv, env_spec, make_env
from pappus.envs.atari import AtariEnv, GameRules
from pappus.envs.gym_vector import Transition
from pappus.errors import UserError
from pappus.types import ArraySpec, DiscreteAction, EnvSpec
from tests.contracts.env_contract import Recording, ended_rows, finished_episodes, play


def breakout(seed: int, **options: Any) -> VectorEnv:
    return make_env("ALE/Breakout-v5", 1, seed, EnvOptions(atari=AtariOptions(**options)))


def recorded(env: VectorEnv, steps: int) -> Recording:
    recording = play(env, env.reset(), steps)
    env.close()
    return recording


def test_the_spec_says_single_frames_and_how_many_the_network_sees() -> None:
    options = EnvOptions(atari=AtariOptions(screen_size=42, frame_stack=3, full_action_space=True))
    assert env_spec("ALE/Pong-v5", options) == EnvSpec(ArraySpec((42, 42), "uint8"), DiscreteAction(18), 3)


def test_a_lost_life_ends_the_episode_for_the_learner_while_the_game_goes_on() -> None:
    steps = 200
    whole, by_life = (recorded(breakout(3, life_loss_ends_episode=ends), steps) for ends in (False, True))
    assert (whole.observation == by_life.observation).all()
    assert (ended_rows(whole) == ended_rows(by_life)).all() and ended_rows(whole).any()
    assert finished_episodes(whole) == finished_episodes(by_life)
    lost = by_life.first & by_life.valid
    assert lost.sum() >= 4 and not by_life.discount[lost].any()
    assert (whole.first == (by_life.first & ~lost)).all() and (whole.valid == by_life.valid).all()


def test_rewards_are_clipped_for_the_learner_and_returns_are_raw() -> None:
    rules = GameRules(AtariOptions(clip_rewards=True), 2)
    no, yes = np.zeros(2, np.bool_), np.ones(2, np.bool_)
    transition = Transition(no, np.array([7, -3], np.float32), np.ones(2, np.float32), yes, None)
    assert rules.apply(transition, np.zeros(2), no).reward.tolist() == [1, -1]


class FakeGames:
    """One game whose score and lives are written down."""

    num_envs = 1

    class single_action_space:
        n = 2

    def __init__(self, script: list[tuple[int, bool, bool, int]]) -> None:
        self._script = iter(script)

    def reset(self, seed: int | None) -> Any:
        return np.zeros((1, 1, 84, 84), np.uint8), {"lives": np.array([3])}

    def step(self, action: Any) -> Any:
        reward, terminated, truncated, lives = next(self._script)
        frames = np.zeros((1, 1, 84, 84), np.uint8)
        return frames, np.array([reward]), np.array([terminated]), np.array([truncated]), {"lives": np.array([lives])}


def scripted(*script: tuple[int, bool, bool, int]) -> Recording:
    env = AtariEnv(FakeGames(list(script)), None, AtariOptions(life_loss_ends_episode=True))
    return play(env, env.reset(), len(script))


def test_returns_are_per_game_and_raw() -> None:
    seen = scripted((5, False, False, 2), (7, False, False, 2), (9, True, False, 0), (0, False, False, 3))
    assert seen.reward[:, 0].tolist() == [0, 1, 1, 1, 0]
    assert finished_episodes(seen) == [(3, 0, 21.0, 3)]
    assert seen.discount[:, 0].tolist() == [0, 0, 1, 0, 0]
    assert seen.first[:, 0].tolist() == [True, True, False, False, True]
    assert seen.valid[:, 0].tolist() == [False, True, True, True, False]


def test_a_life_lost_while_the_game_is_cut_off_is_no_new_episode() -> None:
    seen = scripted((0, False, True, 2), (0, False, False, 3))
    assert seen.first[:, 0].tolist() == [True, False, True] and seen.discount[1, 0] == 1


def test_zero_lives_before_the_end_of_the_game_are_not_a_lost_life() -> None:
    seen = scripted((0, False, False, 1), (0, False, False, 0), (0, True, False, 0))
    assert seen.first[:, 0].tolist() == [True, True, False, False]


def test_a_game_is_cut_off_after_max_frames_with_discount_one() -> None:
    env = make_env("ALE/Pong-v5", 1, 0, EnvOptions(atari=AtariOptions(max_frames=40)))
    seen = recorded(env, 12)
    assert finished_episodes(seen)[0][3] == 10 and seen.discount[10, 0] == 1 and seen.first[11, 0]


def test_up_to_noop_max_actions_precede_a_game() -> None:
    env = make_env("ALE/Boxing-v5", 1, 0, EnvOptions(atari=AtariOptions(noop_max=3)))
    assert isinstance(env, AtariEnv)
    frames = {int(env.env.reset()[1]["episode_frame_number"][0]) for _ in range(40)}
    assert max(frames) == 3


def test_sticky_actions_change_the_game() -> None:
    plain, sticky = (recorded(breakout(3, sticky_actions=p, noop_max=0), 60) for p in (0.0, 0.9))
    assert (plain.observation != sticky.observation).any()


@pytest.mark.parametrize("wrong", [-1, 6])
def test_an_action_that_the_game_does_not_have_is_refused(wrong: int) -> None:
    env = make_env("ALE/Pong-v5", 2, 0, EnvOptions())
    env.reset()
    with pytest.raises(ValueError, match="not all within 0 to 5"):
        env.step(np.array([0, wrong]))


@pytest.mark.parametrize("name", ["ALE/Pongg-v5", "ALE/Pong-v4"])
def test_an_unknown_game_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="did you mean 'ALE/Pong-v5'"):
        make_env(name, 1, 0, EnvOptions())


def test_a_kwarg_that_the_atari_options_decide_is_refused() -> None:
    with pytest.raises(UserError, match="'frameskip' cannot be set"):
        make_env("ALE/Pong-v5", 1, 0, EnvOptions(kwargs={"frameskip": 2}))


def test_missing_ale_py_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py.vector_env", None)
    with pytest.raises(UserError, match=r"pip install \".*\[atari\]\""):
        make_env("ALE/Pong-v5", 1, 0, EnvOptions())
