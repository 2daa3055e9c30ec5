"""Running moments are those of all that was seen, and scale alike wherever the weights are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.networks.build import build_actor_critic, build_q_network
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import RunningMoments, merged, moments_of
from pappus.networks.steps import module_step, single_step
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec

ENV = EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(2))
SETTINGS = NetworkConfig(hidden_sizes=(8,), normalize=True)


def seen(rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator) * torch.tensor([0.1, 1.0, 50.0]) + torch.tensor([5.0, 0.0, -100.0])


def test_they_are_the_moments_of_all_that_was_seen() -> None:
    moments, parts = RunningMoments(3), [seen(7, 1), seen(100, 2), seen(1, 3)]
    for part in parts:
        moments.update(part)
    whole = torch.cat(parts)
    torch.testing.assert_close(moments.mean, whole.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moments.variance, whole.var(0, correction=0), rtol=1e-4, atol=1e-5)
    scaled = moments(whole)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)


def test_moments_of_parts_are_merged_to_those_of_the_whole() -> None:
    parts = [seen(7, 1), seen(0), seen(100, 2) + 1000.0]
    count, *rest = merged(torch.stack([moments_of(part) for part in parts])).float()
    whole = torch.cat(parts)
    assert count == 107
    torch.testing.assert_close(torch.stack(rest[:3]), whole.mean(0))
    torch.testing.assert_close(torch.stack(rest[3:]), whole.var(0, correction=0))


def test_a_batch_of_nothing_counts_nothing_in() -> None:
    moments = RunningMoments(3)
    moments.update(seen(0))
    assert moments.count == 0 and moments.variance.tolist() == [1.0] * 3
    moments.update(seen(5))
    before = moments.mean.clone()
    moments.update(seen(0))
    assert moments.count == 5 and torch.equal(moments.mean, before)


def test_before_anything_was_seen_nothing_changes_and_outliers_are_cut_off() -> None:
    moments = RunningMoments(3)
    x = torch.tensor([[1.0, -2.0, 1000.0]])
    assert moments(x).tolist() == [[1.0, -2.0, 10.0]]


def test_a_network_counts_what_it_observes_and_not_the_mask() -> None:
    env = EnvSpec({"a": ArraySpec((3,), "float32"), ACTION_MASK: ArraySpec((2,), "int8")}, DiscreteAction(2))
    network = build_actor_critic(env, SETTINGS)
    observation = {"a": seen(20).view(4, 5, 3), ACTION_MASK: torch.ones(4, 5, 2, dtype=torch.int8)}
    network.observe(observation, torch.zeros(4, 5, dtype=torch.bool), network.initial_state(5))
    [moments] = [module for module in network.modules() if isinstance(module, RunningMoments)]
    assert moments.count == 20
    torch.testing.assert_close(moments.mean, seen(20).mean(0), rtol=1e-4, atol=1e-4)


def test_they_travel_with_the_weights_and_every_way_of_acting_uses_them() -> None:
    learner, actor = build_actor_critic(ENV, SETTINGS), build_actor_critic(ENV, SETTINGS)
    here, there = FlatParameters(learner), FlatParameters(actor.requires_grad_(False))
    learner.observe(seen(50).view(5, 10, 3), torch.zeros(5, 10, dtype=torch.bool), ((), ()))
    there.values.copy_(here.values.detach())
    rows, first = seen(6, 9), torch.zeros(6, dtype=torch.bool)
    expected = module_step(learner)(rows, first, ((), ()))
    for step in (single_step(actor), single_step(learner, learns=True), module_step(actor)):
        found = step(rows, first, ((), ()))
        torch.testing.assert_close(found.policy, expected.policy, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.value, expected.value, rtol=1e-4, atol=1e-5)
    far = seen(6, 9) * 1e6
    assert np.isfinite(single_step(actor)(far, first, ((), ())).value.numpy()).all()


def test_they_are_not_trained() -> None:
    network = build_actor_critic(ENV, SETTINGS)
    flat = FlatParameters(network)
    assert flat.size == flat.num_parameters + 3 * 3 + 1


def test_action_values_from_replay_have_none() -> None:
    with pytest.raises(UserError, match=r"network\.normalize=True"):
        build_q_network(EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(2)), SETTINGS)
