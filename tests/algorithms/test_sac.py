"""SAC finds the soft values of a small MDP: what a policy earns and its entropy, weighed by the temperature.

    start ──any action, reward 0──▶ slope ──action a, reward a──▶ end

    Q(start, a) = γ V(slope)        V(slope) = E_π[a] + α H(π)  ≤  α log ∫ exp(a / α) da = α log(2 α sinh(1 / α))
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pappus.algorithms.sac import SAC, SACConfig
from pappus.config import NetworkConfig
from pappus.experience import Transition
from pappus.types import ArraySpec, ContinuousAction, EnvSpec

GAMMA = 0.9
ENV = EnvSpec(ArraySpec((2,), "float32"), ContinuousAction((1,)))
START, SLOPE = torch.eye(2)


def batch_of(rows: int) -> Transition:
    """Half of the transitions from each state, with actions drawn evenly."""
    slope = (torch.arange(rows) % 2).bool()
    action = torch.rand(rows, 1) * 2 - 1
    return Transition(
        torch.where(slope[:, None], SLOPE, START), action, torch.where(slope, action[:, 0], 0.0),
        torch.where(slope, 0.0, GAMMA), SLOPE.expand(rows, 2),
    )


def learnt(algorithm: SAC, network: Any, updates: int, slope_only: bool = False) -> None:
    """Train on half of the transitions from each state, or on those of the slope, with steps that get smaller."""
    optimizer = torch.optim.Adam([weight for weight in network.parameters() if weight.requires_grad], 0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, updates)
    for update in range(updates):
        optimizer.zero_grad()
        batch = batch_of(128)
        if slope_only:
            batch = Transition(*(leaf[1::2] for leaf in batch[:5]))
        algorithm.loss(network, network, batch, torch.ones(len(batch.reward)), update).loss.backward()
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_values_are_those_of_the_entropy_regularised_mdp(temperature: float) -> None:
    torch.manual_seed(0)
    algorithm = SAC(SACConfig(temperature=temperature), ENV, NetworkConfig(hidden_sizes=(32,)))
    network = algorithm.build_network()
    network.log_temperature.requires_grad_(False)  # it stays as it is
    learnt(algorithm, network, 600)
    with torch.no_grad():
        seen, drawn = network.see(torch.stack([START, SLOPE])), torch.rand(1_000, 1) * 2 - 1
        params = network.policy(seen)[1:]
        mean = algorithm.distribution.reparameterized(params.expand(100_000, -1))[0].mean()
        soft = float(mean + temperature * algorithm.distribution.entropy(params).item())
        found = network.q(network.see(START.expand(1_000, 2)), drawn)
        best = temperature * math.log(2 * temperature * math.sinh(1 / temperature))
        torch.testing.assert_close(found, torch.full_like(found, GAMMA * soft), atol=0.05, rtol=0.0)
        assert best - 0.05 < soft <= best + 0.01, "no policy earns more, and a squashed normal nearly as much"


def entropy_at(temperature: float) -> float:
    """Of the density exp(a / α) / Z on −1 … 1, which is the best policy on the slope: log Z − E[a] / α."""
    log_z = math.log(2 * temperature * math.sinh(1 / temperature))
    return log_z - (1 / math.tanh(1 / temperature) - temperature) / temperature


@pytest.mark.parametrize("target", [0.4, -0.2])
def test_the_temperature_settles_where_the_policy_has_the_target_entropy(target: float) -> None:
    torch.manual_seed(0)
    config = SACConfig(temperature=1.0, entropy_per_action=target)
    algorithm = SAC(config, ENV, NetworkConfig(hidden_sizes=(32,)))
    network = algorithm.build_network()
    learnt(algorithm, network, 400, slope_only=True)
    with torch.no_grad():
        entropy = float(algorithm.distribution.entropy(network.policy(network.see(SLOPE[None]))))
        temperature = float(network.log_temperature.exp())
    low, high = 0.01, 10.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if entropy_at(middle) > target else (middle, high)
    assert entropy == pytest.approx(target, abs=0.05)
    assert temperature == pytest.approx(low, rel=0.1), "a squashed normal is nearly the best density"
