"""What an env cannot have shown is refused, and the sentence says what it was."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from pappus.envs.spaces import observation_converter
from pappus.transports.codec import Tensor
from pappus.transports.plausible import FLOOR, LARGEST, WARM_UP, Part, Plausibility
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Request, map_leaves, request_spec


def part(space: gym.Space[Any], factor: float = 0.0) -> Part:
    spec, _ = observation_converter(space, DiscreteAction(2))
    return Part(Tensor("part", spec.shape, spec.dtype), spec, factor)


def admits(space: gym.Space[Any], value: Any, dtype: str = "float32") -> bool:
    """Whether two envs may show a value."""
    shape = (2, *(space.shape or ()))
    leaf = np.array(np.broadcast_to(np.array(value, dtype), shape))
    judged = part(space)
    admitted = judged.admits(leaf)
    assert admitted or "part" in judged.complaint(leaf)
    return admitted


OPEN = spaces.Box(-np.inf, np.inf, (3,))


@pytest.mark.parametrize("value", [0.9e15, -0.9e15, np.nan, np.inf, -np.inf, 2 * LARGEST])
def test_numbers_that_would_make_a_gradient_overflow_are_refused(value: float) -> None:
    assert not admits(OPEN, value)
    assert not admits(OPEN, [0, value, 0]), "one of them is enough"
    assert not admits(spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (3,)), value)
    assert admits(OPEN, LARGEST) and admits(OPEN, -1e6)


def test_bounds_of_the_env_hold_with_room_for_envs_that_overshoot() -> None:
    box = spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf]))
    assert admits(box, [1, 1e6]) and admits(box, [3, 0]) and not admits(box, [3.1, 0]) and not admits(box, [-3.1, 0])
    assert not admits(box, [0, -0.1]), "a bound on one side has no width"


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers_have_a_range(dtype: str) -> None:
    about = np.iinfo(dtype)
    wide = spaces.Box(about.min, about.max, (3,), dtype)  # type: ignore[arg-type]
    assert not admits(wide, about.max, dtype) and not admits(wide, about.min, dtype) and admits(wide, 10**6, dtype)
    narrow = spaces.Box(0, 5, (3,), dtype)  # type: ignore[arg-type]
    assert admits(narrow, 5, dtype) and not admits(narrow, 6, dtype) and not admits(narrow, -1, dtype)


def test_categories_are_those_that_there_are() -> None:
    assert admits(spaces.Discrete(3), 2, "int64") and not admits(spaces.Discrete(3), 3, "int64")
    assert not admits(spaces.Discrete(3), -1, "int64")
    several = spaces.MultiDiscrete([2, 5])
    assert admits(several, [1, 4], "int64") and not admits(several, [4, 1], "int64")


def test_pictures_of_bytes_are_not_looked_at() -> None:
    assert part(spaces.Box(0, 255, (84, 84), np.uint8))._free
    assert not admits(spaces.Box(0, 9, (2, 2), np.uint8), 10, "uint8")


def test_after_a_while_what_is_far_beyond_the_usual_is_refused() -> None:
    judged = part(OPEN, factor=1000.0)
    usual, large = np.full((2, 3), 5.0, np.float32), np.full((2, 3), 1e6, np.float32)
    assert judged.admits(large), "at first nobody knows what is usual"
    assert all(judged.admits(usual) for _ in range(WARM_UP))
    assert not judged.admits(large) and "far beyond the usual" in judged.complaint(large)
    assert judged.admits(np.full((2, 3), FLOOR, np.float32)), "small numbers are never far beyond anything"


def test_one_client_among_several_does_not_change_what_is_usual() -> None:
    judged = part(OPEN, factor=1000.0)
    for _ in range(3 * WARM_UP):
        assert judged.admits(np.full((2, 3), 5.0, np.float32)) and judged.admits(np.full((2, 3), 6.0, np.float32))
        judged.admits(np.full((2, 3), 9e3, np.float32))
    assert not judged.admits(np.full((2, 3), 2e4, np.float32))


def test_an_env_of_large_numbers_is_usual_after_a_while() -> None:
    judged = part(OPEN, factor=1000.0)
    assert all(judged.admits(np.full((2, 3), 1e7 + i, np.float32)) for i in range(3 * WARM_UP))


def test_the_sentence_names_the_part_and_its_bounds() -> None:
    env = EnvSpec({"speed": ArraySpec((2,), "float32", bounds=((-1.0,), (1.0,)))}, DiscreteAction(2))
    request: Request = map_leaves(lambda leaf: np.zeros((4, *leaf.shape), leaf.dtype), request_spec(env))
    judge = Plausibility(request_spec(env), 1000.0)
    assert judge.complaint(request) == ""
    request.observation["speed"][3, 1] = 7
    assert judge.complaint(request).startswith("'observation/speed' holds 7, and from -3 to 3 is allowed; ")
