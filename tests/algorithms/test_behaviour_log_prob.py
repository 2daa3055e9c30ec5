"""Log-probabilities that follow from what policies say of their actions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pappus.algorithms.ddpg import DDPG, DDPGConfig, NoiseConfig
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.config import NetworkConfig
from pappus.networks.steps import single_step
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec


def test_an_epsilon_greedy_policy_takes_its_actions_as_often_as_it_says() -> None:
    seen = {"o": ArraySpec((2,), "float32"), ACTION_MASK: ArraySpec((5,), "int8")}
    algorithm = DQN(DQNConfig(), EnvSpec(seen, DiscreteAction(5)), NetworkConfig(hidden_sizes=(4,)))
    network, draws = algorithm.build_network(), 40_000
    mask = torch.tensor([1, 0, 1, 1, 0], dtype=torch.int8).expand(draws, 5)
    observation = {"o": torch.ones(draws, 2), ACTION_MASK: mask}
    with torch.no_grad():
        action, said, _ = algorithm.act(
            single_step(network), observation, torch.zeros(draws, dtype=torch.bool), network.initial_state(draws),
            torch.Generator().manual_seed(0), torch.full((draws,), 0.3),
        )
    behaviour = {name: leaf.numpy() for name, leaf in said.items()}
    log_prob = algorithm.behaviour_log_prob(behaviour, np.full(draws, 3))
    assert log_prob is not None
    found = {int(one): np.exp(log_prob[action == one][0]) for one in action.unique()}
    assert sum(found.values()) == pytest.approx(1.0)
    for one, probability in found.items():
        assert float((action == one).float().mean()) == pytest.approx(probability, abs=0.01)


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_noise_has_the_density_of_a_normal_distribution(kind: str) -> None:
    spec = EnvSpec(ArraySpec((3,), "float32"), ContinuousAction((2,)))
    config = DDPGConfig(noise=NoiseConfig(kind, sigma=0.2))  # type: ignore[arg-type]
    algorithm = DDPG(config, spec, NetworkConfig(hidden_sizes=(4,)))
    network, sigma = algorithm.build_network(), torch.tensor([0.2, 0.1])
    first, state = torch.tensor([True, True]), network.initial_state(2)  # type: ignore[operator]
    with torch.no_grad():
        for _ in range(2):
            mean = algorithm.act(single_step(network), torch.ones(2, 3), first, state, None)[0]
            kept = 0.0 if kind == "gaussian" or first.all() else 0.85 * state
            action, said, state = algorithm.act(
                single_step(network), torch.ones(2, 3), first, state, torch.Generator().manual_seed(0), sigma
            )
            first = ~first
            expected = torch.distributions.Normal(mean + kept, sigma[:, None]).log_prob(action).sum(-1)
            behaviour = {name: leaf.numpy() for name, leaf in said.items()}
            found = algorithm.behaviour_log_prob(behaviour, np.zeros(2))
            torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-3, atol=1e-3)


def test_an_action_without_noise_has_no_density() -> None:
    spec = EnvSpec(ArraySpec((3,), "float32"), ContinuousAction((2,)))
    algorithm = DDPG(DDPGConfig(noise=NoiseConfig(sigma=0.0)), spec, NetworkConfig(hidden_sizes=(4,)))
    zeros = {"sigma": np.zeros(2, np.float32), "noise": np.zeros((2, 2), np.float32)}
    assert algorithm.behaviour_log_prob(zeros, np.zeros(2)) is None
