"""One step of a network, as actors need it thousands of times a second.

For a small MLP the arithmetic is a fraction of what torch spends per operation, and NumPy's tanh is several times
faster: at 64 envs a 2×64 policy acts (sampling included) in 57 µs so and in 157 µs through the module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import optree
import torch
from torch import Tensor, nn

from pappus.networks.actor_critic import ActorCritic, Output
from pappus.networks.cores import NoCore
from pappus.networks.torsos import MLP, Encoder, Flat
from pappus.types import Array, Nest

StepFunction: TypeAlias = Callable[[Nest, Tensor, Nest], Output]
"""(observation `[N, …]`, first `[N]`, state) → Output with policy `[N, P]` and value `[N]`."""

ACTIVATIONS: dict[str, Callable[[Array], Any]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0.0, out=x),
}


def single_step(network: nn.Module) -> StepFunction:
    """The fastest way to run `network` for one step; it follows the module's weights as long as they stay in place."""
    if isinstance(network, ActorCritic) and _is_plain_mlp(network):
        return _numpy_step(network, _module_step(network))
    return _module_step(network)


def _module_step(network: nn.Module) -> StepFunction:
    def step(observation: Nest, first: Tensor, state: Nest) -> Output:
        timed = optree.tree_map(lambda leaf: leaf.unsqueeze(0), observation)
        policy, value, state = network(timed, first.unsqueeze(0), state)
        return Output(policy.squeeze(0), value.squeeze(0), state)

    return step


def _is_plain_mlp(network: ActorCritic) -> bool:
    torso = network.torso
    return (
        network.frame_stack is None
        and isinstance(network.core, NoCore)
        and isinstance(torso, Encoder)
        and len(torso.torsos) == 1
        and isinstance(torso.torsos[0], Flat)
        and torso.torsos[0].scale is None
        and isinstance(torso.trunk, MLP)
        and torso.trunk.activation in ACTIVATIONS
        and all(weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in network.parameters())
    )


def _numpy_step(network: ActorCritic, otherwise: StepFunction) -> StepFunction:
    trunk, head = cast(MLP, cast(Encoder, network.torso).trunk), network.head
    layers = [_views(cast(nn.Linear, layer)) for layer in trunk.layers]
    head_weight, head_bias = _views(head.linear)
    log_std = None if head.log_std is None else head.log_std.detach().numpy()
    activation, policy_size = ACTIVATIONS[trunk.activation], head.policy_size

    def step(observation: Nest, first: Tensor, state: Nest) -> Output:
        if not isinstance(observation, Tensor):
            return otherwise(observation, first, state)  # a mask came along
        x: Array = observation.numpy()
        x = x.reshape(len(x), -1).astype(np.float32, copy=False)
        for weight, bias in layers:
            x = x @ weight
            x += bias
            activation(x)
        both = x @ head_weight
        both += head_bias
        policy = both[:, :policy_size]
        if log_std is not None:
            policy = np.concatenate([policy, np.broadcast_to(log_std, policy.shape)], 1)
        return Output(torch.from_numpy(policy), torch.from_numpy(both[:, policy_size]), state)

    return step


def _views(layer: nn.Linear) -> tuple[Array, Array]:
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()
