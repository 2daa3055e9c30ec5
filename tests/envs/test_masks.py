"""Masks reach the observation from wherever the env gives them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from pappus.config import EnvOptions
from pappus.envs import VectorEnv, make_env
from pappus.envs.spaces import InfoMasks, observation_converter
from pappus.errors import UserError
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, MultiDiscreteAction
from tests.contracts.env_contract import play
from tests.envs import toy_envs


def masked(by: str, form: str) -> VectorEnv:
    return make_env(toy_envs.Masked, 2, 0, EnvOptions(kwargs={"by": by, "form": form}))


@pytest.mark.parametrize("by", ["observation", "info"])
@pytest.mark.parametrize("form", ["tuple", "flat"])
def test_masks_of_any_form_become_flat_rows_of_the_observation(by: str, form: str) -> None:
    env = masked(by, form)
    seen = play(env, env.reset(), 3).observation
    assert env.spec.masked and env.spec.observation[ACTION_MASK] == ArraySpec((5,), "int8")
    assert seen[ACTION_MASK][:, 0].tolist() == [[1, 0, 1, 1, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1], [0, 1, 1, 1, 0]]
    assert seen["counter" if by == "observation" else "observation"].shape == (4, 2, 2)


def test_disabled_autoreset_shows_the_masks_of_the_reset_observation() -> None:
    env = make_env(toy_envs.masked_by_hand, 2, 0, EnvOptions())
    seen = play(env, env.reset(), toy_envs.LENGTH)
    assert (seen.observation[ACTION_MASK][-1] == seen.observation[ACTION_MASK][0]).all()


def test_a_row_that_info_does_not_mention_allows_everything() -> None:
    masks = InfoMasks(3, DiscreteAction(2))
    info = {ACTION_MASK: np.zeros((3, 2), np.int8), f"_{ACTION_MASK}": np.array([False, True, False])}
    assert masks.read(info).tolist() == [[1, 1], [0, 0], [1, 1]]
    assert masks.read({}).all()


def test_rows_of_python_objects_are_read_one_by_one() -> None:
    masks = InfoMasks(3, MultiDiscreteAction((2, 3)))
    rows = np.full(3, None, dtype=object)
    rows[0], rows[2] = ([1, 0], [1, 1, 0]), [0, 1, 0, 0, 1]
    assert masks.read({ACTION_MASK: rows}).tolist() == [[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 1]]


def test_a_mask_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(UserError, match="3 entries, but the action has 2 choices"):
        InfoMasks(1, DiscreteAction(2)).read({ACTION_MASK: np.ones((1, 3))})
    space = spaces.Dict({"x": spaces.Discrete(2), ACTION_MASK: spaces.MultiBinary(3)})
    with pytest.raises(UserError, match="3 entries, but the action has 2 choices"):
        observation_converter(space, DiscreteAction(2))


def test_a_mask_of_a_continuous_action_is_refused() -> None:
    with pytest.raises(UserError, match="continuous"):
        InfoMasks(1, ContinuousAction((2,)))


def test_an_observation_given_from_outside_is_converted_with_its_mask() -> None:
    env = masked("info", "flat")
    nest = env.to_nest({"observation": np.zeros((1, 2)), ACTION_MASK: np.ones((1, 5))})
    assert nest["observation"].dtype == np.float32 and nest[ACTION_MASK].dtype == np.int8
