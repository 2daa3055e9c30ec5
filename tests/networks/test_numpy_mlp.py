"""NumPy computes what the module computes, outputs and gradients, for every plain MLP, and for nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pappus.config import NetworkConfig
from pappus.networks.build import build_actor_critic, build_q_network
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import MLP, ActorCritic, Encoder, NoCore, PolicyValueHead
from pappus.networks.numpy_mlp import NumpyMLP, numpy_mlp
from pappus.networks.q_networks import QNetwork
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction

STATE = ((), ())


@st.composite
def networks(draw: st.DrawFn) -> tuple[ActorCritic | QNetwork, tuple[int, ...]]:
    """Every kind of plain MLP, with random weights and biases; and the shape of what it sees."""
    shape = draw(st.sampled_from([(), (1,), (4,), (2, 3)]))
    observation = ArraySpec(shape, draw(st.sampled_from(["float32", "float64", "int64"])))
    config = NetworkConfig(
        hidden_sizes=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))),
        activation=draw(st.sampled_from(["relu", "tanh"])), deviation=draw(st.sampled_from(["free", "predicted"])),
        normalize=draw(st.booleans()),
    )
    torch.manual_seed(draw(st.integers(0, 999)))
    network = draw(st.sampled_from([policy_value, action_values]))(draw, observation, config)
    for weight in network.parameters():
        nn.init.normal_(weight)
    for name, buffer in network.named_buffers():
        if name.endswith(("mean", "scale")):
            nn.init.uniform_(buffer, 0.5, 2.0)
    return network, shape


def policy_value(draw: st.DrawFn, observation: ArraySpec, config: NetworkConfig) -> ActorCritic:
    kinds = [DiscreteAction(3), MultiDiscreteAction((2, 3)), ContinuousAction((2,)), ContinuousAction((2, 1))]
    return build_actor_critic(EnvSpec(observation, draw(st.sampled_from(kinds))), config)


def action_values(draw: st.DrawFn, observation: ArraySpec, config: NetworkConfig) -> QNetwork:
    plain = dataclasses.replace(config, normalize=False)
    env = EnvSpec(observation, DiscreteAction(draw(st.integers(1, 4))))
    return build_q_network(env, plain, draw(st.booleans()), draw(st.sampled_from([0, 1, 6])))


def rows(shape: tuple[int, ...], count: int, dtype: Any) -> Tensor:
    return (3 * torch.randn(count, *shape)).to(dtype)


def of_module(network: nn.Module, observation: Tensor) -> list[Tensor]:
    first = torch.zeros(1, len(observation), dtype=torch.bool)
    return [leaf[0] for leaf in network(observation[None], first, STATE)[:-1]]


def gradients(network: nn.Module, outputs: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    network.zero_grad()
    sum((a * b).sum() for a, b in zip(outputs, upstream, strict=True)).backward()  # type: ignore[union-attr]
    return [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in network.parameters()]


@settings(deadline=None, max_examples=150)
@given(networks(), st.integers(1, 7), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_outputs_and_gradients_are_the_modules(
    drawn: tuple[ActorCritic | QNetwork, tuple[int, ...]], count: int, dtype: Any
) -> None:
    network, shape = drawn
    mlp = numpy_mlp(network)
    assert mlp is not None
    observation = rows(shape, count, dtype)
    expected = of_module(network, observation)
    acted, learned = mlp(observation.numpy()), mlp.learn(observation.numpy(), STATE)
    for own, same, theirs in zip(acted[:-1], learned[:-1], expected, strict=True):
        np.testing.assert_allclose(own, theirs.detach(), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(own, same.detach(), rtol=1e-6, atol=1e-5)
    upstream = [torch.randn_like(leaf) for leaf in expected]
    own, theirs = (gradients(network, list(outputs), upstream) for outputs in (learned[:-1], expected))
    torch.testing.assert_close(own, theirs, rtol=1e-3, atol=2e-3)


def plain_network() -> ActorCritic:
    env = EnvSpec(ArraySpec((4,), "float32"), DiscreteAction(3))
    return build_actor_critic(env, NetworkConfig(hidden_sizes=(8, 8)))


def test_gradients_add_up_or_replace_the_old_ones() -> None:
    network = plain_network()
    FlatParameters(network).trainable()
    x, upstream = np.ones((5, 4), np.float32), np.ones((5, 4), np.float32)
    found = []
    for replaces in (False, True):
        mlp = numpy_mlp(network, replaces)
        assert mlp is not None
        for weight in network.parameters():
            assert weight.grad is not None
            weight.grad.fill_(1.0)
        mlp.forward(x)[1](upstream.copy())
        found.append([weight.grad.clone() for weight in network.parameters() if weight.grad is not None])
    for added, replaced in zip(*found, strict=True):
        torch.testing.assert_close(added - 1, replaced)


def test_parameters_that_move_between_the_two_passes_are_followed() -> None:
    network = plain_network()
    mlp, x = NumpyMLP(network), np.ones((5, 4), np.float32)
    _, backward = mlp.forward(x)
    flat = FlatParameters(network)
    flat.trainable()
    backward(np.ones((5, 4), np.float32))
    with torch.no_grad():
        flat.values.mul_(2)
    expected = of_module(network, torch.from_numpy(x))
    for _ in range(2):
        np.testing.assert_allclose(mlp.learn(x, ()).policy.detach(), expected[0].detach(), rtol=1e-4, atol=1e-5)


class OwnHead(PolicyValueHead):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        policy, value = super().forward(features)
        return policy / 2, value


class OwnCore(NoCore):
    def forward(self, x: Tensor, first: Tensor, state: Any) -> Any:
        return 2 * x, state


class OwnTrunk(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class OwnEncoder(Encoder):
    def forward(self, observation: Any) -> Tensor:
        return super().forward(observation) + 1


class OwnNetwork(ActorCritic):
    def features(self, *inputs: Any) -> Any:
        features, mask, state = super().features(*inputs)
        return features + 1, mask, state


def own(part: str) -> nn.Module:
    """A plain network of which one part has a forward pass of its own."""
    network = plain_network()
    torso: Any = network.torso
    match part:
        case "head":
            network.head = OwnHead(8, DiscreteAction(3))
        case "core":
            network.core = OwnCore(8)
        case "trunk":
            torso.trunk = OwnTrunk(4, (8, 8))
        case "encoder":
            network.torso = OwnEncoder(list(torso.torsos), torso.trunk)
        case "network":
            return OwnNetwork(network.torso, network.core, network.head)
        case "instance":
            network.forward = lambda *inputs: None  # type: ignore[assignment,method-assign,return-value]
        case "hook":
            network.head.register_forward_hook(lambda *_: None)
        case "layer":
            nn.utils.parametrizations.weight_norm(torso.trunk.layers[0])
    return network


@pytest.mark.parametrize("part", ["head", "core", "trunk", "encoder", "network", "instance", "hook", "layer"])
def test_a_network_with_a_part_of_its_own_is_not_computed_in_numpy(part: str) -> None:
    assert numpy_mlp(plain_network()) is not None and numpy_mlp(own(part)) is None
