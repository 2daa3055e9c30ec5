"""SAC finds the soft values of a small MDP: what a policy earns and its entropy, weighed by the temperature.

    start ──any action, reward 0──▶ slope ──action a, reward a──▶ end

    Q(start, a) = γ V(slope)        V(slope) = E_π[a] + α H(π)  ≤  α log ∫ exp(a / α) da = α log(2 α sinh(1 / α))
"""

from __future__ import annotations

import math

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


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_values_are_those_of_the_entropy_regularised_mdp(temperature: float) -> None:
    torch.manual_seed(0)
    algorithm = SAC(SACConfig(temperature=temperature), ENV, NetworkConfig(hidden_sizes=(32,)))
    network = algorithm.build_network()
    network.log_temperature.requires_grad_(False)  # it stays as it is
    optimizer = torch.optim.Adam([weight for weight in network.parameters() if weight.requires_grad], 0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 600)
    for update in range(600):
        optimizer.zero_grad()
        algorithm.loss(network, network, batch_of(128), torch.ones(128), update).loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        seen, drawn = network.see(torch.stack([START, SLOPE])), torch.rand(1_000, 1) * 2 - 1
        params = network.policy(seen)[1:]
        mean = algorithm.distribution.reparameterized(params.expand(100_000, -1))[0].mean()
        soft = float(mean + temperature * algorithm.distribution.entropy(params).item())
        found = network.q(network.see(START.expand(1_000, 2)), drawn)
        best = temperature * math.log(2 * temperature * math.sinh(1 / temperature))
        torch.testing.assert_close(found, torch.full_like(found, GAMMA * soft), atol=0.05, rtol=0.0)
        assert best - 0.05 < soft <= best + 0.01, "no policy earns more, and a squashed normal nearly as much"
