"""Every system learns the values that theory says, on MDPs that tell the usual mistakes apart.

A mistake moves a value of its world by `ROOM` tolerances and more (`test_mistakes.py` makes each of them):

    chain    γ once too often or too seldom
    loop     truncation taken for termination; a row that only resets, trained on as an end
    edge     a bootstrap from the reset observation, or from none, where an episode and an unroll end together
    trap     the way from a final observation to the next episode trained on: its rewards reach the last one
    choice   a forbidden action taken, or bootstrapped from
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pappus.listing import pair_table
from tests.conformance.harness import TOLERANCE, Learnt, deviations, learn, report
from tests.conformance.systems import ROWS, courses_of

Lessons = Callable[[str, str], Learnt]

CASES = [(name, course) for name, row in ROWS.items() for course in courses_of(row)]
VALUES = [(name, course, world) for name, course in CASES for world in courses_of(ROWS[name])[course].worlds]


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Lessons:
    """What a row has learnt in a course: one run for all questions about it."""
    learnt: dict[tuple[str, str], Learnt] = {}

    def lesson(name: str, course: str) -> Learnt:
        if (name, course) not in learnt:
            run = tmp_path_factory.mktemp("runs") / "run"
            learnt[name, course] = learn(ROWS[name], courses_of(ROWS[name])[course], run)
        return learnt[name, course]

    return lesson


def test_every_supported_pair_has_a_row() -> None:
    supported = {entry for row in pair_table().values() for entry in row.values() if " " not in entry}
    assert {row.system for row in ROWS.values()} == supported, "add the pair to ROWS in conformance/systems.py"


def test_every_topology_and_every_learner_meets_both_ways_to_reset() -> None:
    met = [row for row in ROWS.values() if {"next-step", "same-step"} <= courses_of(row).keys()]
    online = [row for row in ROWS.values() if not row.offline]
    assert {row.carrier for row in met} == {row.carrier for row in online}
    assert {row.learner for row in met} == {row.learner for row in online}


@pytest.mark.parametrize(("name", "course", "world"), VALUES)
def test_values_are_those_of_the_closed_form(lessons: Lessons, name: str, course: str, world: str) -> None:
    learnt, exact = lessons(name, course), courses_of(ROWS[name])[course].worlds[world]
    assert max(deviations(learnt, exact).values()) < TOLERANCE, report(learnt, exact)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.continuous and not row.imitates])
def test_the_better_arm_is_chosen_where_it_is_allowed(lessons: Lessons, name: str) -> None:
    learnt = lessons(name, "choice")
    assert (learnt["open"].policy.argmax(-1) == 1).all()
    assert (learnt["shut"].policy.argmax(-1) == 0).all()
    assert (learnt["shut"].policy[:, 1] <= 0).all(), "the probability (or the value) of what is forbidden"


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.continuous])
def test_the_best_continuous_action_is_found(lessons: Lessons, name: str) -> None:
    assert np.allclose(lessons(name, "choice")["top"].policy, 1.0, atol=0.05)
