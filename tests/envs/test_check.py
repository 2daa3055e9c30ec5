"""`check_env` says what an env is and what is wrong with it: key, index, value, dtype."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from pappus.config import EnvOptions
from pappus.envs.check import SIZES, check_env
from tests.envs import broken_envs, toy_envs

QUICK = 0.04


class Opaque(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Hides that envs are stepped one by one."""


@pytest.mark.parametrize(
    "source",
    ["CartPole-v1", toy_envs.Counter, toy_envs.Nested, toy_envs.Masked, toy_envs.same_step, toy_envs.masked_by_hand],
)
def test_a_sound_env_has_no_problems_and_is_measured(source: Any) -> None:
    report = check_env(source, EnvOptions(), QUICK)
    assert not report.problems and not report.warnings and tuple(report.rates) == SIZES
    assert "no problems found" in str(report) and "steps/s" in str(report)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (broken_envs.NotFinite, "observation is nan at index (1,); keep it finite"),
        (broken_envs.OutOfBounds, "observation is 107.0 at index (1,) where the space has 0.0 to 100.0"),
        (broken_envs.WrongDtype, "observation has dtype float32 where the space has float64"),
        (broken_envs.WrongShape, "observation has shape (3,) where the space has (2,)"),
        (broken_envs.WrongKeys, "observation has ['position'] where the space has the keys ['place']"),
        (broken_envs.WrongCategory, "observation['pair'][0] is 3 at index () where the space has 0 to 2"),
        (broken_envs.RewardOfNone, "reward is None of type NoneType; return a float"),
        (broken_envs.InfiniteReward, "reward is inf; return finite numbers"),
        (broken_envs.EndsWithNumber, "terminated is 0 of type int; return a bool"),
        (broken_envs.ForbidsEverything, "action_mask forbids everything for choice 1; allow at least one"),
        (
            broken_envs.OldStep,
            "step returns 4 values; return the tuple (observation, reward, terminated, truncated, info)",
        ),
        (broken_envs.OldReset, "reset returns a ndarray; return the tuple (observation, info)"),
        (broken_envs.NoSeed, "NoSeed.reset takes no seed; write reset(self, *, seed=None, options=None)"),
    ],
)
def test_a_broken_promise_is_named(source: Any, problem: str) -> None:
    report = check_env(source, EnvOptions(), QUICK)
    assert report.problems == [problem] and f"problem: {problem}" in str(report)


def test_a_natively_vectorised_env_is_held_against_its_space_too() -> None:
    def broken(num_envs: int) -> Any:
        env = toy_envs.same_step(num_envs)
        env.single_observation_space = toy_envs.Pusher.action_space
        return Opaque(env)

    assert check_env(broken, EnvOptions(), QUICK).problems[0].startswith("observation has shape (1, 2)")


def test_an_env_that_never_ends_is_a_warning() -> None:
    report = check_env(broken_envs.Endless, EnvOptions(), QUICK)
    assert not report.problems and "ended no episode" in report.warnings[0]


def test_an_env_that_ignores_its_seed_is_a_warning() -> None:
    report = check_env(broken_envs.Irreproducible, EnvOptions(), QUICK)
    assert not report.problems and "not reproducible" in report.warnings[0]


def test_an_exception_of_the_env_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError, match="through the floor"):
        check_env(toy_envs.Crashing, EnvOptions(), QUICK)


def test_facts_name_vectorisation_autoreset_limit_and_masks() -> None:
    facts = dict(check_env("CartPole-v1", EnvOptions(), QUICK).facts)
    assert facts["vectorised"] == "natively, by CartPoleVectorEnv" and facts["autoreset"] == "next step"
    assert facts["time limit"] == "500 steps" and facts["masks"] == "none" and facts["learner sees"] == "float32 [4]"


def test_atari_is_checked_as_the_learner_sees_it() -> None:
    report = check_env("ALE/Pong-v5", EnvOptions(), QUICK)
    assert not report.problems and dict(report.facts)["time limit"] == "27,000 steps"
