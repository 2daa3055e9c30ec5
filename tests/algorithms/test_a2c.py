"""The loss as the paper writes it, and what must not matter to it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pappus.algorithms.a2c import A2C, A2CConfig
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.ops.returns import n_step_returns
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Unroll

T, B = 5, 3
DISCRETE = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3))


def batch(env: EnvSpec = DISCRETE) -> Unroll:
    """Env 1 is truncated at t = 1 and starts anew at t = 3; env 2 terminates in its last step."""
    torch.manual_seed(0)
    shape = env.action.array.shape
    action = torch.randn(T, B, *shape) if isinstance(env.action, ContinuousAction) else torch.ones(T, B, *shape).long()
    valid, discount = torch.ones(T, B, dtype=torch.bool), torch.ones(T, B)
    first = torch.zeros(T + 1, B, dtype=torch.bool)
    valid[2, 1], first[3, 1], discount[4, 2] = False, True, 0.0
    return Unroll(
        torch.randn(T + 1, B, 2), first, action, torch.randn(T, B), discount, valid, {"log_prob": torch.zeros(T, B)},
        torch.zeros(T, B), ((), ()),
    )


def a2c(**settings: Any) -> A2C:
    return A2C(A2CConfig(**settings), DISCRETE, NetworkConfig(hidden_sizes=(4,)))


def test_the_loss_is_the_papers_sum_over_the_valid_steps() -> None:
    algorithm, data = a2c(reduction="sum", baseline_cost=0.3, entropy_cost=0.2, discount=0.9, reward_scale=0.5), batch()
    network: Any = algorithm.build_network()
    output = network(data.observation, data.first, data.state)
    value = output.value.detach()
    returns = n_step_returns(value, 0.5 * data.reward, 0.9 * data.discount, data.valid, n=T)
    whole = torch.zeros(())
    for t in range(T):
        for b in range(B):
            if data.valid[t, b]:
                log_probs = output.policy[t, b].log_softmax(-1)
                advantage = returns[t, b] - value[t, b]
                whole = whole - log_probs[data.action[t, b]] * advantage
                whole = whole + 0.3 * 0.5 * (returns[t, b] - output.value[t, b]) ** 2
                whole = whole + 0.2 * (log_probs.exp() * log_probs).sum()
    torch.testing.assert_close(algorithm.loss(network, data)[0], whole)


def test_a_truncated_episode_bootstraps_from_its_true_final_observation() -> None:
    algorithm, data = a2c(), batch()
    network, changed = algorithm.build_network(), batch()
    changed.observation[3:, 1] = 100.0  # the next episode
    by_env = torch.zeros(T, B, dtype=torch.bool)
    by_env[:2, 1] = True  # of which only the end of the first episode counts
    masked = [part._replace(valid=part.valid & by_env) for part in (data, changed)]
    assert torch.equal(*(algorithm.loss(network, part)[0] for part in masked))
    changed.observation[2, 1] = 100.0  # the final observation of the first
    assert not torch.equal(*(algorithm.loss(network, part)[0] for part in masked))


def test_on_policy_it_is_vtrace() -> None:
    data = batch()
    algorithm = a2c(gae_lambda=1.0)
    network: Any = algorithm.build_network()
    output = network(data.observation, data.first, data.state)
    said = algorithm.distribution.log_prob(output.policy[:-1], data.action).detach()
    vtrace = VTrace(VTraceConfig(), DISCRETE, NetworkConfig(hidden_sizes=(4,)))
    expected = vtrace.loss(network, data._replace(behaviour={"log_prob": said}))[0]
    torch.testing.assert_close(algorithm.loss(network, data)[0], expected)


def test_a_sum_is_the_mean_times_the_valid_steps() -> None:
    network = a2c().build_network()
    mean, total = (a2c(reduction=reduction).loss(network, batch())[0] for reduction in ("mean", "sum"))
    assert torch.isclose(total, mean * (T * B - 1), rtol=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
def test_what_stands_at_an_invalid_step_changes_nothing(normalize: bool) -> None:
    algorithm = a2c(normalize_advantage=normalize)
    network, dirty = algorithm.build_network(), batch()
    dirty.reward[2, 1], dirty.discount[2, 1], dirty.action[2, 1] = 1e6, 1.0, 2
    assert torch.equal(algorithm.loss(network, batch())[0], algorithm.loss(network, dirty)[0])


def test_normalised_advantages_do_not_know_the_scale_of_rewards() -> None:
    algorithm, data = a2c(normalize_advantage=True), batch()
    network: Any = algorithm.build_network()
    torch.nn.init.zeros_(network.head.linear.weight)  # values of 0, so that advantages scale with rewards
    torch.nn.init.zeros_(network.head.linear.bias)
    large = data._replace(reward=1000 * data.reward)
    small, big = (algorithm.loss(network, part)[1]["policy_loss"] for part in (data, large))
    torch.testing.assert_close(small, big)


@pytest.mark.parametrize("action", [DiscreteAction(3), MultiDiscreteAction((3, 2)), ContinuousAction((2,))])
def test_every_weight_gets_a_gradient(action: DiscreteAction) -> None:
    env = EnvSpec(ArraySpec((2,), "float32"), action)
    algorithm = A2C(A2CConfig(), env, NetworkConfig(core="lstm"))
    network = algorithm.build_network()
    data = batch(env)._replace(state=((), (torch.zeros(B, 64), torch.zeros(B, 64))))
    algorithm.loss(network, data)[0].backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in network.parameters())


def test_entropy_is_reported_as_it_is() -> None:
    algorithm = a2c()
    entropy = algorithm.loss(algorithm.build_network(), batch())[1]["entropy"]
    assert 0 < entropy <= math.log(3) + 1e-6


def test_a_lambda_beyond_one_is_refused() -> None:
    with pytest.raises(UserError, match=r"gae_lambda=1\.5 must lie between 0 and 1"):
        a2c(gae_lambda=1.5)
