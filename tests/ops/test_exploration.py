from __future__ import annotations

import numpy as np
import pytest

from pappus.ops.exploration import ladder, linear


def test_the_ladder_is_that_of_apex() -> None:
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    assert ladder(np.arange(8), 8, 0.4, 7.0).tolist() == pytest.approx(expected)


def test_the_ladder_falls_from_base_to_base_to_the_power_of_one_plus_alpha() -> None:
    rungs = ladder(np.arange(256), 256, 0.4, 7.0)
    assert (np.diff(rungs) < 0).all()
    assert (rungs[0], rungs[-1]) == (pytest.approx(0.4), pytest.approx(0.4**8))


def test_a_lone_env_explores_most() -> None:
    assert ladder(np.arange(1), 1, 0.4, 7.0).tolist() == [0.4]


def test_actors_share_one_ladder() -> None:
    whole = ladder(np.arange(12), 12, 0.4, 7.0)
    assert np.array_equal(np.concatenate([ladder(i * 4 + np.arange(4), 12, 0.4, 7.0) for i in range(3)]), whole)


def test_linear_exploration_falls_evenly_and_then_stays() -> None:
    steps = (0, 25, 50, 100, 1000)
    assert [linear(step, 1.0, 0.2, 100) for step in steps] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_linear_exploration_over_no_steps_is_at_its_end_after_the_first() -> None:
    assert linear(1, 1.0, 0.05, 0) == 0.05
