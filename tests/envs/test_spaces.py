"""Spaces become specs, observations become arrays, actions become the env's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pappus.config import EnvOptions
from pappus.envs import env_spec, make_env
from pappus.envs.spaces import action_converter, observation_converter
from pappus.errors import UserError
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, MultiDiscreteAction
from tests.envs import toy_envs

ONE_OF_TWO = DiscreteAction(2)


def test_a_nest_of_spaces_becomes_a_nest_of_specs() -> None:
    assert env_spec(toy_envs.Nested, EnvOptions()).observation == {
        "picture": ArraySpec((3, 3), "uint8"),
        "pair": (ArraySpec((), "int64", (4,)), ArraySpec((3,), "int8")),
        "choices": ArraySpec((2,), "int64", (2, 3)),
        "numbers": {"x": ArraySpec((), "float32")},
    }


def test_categories_are_counted_from_zero() -> None:
    _, convert = observation_converter(spaces.Discrete(4, start=2), ONE_OF_TWO)
    assert convert(np.array([2, 5])).tolist() == [0, 3]
    _, convert = observation_converter(spaces.MultiDiscrete([2, 3], start=[5, -1]), ONE_OF_TWO)
    assert convert(np.array([[5, -1], [6, 1]])).tolist() == [[0, 0], [1, 2]]


def test_an_observation_of_the_right_dtype_is_not_copied() -> None:
    _, convert = observation_converter(spaces.Box(0, 255, (2, 2), np.uint8), ONE_OF_TWO)
    batch = np.zeros((3, 2, 2), np.uint8)
    assert convert(batch) is batch


@pytest.mark.parametrize(
    ("space", "path"),
    [
        (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Text(4)])}), r"observation\['a'\]\[1\] is Text"),
        (spaces.Sequence(spaces.Discrete(2)), "observation is Sequence"),
    ],
)
def test_an_unsupported_observation_is_refused_with_its_path(space: Any, path: str) -> None:
    with pytest.raises(UserError, match=path):
        observation_converter(space, ONE_OF_TWO)


def test_an_unsupported_action_is_refused() -> None:
    with pytest.raises(UserError, match="action is Dict"):
        action_converter(spaces.Dict({"a": spaces.Discrete(2)}))


def test_discrete_actions_respect_the_start_of_the_space() -> None:
    spec, convert = action_converter(spaces.Discrete(3, start=-1))
    assert spec == DiscreteAction(3) and convert(np.array([0, 2])).tolist() == [-1, 1]


def test_multi_discrete_actions_get_the_shape_and_dtype_of_the_space() -> None:
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32)
    spec, convert = action_converter(space)
    converted = convert(np.array([[1, 2, 3, 4]]))
    assert spec == MultiDiscreteAction((2, 3, 4, 5))
    assert converted.tolist() == [[[1, 2], [3, 4]]] and converted.dtype == np.int32


def test_continuous_actions_map_to_finite_bounds_and_pass_where_a_bound_is_infinite() -> None:
    env = make_env(toy_envs.Pusher, 3, 0, EnvOptions())
    env.reset()
    seen = env.step(np.array([[-1, 1, 3], [0, 0, 9], [5, -5, -70]], np.float32)).observation
    assert env.spec.action == ContinuousAction((3,))
    assert seen.tolist() == [[-2, 20, 3], [1, 15, 5], [4, 10, -70]]


def test_integer_boxes_are_rounded() -> None:
    _, convert = action_converter(spaces.Box(0, 255, (2,), np.uint8))
    converted = convert(np.array([[-1, 0.999]], np.float32))
    assert converted.tolist() == [[0, 255]] and converted.dtype == np.uint8


@given(arrays(np.float32, (2, 3), elements=st.floats(-10, 10, width=32)), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_converted_actions_are_always_in_the_space(action: Any, low: float, width: float) -> None:
    space = spaces.Box(np.float32(low), np.float32(low + width), (3,), np.float32)
    _, convert = action_converter(space)
    assert all(space.contains(row) for row in convert(action))
