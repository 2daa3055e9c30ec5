"""TD3+BC's and ReBRAC's losses against what the papers write down, and their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pappus.algorithms.ddpg import DDPG, DDPGConfig
from pappus.algorithms.rebrac import ReBRAC, ReBRACConfig
from pappus.algorithms.td3_bc import TD3BC, TD3BCConfig
from pappus.errors import UserError
from tests.algorithms.continuous_tools import SMALL, B, gradient, made

STILL = {"smoothing": 0.0}
"""No noise on the target policy's actions."""


def test_the_policy_climbs_scaled_values_and_stays_near_the_data() -> None:
    algorithm, network, target, batch = made(TD3BC, TD3BCConfig(alpha=2.5, **STILL))
    found = gradient(algorithm.loss(network, target, batch, torch.ones(B), 0).loss, network.actor)
    seen = batch.observation[None]
    action = network.policy(seen)
    value = network.q(seen, action)
    scale = 2.5 / value.abs().mean().detach()
    literal = -scale * value.mean() + ((action[0] - batch.action) ** 2).mean()
    torch.testing.assert_close(found, gradient(literal, network.actor))


def test_without_values_it_clones_the_behaviour() -> None:
    algorithm, network, target, batch = made(TD3BC, TD3BCConfig(alpha=0.0, **STILL))
    found = gradient(algorithm.loss(network, target, batch, torch.ones(B), 0).loss, network.actor)
    cloned = ((network.policy(batch.observation[None])[0] - batch.action) ** 2).mean()
    torch.testing.assert_close(found, gradient(cloned, network.actor))


def test_with_values_alone_it_is_td3() -> None:
    config = TD3BCConfig(alpha=1e9, **STILL)
    algorithm, network, target, batch = made(TD3BC, config)
    found = gradient(algorithm.loss(network, target, batch, torch.ones(B), 0).loss, network.actor)
    plain = DDPG(DDPGConfig(twin=True, policy_delay=2), algorithm.env, SMALL)
    one = plain.loss(network, target, batch, torch.ones(B), 0)
    climbs = gradient(one.loss, network.actor)
    assert torch.cosine_similarity(found, climbs, 0) > 1 - 1e-6
    other = algorithm.loss(network, target, batch, torch.ones(B), 1)
    torch.testing.assert_close(other.loss, plain.loss(network, target, batch, torch.ones(B), 1).loss)
    torch.testing.assert_close(gradient(other.loss, network.critics), gradient(one.loss, network.critics))


def test_actions_beyond_the_bounds_count_as_envs_take_them() -> None:
    algorithm, network, target, batch = made(TD3BC, TD3BCConfig(**STILL))
    far, clipped = (batch._replace(action=(batch.action * 5).clamp(-bound, bound)) for bound in (9.0, 1.0))
    one, other = (algorithm.loss(network, target, items, torch.ones(B), 0).loss for items in (far, clipped))
    assert torch.equal(one, other)


def test_rebrac_pays_for_the_next_action_where_there_was_one() -> None:
    algorithm, network, target, batch = made(ReBRAC, ReBRACConfig(critic_penalty=0.5, **STILL))
    assert algorithm.experience.next_action
    following = torch.rand(B, 2)
    following[0] = torch.nan
    batch = batch._replace(next_action=following)
    weight = torch.rand(B)
    found = algorithm.loss(network, target, batch, weight, 1)
    later = target.policy(batch.next_observation[None])
    value = torch.stack(target.judge(batch.next_observation[None], later)).min(0).values[0]
    apart = [float(((later[0, i] - following[i]) ** 2).sum()) for i in range(1, B)]
    penalty = 0.5 * torch.tensor([0.0, *apart])
    goal = batch.reward + batch.discount * (value - penalty)
    errors = [goal - q[0] for q in network.judge(batch.observation[None], batch.action[None])]
    torch.testing.assert_close(found.loss, sum((weight * error**2).mean() for error in errors))


def test_rebracs_policy_climbs_the_smaller_value_and_pays_for_its_distance() -> None:
    config = ReBRACConfig(policy_penalty=0.3, **STILL)
    algorithm, network, target, batch = made(ReBRAC, config, network=replace(SMALL, layer_norm=True))
    batch = batch._replace(next_action=torch.rand(B, 2))
    found = gradient(algorithm.loss(network, target, batch, torch.ones(B), 0).loss, network.actor)
    seen = batch.observation[None]
    action = network.policy(seen)
    value = torch.stack(network.judge(seen, action)).min(0).values
    penalty = 0.3 * ((action[0] - batch.action) ** 2).sum(-1).mean()
    literal = -value.mean() / value.abs().mean().detach() + penalty
    torch.testing.assert_close(found, gradient(literal, network.actor))


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"policy_penalty": -1.0}, {"critic_penalty": -1.0}])
def test_weights_are_not_negative(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="must not be negative"):
        ReBRACConfig(**wrong)
