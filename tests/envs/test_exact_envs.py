"""The closed forms are solutions, and the edge's episodes end where they should."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs.vector import make_env
from tests.envs.exact_envs import BANDIT, END, GAMMA, JUDGED, SLOPE, UNROLL, WALKS, World, lights

WORLDS = {**WALKS, **BANDIT, **SLOPE}


def value(world: World, state: str) -> float:
    if state == END:
        return 0.0
    best = 1.0 - max(JUDGED) if state in world.slopes else 0.0  # of all actions, and not of those that are judged
    return float(np.nanmax(world.values[state])) + best


@pytest.mark.parametrize("name", WORLDS)
def test_the_closed_forms_solve_bellmans_equation(name: str) -> None:
    world = WORLDS[name]
    for state, steps in world.steps.items():
        paid = np.array(JUDGED) if state in world.slopes else 0.0
        right = np.array([step.reward + GAMMA * value(world, step.to) for step in steps]) + paid
        found = np.array(world.values[state])
        assert (np.isclose(found, right) | np.isnan(found)).all(), state


@pytest.mark.parametrize("same_step", [False, True])
def test_the_edges_episodes_end_with_unrolls_and_not_where_they_begin(same_step: bool) -> None:
    options = EnvOptions(kwargs={"same_step": same_step})
    edge = list(WALKS).index("edge")
    with closing(make_env("tests.envs.exact_envs:walks", 2 * len(WALKS), 0, options)) as env:
        shown, first = [], []
        for _ in range(6 * UNROLL):
            timestep = env.step(np.zeros(env.num_envs, np.int64)) if shown else env.reset()
            shown.append(timestep.observation[edge].copy())
            first.append(timestep.first[[edge, edge + len(WALKS)]])
    begins = np.flatnonzero(np.array(first)[:, 0])
    assert len(begins) > 3 and not (begins % UNROLL).any()
    assert (np.flatnonzero(np.array(first)[1:, 1]) % UNROLL == 0).all(), "the second env is a step behind"
    start = lights(WALKS)["s"]
    assert all(not np.array_equal(shown[begin - 1], start) for begin in begins[1:])


def test_a_reset_pays_what_belongs_to_nobody_and_the_boundary_takes_it_away() -> None:
    with closing(make_env("tests.envs.exact_envs:walks", len(WALKS), 0, EnvOptions())) as env:
        env.reset()
        steps = [env.step(np.zeros(env.num_envs, np.int64)) for _ in range(20)]
    resets = np.array([~step.valid for step in steps])
    assert resets.any(0).all()
    assert not np.array([step.reward for step in steps])[resets].any()
