"""IQL's and AWAC's losses against what the papers write down, for continuous and discrete actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.awac import AWAC, AWACConfig
from pappus.algorithms.iql import IQL, IQLConfig, expectile_loss
from pappus.algorithms.policy_critics import advantage_weights
from pappus.errors import UserError
from pappus.networks.steps import single_step
from pappus.types import EnvSpec
from tests.algorithms.continuous_tools import DISCRETE, ENV, B, gradient, made


def log_prob(network: Any, batch: Any, env: EnvSpec) -> torch.Tensor:
    """Of the data's actions, literally."""
    params = network.policy(network.see(batch.observation))
    if env is DISCRETE:
        return torch.distributions.Categorical(logits=params).log_prob(batch.action)
    mean, log_std = params.chunk(2, -1)
    return torch.distributions.Normal(mean, log_std.exp()).log_prob(batch.action).sum(-1)


def judged(network: Any, batch: Any, action: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = network.q(network.see(batch.observation), action).min(0).values
    return found


@pytest.mark.parametrize("env", [ENV, DISCRETE], ids=["continuous", "discrete"])
def test_the_three_losses_of_iql_are_those_of_the_paper(env: EnvSpec) -> None:
    algorithm, network, target, batch = made(IQL, IQLConfig(expectile=0.8, beta=2.0, largest_weight=1.2), env)
    weight = torch.rand(B)
    found = algorithm.loss(network, target, batch, weight, 0)
    value = network.value(network.see(batch.observation))
    u = (judged(target, batch, batch.action) - value).detach()
    squared = torch.stack([(0.8 if u[i] > 0 else 0.2) * (u[i] + value[i].detach() - value[i]) ** 2 for i in range(B)])
    goal = batch.reward + batch.discount * network.value(network.see(batch.next_observation)).detach()
    errors = network.q(network.see(batch.observation), batch.action) - goal
    clones = -torch.tensor([min(math.exp(2 * float(x)), 1.2) for x in u]) * log_prob(network, batch, env)
    losses = {"judge": (weight * squared).mean(), "critics": (weight * errors**2).mean(-1).sum()}
    losses["actor"] = (weight * clones).mean()
    torch.testing.assert_close(found.loss, sum(losses.values()))
    for part, loss in losses.items():
        module = getattr(network, part)
        torch.testing.assert_close(gradient(found.loss, module), gradient(loss, module))


def test_an_expectile_of_a_half_is_the_mean_and_a_large_one_nears_the_maximum() -> None:
    sample = torch.tensor([0.0, 1.0, 2.0, 9.0], dtype=torch.float64)
    guesses = torch.linspace(0, 9, 9001, dtype=torch.float64)

    def expectile(tau: float) -> float:
        losses = expectile_loss(sample[:, None] - guesses, tau).sum(0)
        return float(guesses[losses.argmin()])

    assert expectile(0.5) == pytest.approx(3.0, abs=1e-3) and expectile(0.999) > 8.9
    assert expectile(0.5) < expectile(0.7) < expectile(0.9)


def test_better_actions_weigh_more_up_to_a_bound() -> None:
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 5.0]), 3.0, 100.0)
    torch.testing.assert_close(weights, torch.tensor([math.exp(-3), 1.0, math.exp(3), 100.0]))


def test_without_a_preference_the_policy_clones_the_behaviour() -> None:
    algorithm, network, target, batch = made(IQL, IQLConfig(beta=0.0))
    found = gradient(algorithm.loss(network, target, batch, torch.ones(B), 0).loss, network.actor)
    torch.testing.assert_close(found, gradient(-log_prob(network, batch, ENV).mean(), network.actor))


@pytest.mark.parametrize("env", [ENV, DISCRETE], ids=["continuous", "discrete"])
def test_awac_weighs_actions_by_how_much_better_than_the_policy_they_are(env: EnvSpec) -> None:
    algorithm, network, target, batch = made(AWAC, AWACConfig(awac_lambda=0.5), env)
    weight = torch.rand(B)
    torch.manual_seed(7)
    found = algorithm.loss(network, target, batch, weight, 0)
    torch.manual_seed(7)
    with torch.no_grad():
        later = network.policy(network.see(batch.next_observation))
        following, _ = algorithm.distribution.sample_with_log_prob(later)
        own, _ = algorithm.distribution.sample_with_log_prob(network.policy(network.see(batch.observation)))
        value = target.q(target.see(batch.next_observation), following).min(0).values
        goal = batch.reward + batch.discount * value
        share = ((judged(network, batch, batch.action) - judged(network, batch, own)) / 0.5).exp()
    errors = network.q(network.see(batch.observation), batch.action) - goal
    clones = -(weight * share * log_prob(network, batch, env)).mean()
    torch.testing.assert_close(found.loss, (weight * errors**2).mean(-1).sum() + clones)
    torch.testing.assert_close(gradient(found.loss, network.actor), gradient(clones, network.actor))
    torch.testing.assert_close(found.priority, errors.abs().mean(0).detach())


def test_actions_are_sampled_within_their_bounds_and_the_mode_without_a_generator() -> None:
    algorithm, network, _, batch = made(IQL, IQLConfig())
    step, first = single_step(network), torch.zeros(B, dtype=torch.bool)
    with torch.no_grad():
        network.log_std.fill_(1.5)
        action, said, _ = algorithm.act(step, batch.observation, first, (), torch.Generator().manual_seed(0))
        best, _, _ = algorithm.act(step, batch.observation, first, (), None)
        torch.testing.assert_close(best, network.actor(batch.observation)[0].tanh())
    assert action.shape == (B, 2) and action.abs().max() == 1 and said["log_prob"].shape == (B,)
    assert not algorithm.exploration(np.arange(3), 3, 0).any()


@pytest.mark.parametrize("config", [lambda: IQLConfig(expectile=1.0), lambda: IQLConfig(beta=-1.0), lambda: AWACConfig(
    awac_lambda=0.0), lambda: IQLConfig(target_share=0.0)])
def test_settings_that_cannot_work_are_refused(config: Any) -> None:
    with pytest.raises(UserError, match=r"algorithm\."):
        config()
