from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from pappus.judging.behaviour import cloned_log_prob
from pappus.judging.fitted_q import FittedQ, FQEConfig
from pappus.types import DiscreteAction
from tests.envs.random_mdp import RandomMDP, random_policy
from tests.judging.mdp_data import logged_of

GAMMA = 0.95
MDP = RandomMDP(states=4, actions=2, ends=0.1, horizon=30, seed=1)
POLICY, BEHAVIOUR = (random_policy(4, 2, 0.7, seed) for seed in (2, 3))
LOGGED = logged_of(MDP.play(BEHAVIOUR, 300, np.random.default_rng(0)), POLICY, BEHAVIOUR)
TWO = spaces.Discrete(2)


def tabular_q() -> np.ndarray:
    """The fixed point of fitted Q evaluation, iterated in a table."""
    state = LOGGED.feature.argmax(1)
    now, then = state[LOGGED.rows], state[LOGGED.rows + 1]
    goes_on = np.ones(len(now))
    goes_on[np.cumsum(LOGGED.lengths) - 1] = ~LOGGED.terminated
    q = np.zeros((4, 2))
    pair = 2 * now + LOGGED.action
    for _ in range(600):
        goal = LOGGED.reward + GAMMA * goes_on * (POLICY * q).sum(1)[then]
        q = (np.bincount(pair, goal, 8) / np.bincount(pair, minlength=8)).reshape(4, 2)
    return q


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_it_reaches_the_fixed_point_of_the_linear_system(hidden: tuple[int, ...]) -> None:
    config = FQEConfig(updates=50, hidden=hidden, ridge=1e-9)
    fitted = FittedQ(LOGGED, TWO, GAMMA, np.ones((1, 300)), 0, config)
    state, q = LOGGED.feature.argmax(1), tabular_q()
    assert fitted.q(0) == pytest.approx(q[state[LOGGED.rows], LOGGED.action], abs=1e-3)
    assert fitted.value(0) == pytest.approx((POLICY * q).sum(1)[state], abs=1e-3)
    start, left_out = fitted.mean_at_start()
    assert start == pytest.approx((POLICY * q).sum(1)[state[LOGGED.first_rows]].mean(), abs=1e-3)
    assert len(left_out) == 20 and 0 < left_out.std() < 0.2


def test_updates_alone_come_near_it() -> None:
    config = FQEConfig(updates=500, hidden=(), learning_rate=3e-2, target_share=0.3, ridge=1e9)
    fitted = FittedQ(LOGGED, TWO, GAMMA, np.ones((1, 300)), 0, config)
    assert fitted.value(0) == pytest.approx((POLICY * tabular_q()).sum(1)[LOGGED.feature.argmax(1)], abs=0.15)


def test_a_fit_does_not_know_episodes_without_weight() -> None:
    half = np.arange(300) < 150
    config = FQEConfig(updates=20, hidden=(), ridge=1e-9)
    both = FittedQ(LOGGED, TWO, GAMMA, np.stack([np.ones(300), half]), 0, config)
    part = logged_of(MDP.play(BEHAVIOUR, 300, np.random.default_rng(0)), POLICY, BEHAVIOUR)
    part = part._replace(reward=np.where(half[part.episode_of], part.reward, 1e6))
    spoilt = FittedQ(part, TWO, GAMMA, np.stack([np.ones(300), half]), 0, config)
    assert spoilt.value(1) == pytest.approx(both.value(1), abs=1.0)
    assert abs(spoilt.value(0) - both.value(0)).min() > 1e3


def test_continuous_actions_go_in_beside_the_observation() -> None:
    """One step, r = o + 2 a, and a policy that says 0.5."""
    random = np.random.default_rng(0)
    observation, action = random.normal(size=(400, 2, 1)), random.uniform(-1, 1, (400, 1))
    reward = observation[:, 0, 0] + 2 * action[:, 0]
    logged = LOGGED._replace(
        lengths=np.ones(400, np.int64), terminated=np.ones(400, bool), reward=reward,
        action=action.astype(np.float32), feature=observation.reshape(-1, 1).astype(np.float32), probabilities=None,
        proposed=np.full((800, 1, 1), 0.5, np.float32), log_prob=None,
    )
    fitted = FittedQ(logged, spaces.Box(-1, 1, (1,)), 0.9, np.ones((1, 400)), 0, FQEConfig(updates=20, hidden=()))
    assert fitted.mean_at_start()[0] == pytest.approx(observation[:, 0, 0].mean() + 1.0, abs=0.02)


def test_the_behaviour_is_cloned_where_it_was_not_recorded() -> None:
    known = np.log(BEHAVIOUR[LOGGED.feature.argmax(1)[LOGGED.rows], LOGGED.action])
    assert cloned_log_prob(LOGGED, DiscreteAction(2), seed=0) == pytest.approx(known, abs=0.15)
