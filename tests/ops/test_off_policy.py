from __future__ import annotations

import numpy as np
import pytest

from pappus.ops.bootstrap import episode_interval, jackknife_interval, studentised, t_quantile
from pappus.ops.off_policy import (
    LinearSystem,
    Sums,
    discounted_returns,
    doubly_robust,
    importance_sampling,
    importance_weights,
    padded,
    weighted_doubly_robust,
    weighted_importance_sampling,
)
from pappus.types import Array
from tests.envs.random_mdp import Played, RandomMDP, random_policy

GAMMA = 0.9
MDP = RandomMDP(states=4, actions=2, ends=0.2, horizon=60, seed=1)
POLICY, BEHAVIOUR = (random_policy(4, 2, 0.5, seed) for seed in (2, 3))


def log_ratio(played: Played, policy: Array = POLICY, behaviour: Array = BEHAVIOUR) -> Array:
    seen = played.state[:-1], played.action
    happened = np.arange(len(played.reward))[:, None] < played.lengths
    return np.where(happened, np.log(policy[seen] / behaviour[seen]), 0.0)


def some(episodes: int = 20, seed: int = 0, by: Array = BEHAVIOUR) -> Played:
    return MDP.play(by, episodes, np.random.default_rng(seed))


def of_model(played: Played, q: Array, policy: Array = POLICY) -> tuple[Array, Array]:
    """Q(o_t, a_t) and V(o_t) of a table `[S, A]`, 0 after the end."""
    steps = np.arange(len(played.state))[:, None]
    value = np.where(steps < played.lengths + ~played.terminated, (policy * q).sum(1)[played.state], 0.0)
    return np.where(steps[:-1] < played.lengths, q[played.state[:-1], played.action], 0.0), value


def test_importance_sampling_is_the_literal_sum() -> None:
    played = some()
    rho = importance_weights(log_ratio(played), played.lengths).rho
    total = 0.0
    for e, length in enumerate(played.lengths):
        for t in range(length):
            weight = 1.0
            for k in range(t + 1):
                s, a = played.state[k, e], played.action[k, e]
                weight *= POLICY[s, a] / BEHAVIOUR[s, a]
            total += GAMMA**t * weight * played.reward[t, e]
    assert importance_sampling(rho, played.reward, GAMMA).estimate == pytest.approx(total / len(played.lengths))


def test_weighted_importance_sampling_is_the_literal_sum() -> None:
    played = some()
    rho = importance_weights(log_ratio(played), played.lengths).rho
    total = 0.0
    for t in range(len(rho)):
        weights = [rho[min(t, length - 1), e] for e, length in enumerate(played.lengths)]
        total += GAMMA**t * sum(w * r for w, r in zip(weights, played.reward[t], strict=True)) / sum(weights)
    assert weighted_importance_sampling(rho, played.reward, GAMMA).estimate == pytest.approx(total)


def test_doubly_robust_is_the_recursion_of_the_paper() -> None:
    played, q = some(), np.random.default_rng(5).normal(size=(4, 2))
    ratio = np.exp(log_ratio(played))
    rho = importance_weights(log_ratio(played), played.lengths).rho
    taken, value = of_model(played, q)
    total = 0.0
    for e, length in enumerate(played.lengths):
        later = value[length, e]
        for t in reversed(range(length)):
            later = value[t, e] + ratio[t, e] * (played.reward[t, e] + GAMMA * later - taken[t, e])
        total += later / len(played.lengths)
    assert doubly_robust(rho, played.reward, taken, value, GAMMA).estimate == pytest.approx(total)


def test_weighted_doubly_robust_is_the_literal_sum() -> None:
    played, q = some(), np.random.default_rng(5).normal(size=(4, 2))
    rho = importance_weights(log_ratio(played), played.lengths).rho
    taken, value = of_model(played, q)
    total = 0.0
    for t in range(len(value)):
        before = rho[t - 1] / rho[t - 1].sum() if t else np.full(len(played.lengths), 1 / len(played.lengths))
        total += GAMMA**t * (before * value[t]).sum()
        if t < len(rho):
            total += GAMMA**t * (rho[t] / rho[t].sum() * (played.reward[t] - taken[t])).sum()
    assert weighted_doubly_robust(rho, played.reward, taken, value, GAMMA).estimate == pytest.approx(total)


def test_on_policy_weights_are_one_and_the_estimate_is_the_mean_return_to_the_last_bit() -> None:
    played = some(by=POLICY)
    weights = importance_weights(log_ratio(played, POLICY, POLICY), played.lengths)
    assert (weights.rho == 1).all() and weights.effective == len(played.lengths)
    returns = discounted_returns(played.reward, GAMMA)
    assert importance_sampling(weights.rho, played.reward, GAMMA).estimate == returns.sum() / len(returns)


def test_a_perfect_model_leaves_doubly_robust_only_the_noise_of_starts() -> None:
    """Without noise in rewards and moves, not even that: every episode says the same."""
    chain = np.array([[1.0, 3.0], [2.0, 0.0]])  # two states that follow each other, then the end
    value = (POLICY[:2] * chain).sum(1)
    q = chain + GAMMA * np.array([value[1], 0.0])[:, None]
    action = np.random.default_rng(0).integers(0, 2, (2, 50))
    reward, states = chain[np.arange(2)[:, None], action], np.arange(2)[:, None]
    rho = np.cumprod(POLICY[states, action] / BEHAVIOUR[states, action], 0)
    worth = np.stack([np.full(50, (POLICY[s] * q[s]).sum()) for s in range(2)] + [np.zeros(50)])
    for method in (doubly_robust, weighted_doubly_robust):
        sums = method(rho, reward, q[states, action], worth, GAMMA)
        assert sums.estimate == pytest.approx((POLICY[0] * q[0]).sum())
        low, high = episode_interval(sums, 0.95, np.random.default_rng(1)) or (0, 1)
        assert high - low < 1e-9


@pytest.mark.parametrize("method", ["is", "wis", "dr", "wdr"])
def test_estimates_of_many_episodes_are_the_value_of_the_linear_system(method: str) -> None:
    played = some(4_000)
    rho = importance_weights(log_ratio(played), played.lengths).rho
    wrong_model = of_model(played, MDP.q(POLICY, GAMMA) + 0.3)
    sums = {
        "is": lambda: importance_sampling(rho, played.reward, GAMMA),
        "wis": lambda: weighted_importance_sampling(rho, played.reward, GAMMA),
        "dr": lambda: doubly_robust(rho, played.reward, *wrong_model, GAMMA),
        "wdr": lambda: weighted_doubly_robust(rho, played.reward, *wrong_model, GAMMA),
    }[method]()
    low, high = episode_interval(sums, 0.9999, np.random.default_rng(0)) or (0, 0)
    assert low < MDP.value(POLICY, GAMMA) < high < low + 1


def test_a_model_carries_doubly_robust_beyond_a_truncation() -> None:
    """Importance sampling counts only what was played; with the model, the estimate is that of going on."""
    cut = RandomMDP(states=4, actions=2, ends=0.2, horizon=3, seed=1)
    played = cut.play(BEHAVIOUR, 20_000, np.random.default_rng(0))
    rho = importance_weights(log_ratio(played), played.lengths).rho
    whole, within = cut.value(POLICY, GAMMA), cut.value(POLICY, GAMMA, steps=3)
    assert abs(whole - within) > 0.1
    assert importance_sampling(rho, played.reward, GAMMA).estimate == pytest.approx(within, abs=0.05)
    model = of_model(played, cut.q(POLICY, GAMMA))
    assert doubly_robust(rho, played.reward, *model, GAMMA).estimate == pytest.approx(whole, abs=0.05)


def test_groups_of_episodes_can_be_left_out_of_the_linear_system() -> None:
    random = np.random.default_rng(0)
    feature, later, reward = random.normal(size=(30, 3)), 0.1 * random.normal(size=(30, 3)), random.normal(size=30)
    starts = np.array([0, 10, 20])
    without = LinearSystem.of(feature, reward, later, starts).leaving_out()
    rest = LinearSystem.of(feature[10:], reward[10:], later[10:], np.array([0])).solve()
    assert without[0] == pytest.approx(rest)


def test_linear_fqe_is_the_value_of_the_mdp_that_the_data_counts() -> None:
    played = some(2_000)
    happened = np.arange(len(played.reward))[:, None] < played.lengths
    state, action, later = (part[happened] for part in (played.state[:-1], played.action, played.state[1:]))
    ended = (np.arange(len(played.reward))[:, None] == played.lengths - 1)[happened]
    feature = np.eye(8)[2 * state + action]
    then = np.kron(np.eye(4), np.ones(2))[later] * POLICY[later][:, [0, 1] * 4]
    follows = GAMMA * np.where(ended[:, None], 0.0, then)
    found = LinearSystem.of(feature, played.reward[happened], follows, np.array([0])).solve()
    literal = np.zeros(8)
    visits = feature.sum(0)
    for _ in range(300):  # fitted Q iteration: the mean goal of every state and action
        literal = feature.T @ (played.reward[happened] + follows @ literal) / visits
    assert found == pytest.approx(literal, abs=1e-5)
    assert found.reshape(4, 2) == pytest.approx(MDP.q(POLICY, GAMMA), abs=0.15)


def test_weights_are_cut_and_counted() -> None:
    weights = importance_weights(np.log([[4.0, 1.0], [4.0, 1.0]]), np.array([2, 1]), clip=10.0)
    assert weights.rho.tolist() == [[pytest.approx(4.0), 1.0], [pytest.approx(10.0), 1.0]]
    assert weights.clipped == pytest.approx(1 / 3) and weights.largest == pytest.approx(10.0)
    assert weights.effective == pytest.approx(11**2 / 101)


def test_an_action_that_the_policy_never_takes_has_no_weight() -> None:
    weights = importance_weights(np.array([[-np.inf, 0.0]]), np.array([1, 1]))
    assert weights.rho.tolist() == [[0.0, 1.0]] and weights.effective == 1.0
    assert importance_weights(np.array([[-np.inf]]), np.array([1])).effective == 0.0


def test_padded_puts_episodes_side_by_side() -> None:
    assert padded(np.arange(1.0, 6.0), np.array([2, 3])).tolist() == [[1, 3], [2, 4], [0, 5]]
    assert padded(np.arange(1.0, 4.0), np.array([0, 1]), 1).tolist() == [[1, 2], [0, 3]]


def test_the_interval_of_a_mean_is_the_normal_one_where_all_is_normal() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    sums = importance_sampling(np.ones((1, 400)), values[None], 1.0)
    low, high = episode_interval(sums, 0.9, np.random.default_rng(1)) or (0, 0)
    reach = 1.645 * values.std() / 20
    assert [low, high] == pytest.approx([values.mean() - reach, values.mean() + reach], abs=0.03)


def test_one_episode_has_no_interval_and_equal_ones_a_point() -> None:
    assert episode_interval(Sums(np.ones((1, 2)), lambda sums: sums[..., 0]), 0.9, np.random.default_rng(0)) is None
    equal = importance_sampling(np.ones((1, 5)), np.full((1, 5), 2.0), 1.0)
    assert episode_interval(equal, 0.9, np.random.default_rng(0)) == (2.0, 2.0)


def test_studentised_means_of_normal_values_have_the_quantiles_of_t() -> None:
    values = np.random.default_rng(0).normal(size=30)
    found = np.quantile(studentised(values, np.random.default_rng(1), 4_000), [0.05, 0.95])
    assert abs(found) == pytest.approx(t_quantile(0.95, 29), abs=0.3)


def test_the_interval_reaches_further_where_few_weights_are_large() -> None:
    values = np.exp(2 * np.random.default_rng(0).normal(size=200))
    sums = importance_sampling(np.ones((1, 200)), values[None], 1.0)
    low, high = episode_interval(sums, 0.9, np.random.default_rng(1)) or (0, 0)
    assert high - values.mean() > 1.05 * (values.mean() - low)


def test_students_t_is_that_of_the_tables() -> None:
    assert t_quantile(0.975, 19) == pytest.approx(2.0930, abs=1e-3)
    assert t_quantile(0.90, 9) == pytest.approx(1.3830, abs=1e-3)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=20)
    without = (values.sum() - values) / 19
    reach = t_quantile(0.95, 19) * values.std(ddof=1) / np.sqrt(20)
    found = jackknife_interval(values.mean(), without, 0.9)
    assert found == pytest.approx((values.mean() - reach, values.mean() + reach))


def test_intervals_cover_the_value_about_as_often_as_they_say() -> None:
    """benchmarks/off_policy_coverage.py measures this; here a hundred data sets, and what binomials allow."""
    value, hits = MDP.value(POLICY, GAMMA), {"is": 0, "wis": 0}
    for seed in range(100):
        played, random = some(60, seed), np.random.default_rng(seed)
        rho = importance_weights(log_ratio(played), played.lengths).rho
        for name, method in (("is", importance_sampling), ("wis", weighted_importance_sampling)):
            low, high = episode_interval(method(rho, played.reward, GAMMA), 0.9, random) or (0, 0)
            hits[name] += low <= value <= high
    assert all(82 <= count <= 98 for count in hits.values()), hits
