"""DDPG's and TD3's losses against what the papers write down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.ddpg import DDPG, DDPGConfig, NoiseConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition
from pappus.networks.steps import single_step
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec

ENV = EnvSpec(ArraySpec((3,), "float32"), ContinuousAction((2,)))
SMALL = NetworkConfig(hidden_sizes=(8,))
B = 6


def made(**settings: Any) -> tuple[DDPG, Any, Any, Transition]:
    torch.manual_seed(0)
    algorithm = DDPG(DDPGConfig(**settings), ENV, SMALL)
    network: Any = algorithm.build_network()
    target: Any = algorithm.build_network().requires_grad_(False)
    batch = Transition(
        torch.randn(B, 3), torch.rand(B, 2) * 2 - 1, torch.randn(B), torch.tensor([0.9] * (B - 1) + [0.0]),
        torch.randn(B, 3),
    )
    return algorithm, network, target, batch


def q(network: Any, critic: int, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = network.judge(observation[None], action[None])[critic][0]
    return found


@pytest.mark.parametrize("twin", [False, True])
def test_critics_follow_the_smaller_of_the_targets_values(twin: bool) -> None:
    algorithm, network, target, batch = made(twin=twin, policy_delay=2)
    weight = torch.rand(B)
    learned = algorithm.loss(network, target, batch, weight, update=1)
    critics = range(2 if twin else 1)
    later = target.policy(batch.next_observation[None])[0]
    value = torch.stack([q(target, i, batch.next_observation, later) for i in critics]).min(0).values
    goal = batch.reward + batch.discount * value
    errors = [goal - q(network, i, batch.observation, batch.action) for i in critics]
    assert goal[-1] == batch.reward[-1], "nothing follows a termination"
    assert torch.allclose(learned.loss, sum((weight * error**2).mean() for error in errors))
    assert torch.allclose(learned.priority, sum(error.abs() for error in errors) / len(errors))


def test_the_policy_climbs_the_first_critic_and_teaches_the_critics_nothing() -> None:
    algorithm, network, target, batch = made()
    critics_only = algorithm.loss(network, target, batch, torch.zeros(B), update=0).loss
    critics_only.backward()
    gradient = [parameter.grad.clone() for parameter in network.actor.parameters()]
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in network.critics.parameters()
    ), "all weights are 0, so only the policy has something to learn"
    network.zero_grad()
    (-q(network, 0, batch.observation, network.policy(batch.observation[None])[0]).mean()).backward()
    for parameter, found in zip(network.actor.parameters(), gradient, strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, found, atol=1e-6)


def test_the_second_critic_is_not_asked_what_the_policy_should_do() -> None:
    algorithm, network, target, batch = made(twin=True)
    asked: list[Any] = []
    network.critics[1].register_forward_hook(lambda _, inputs, output: asked.append(len(output)))
    algorithm.loss(network, target, batch, torch.ones(B), update=0)
    assert asked == [2], "both learn from the batch, in one pass, and the policy follows the first"


def test_the_slope_of_values_is_clipped_where_the_paper_clips_it() -> None:
    algorithm, network, target, batch = made(action_gradient_clip=1e-3)
    algorithm.loss(network, target, batch, torch.zeros(B), update=0).loss.backward()
    clipped = torch.cat([parameter.grad.flatten() for parameter in network.actor.parameters()])
    plain = DDPG(DDPGConfig(), ENV, SMALL)
    network.zero_grad()
    plain.loss(network, target, batch, torch.zeros(B), update=0).loss.backward()
    free = torch.cat([parameter.grad.flatten() for parameter in network.actor.parameters()])
    assert clipped.norm() < 0.1 * free.norm()


def test_between_its_turns_the_policy_has_no_loss() -> None:
    algorithm, network, target, batch = made(policy_delay=2)
    algorithm.loss(network, target, batch, torch.ones(B), update=1).loss.backward()
    assert all(parameter.grad is None for parameter in network.actor.parameters())
    assert algorithm.part_delays == (2, 1) and sum(network.part_sizes) == sum(p.numel() for p in network.parameters())


def test_smoothing_moves_the_targets_action_within_its_bounds() -> None:
    algorithm, network, target, batch = made(smoothing=10.0, smoothing_clip=0.25)
    seen: list[torch.Tensor] = []
    judge = target.judge
    target.judge = lambda observation, action: (seen.append(action), judge(observation, action))[1]
    algorithm.loss(network, target, batch, torch.ones(B), update=0)
    moved = (seen[0] - target.policy(batch.next_observation[None])).abs()
    assert moved.max() <= 0.25 + 1e-6 and moved.max() > 0.2 and seen[0].abs().max() <= 1


def test_noise_is_added_to_actions_and_values_are_of_what_is_done() -> None:
    algorithm, network, _, batch = made(noise=NoiseConfig(sigma=0.5, ladder=0.0))
    sigma = torch.from_numpy(algorithm.exploration(np.arange(B), B, 0))
    assert sigma[0] == 0.5 and sigma[-1] == 0
    with torch.no_grad():
        action, said, _ = algorithm.act(
            single_step(network), batch.observation, torch.zeros(B, dtype=torch.bool), (),
            torch.Generator().manual_seed(1), sigma,
        )
        best = network.policy(batch.observation[None])[0]
        assert torch.equal(action[-1], best[-1]) and not torch.equal(action[0], best[0])
        assert torch.allclose(said["q"], q(network, 0, batch.observation, action))
        assert torch.allclose(said["value"], q(network, 0, batch.observation, best))


@pytest.mark.parametrize(("spread", "sigmas"), [("geometric", [0.8, 0.4, 0.2]), ("even", [0.8, 0.5, 0.2])])
def test_noise_falls_from_the_first_env_to_the_last(spread: Any, sigmas: list[float]) -> None:
    algorithm, *_ = made(noise=NoiseConfig(sigma=0.8, ladder=0.25, spread=spread))
    np.testing.assert_allclose(algorithm.exploration(np.arange(3), 3, 0), sigmas, rtol=1e-6)
    np.testing.assert_allclose(algorithm.exploration(np.array([2]), 3, 0), sigmas[-1:], rtol=1e-6)  # another actor's
    np.testing.assert_allclose(algorithm.exploration(np.arange(1), 1, 0), sigmas[:1], rtol=1e-6)


def test_correlated_noise_goes_on_within_an_episode_and_begins_anew_with_the_next() -> None:
    algorithm, network, _, _ = made(noise=NoiseConfig("ou", sigma=0.1, theta=0.2))
    state = torch.full((2, 2), 1.0)
    with torch.no_grad():
        _, noise, later = algorithm._noise(
            torch.tensor([False, True]), state, torch.Generator().manual_seed(0), torch.zeros(2)
        )
    assert torch.equal(noise, torch.tensor([[0.8, 0.8], [0.0, 0.0]])) and torch.equal(later, noise)
    assert network.initial_state(3).shape == (3, 2)


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(UserError, match="needs continuous actions"):
        DDPG(DDPGConfig(), EnvSpec(ENV.observation, DiscreteAction(2)), SMALL)
