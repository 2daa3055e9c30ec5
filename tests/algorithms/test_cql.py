"""SAC's and CQL's losses against what the papers write down."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pappus.algorithms.cql import CQL, CQLConfig, conservative_gap
from pappus.algorithms.sac import SAC, SACConfig
from pappus.errors import UserError
from pappus.experience import Transition
from tests.algorithms.continuous_tools import DISCRETE, ENV, SMALL, B, gradient, made


def sac_parts(algorithm: SAC, network: Any, target: Any, batch: Any) -> dict[str, torch.Tensor]:
    """The losses of SAC as the paper writes them, with the random numbers in the order in which they are drawn."""
    seen, temperature = network.see(batch.observation), network.log_temperature.exp()
    with torch.no_grad():
        later = network.policy(network.see(batch.next_observation))
        following, chance = algorithm.distribution.reparameterized(later)
        value = target.q(target.see(batch.next_observation), following).min(0).values
        goal = batch.reward + batch.discount * (value - temperature * chance)
    errors = network.q(seen, batch.action) - goal
    action, log_prob = algorithm.distribution.reparameterized(network.policy(seen))
    return {
        "critics": (errors**2).mean(-1).sum(),
        "actor": (temperature.detach() * log_prob - network.q(seen, action).min(0).values).mean(),
        "temperature": -(network.log_temperature * (log_prob.detach() - 2)).mean(),
    }


def test_the_losses_of_sac_are_those_of_the_paper() -> None:
    algorithm, network, target, batch = made(SAC, SACConfig(temperature=0.3))
    torch.manual_seed(3)
    found = algorithm.loss(network, target, batch, torch.ones(B), 0).loss
    torch.manual_seed(3)
    literal = sac_parts(algorithm, network, target, batch)
    for part in ("critics", "actor"):
        module = getattr(network, part)
        torch.testing.assert_close(gradient(found, module), gradient(literal[part], module))
    (one,) = torch.autograd.grad(found, network.log_temperature)
    (other,) = torch.autograd.grad(literal["temperature"], network.log_temperature)
    torch.testing.assert_close(one, other)


def test_without_its_penalty_cql_is_sac() -> None:
    algorithm, network, target, batch = made(CQL, CQLConfig(alpha=0.0, entropy_backup=True))
    plain = SAC(SACConfig(), ENV, SMALL)
    losses = []
    for one in (algorithm, plain):
        torch.manual_seed(3)
        losses.append(one.loss(network, target, batch, torch.rand(B), 0).loss)
    assert torch.equal(*losses)


def test_the_gap_is_the_literal_logsumexp_of_importance_weighted_values() -> None:
    values, density, q = torch.randn(2, 4, 6), torch.randn(4, 6), torch.randn(2, 4)
    found = conservative_gap(values, density, q)
    for i in range(2):
        for b in range(4):
            total = sum(math.exp(float(values[i, b, n])) / math.exp(float(density[b, n])) for n in range(6)) / 6
            assert float(found[i, b]) == pytest.approx(math.log(total) - float(q[i, b]), abs=1e-4)


def test_samples_estimate_the_integral_of_all_actions_and_the_penalty_is_added_for_each_critic() -> None:
    """With μ the density of the samples, 1/N Σ exp(Q) / μ is an estimate of ∫ exp Q(o, a) da."""
    algorithm, network, target, batch = made(CQL, CQLConfig(alpha=2.0, action_samples=4000))
    weight = torch.ones(B)
    torch.manual_seed(3)
    found = algorithm.loss(network, target, batch, weight, 0)
    grid = (torch.arange(60) + 0.5) / 30 - 1
    actions = torch.cartesian_prod(grid, grid).expand(B, -1, -1)
    with torch.no_grad():
        seen = network.see(batch.observation)
        integral = network.q_of_many(seen, actions).exp().mean(-1) * 4
        gap = integral.log() - network.q(seen, batch.action)
    assert float(found.scalars["conservative_loss"]) == pytest.approx(2.0 * 2 * float(gap.mean()), abs=0.1)
    torch.manual_seed(3)
    half = CQL(CQLConfig(alpha=1.0, action_samples=4000), ENV, SMALL).loss(network, target, batch, weight, 0)
    torch.testing.assert_close(found.loss - half.loss, found.scalars["conservative_loss"] / 2)


def test_the_temperature_brings_the_entropy_to_its_target() -> None:
    algorithm, network, target, batch = made(SAC, SACConfig(temperature=0.02, entropy_per_action=-0.5))
    many = Transition(*(leaf.repeat(20, *[1] * (leaf.dim() - 1)) for leaf in batch[:5]))
    optimizer = torch.optim.Adam([*network.actor.parameters(), network.log_temperature], 0.01)
    entropies = []
    for update in range(200):
        found = algorithm.loss(network, target, many, torch.ones(20 * B), update)
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
        entropies.append(float(found.scalars["entropy"]))
    assert sum(entropies[-50:]) / 50 == pytest.approx(2 * -0.5, abs=0.2)


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(UserError, match="cql needs continuous actions"):
        CQL(CQLConfig(), DISCRETE, SMALL)
