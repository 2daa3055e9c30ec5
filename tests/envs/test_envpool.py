"""EnvPool behind the same contract."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pappus.config import AtariOptions, EnvOptions
from pappus.envs import env_spec, make_env
from pappus.errors import UserError
from pappus.types import ArraySpec, DiscreteAction, EnvSpec

OPTIONS = EnvOptions(backend="envpool", threads=1, atari=AtariOptions(max_frames=40))


@pytest.mark.parametrize("name", ["Pong-v5", "ALE/Pong-v5"])
def test_atari_gives_single_frames_as_ale_py_does(name: str) -> None:
    assert env_spec(name, OPTIONS) == EnvSpec(ArraySpec((84, 84), "uint8"), DiscreteAction(6), 4)


def test_a_truncated_episode_shows_its_final_observation_with_discount_one() -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions(backend="envpool", kwargs={"max_episode_steps": 3}))
    env.reset()
    seen = [env.step(np.array([step % 2])) for step in range(4)]
    assert [t.discount[0] for t in seen] == [1, 1, 1, 0] and [t.valid[0] for t in seen] == [True, True, True, False]
    assert seen[3].first[0] and seen[2].episodes is not None and seen[2].episodes.lengths.tolist() == [3]
    assert abs(seen[2].observation[0, 1]) > 0.1 > abs(seen[3].observation[0, 1])


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'"):
        make_env("CartPoleee-v1", 1, 0, OPTIONS)


def test_a_function_is_refused() -> None:
    with pytest.raises(UserError, match="backend=envpool makes envs by id only"):
        make_env(dict, 1, 0, OPTIONS)


def test_missing_envpool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"pip install \".*\[envpool\]\""):
        make_env("CartPole-v1", 1, 0, OPTIONS)
