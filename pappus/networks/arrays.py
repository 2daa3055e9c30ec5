"""Plain MLPs in NumPy, for those who act thousands of times a second.

For a small MLP the arithmetic is a fraction of what torch spends per operation, and NumPy's tanh is several times
faster. Beside that, torch's code is so large that it drives the env's out of the caches: with 16 envs of CartPole, a
step of policy and env takes 66 µs without torch and 127 µs with it, and the env alone 44 or 66 µs of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import nn

from pappus.networks.actor_critic import ActorCritic
from pappus.networks.body import Body
from pappus.networks.cores import NoCore
from pappus.networks.heads import PolicyValueHead, QHead
from pappus.networks.moments import FARTHEST
from pappus.networks.q_network import QNetwork
from pappus.networks.torsos import MLP, Encoder, Flat
from pappus.types import Array

ArrayStep: TypeAlias = Callable[[Array], Any]
"""observation `[N, …]` → a `PolicyValue`, or action values `[N, A]`."""

ACTIVATIONS: dict[str, Callable[[Array], Any]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0.0, out=x),
}


class PolicyValue(NamedTuple):
    """Policy parameters `[N, P]` and values `[N]`."""

    policy: Array
    value: Array


def array_step(network: nn.Module) -> ArrayStep | None:
    """`network` for one step, if it is a plain MLP; it follows the module's weights as long as they stay in place."""
    if not is_plain_mlp(network):
        return None
    head: nn.Module = cast(Any, network).head
    if isinstance(head, PolicyValueHead):
        return _step(cast(Body, network), _policy_value(head))
    return _step(cast(Body, network), _action_values(cast(QHead, head)))


def is_plain_mlp(network: nn.Module) -> bool:
    """Whether it is a network of ours that sees vectors and remembers nothing, in float32 on the CPU."""
    if (type(network) is QNetwork and network.head.quantiles != 1) or type(network) not in (ActorCritic, QNetwork):
        return False
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


def flat_and_trunk(network: Body) -> tuple[Flat, MLP]:
    """The two parts of a plain MLP below its head."""
    torso = cast(Encoder, network.torso)
    return cast(Flat, torso.torsos[0]), cast(MLP, torso.trunk)


def array_input(network: Body) -> Callable[[Array], Array]:
    """What the first layer of a plain MLP sees of observations `[N, …]`, `[N, D]` float32."""
    flat, _ = flat_and_trunk(network)
    moments = flat.moments

    def seen(observation: Array) -> Array:
        x: Array = observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        if moments is None:
            return x
        scaled: Array = np.clip((x - moments.mean.numpy()) * moments.scale.numpy(), -FARTHEST, FARTHEST)
        return scaled

    return seen


def _step(network: Body, head: ArrayStep) -> ArrayStep:
    _, trunk = flat_and_trunk(network)
    seen = array_input(network)
    layers = [_views(cast(nn.Linear, layer)) for layer in trunk.layers]
    activation = ACTIVATIONS[trunk.activation]

    def step(observation: Array) -> Any:
        x = seen(observation)
        for weight, bias in layers:
            x = x.dot(weight)  # a third of a µs sooner than `@`
            x += bias
            activation(x)
        return head(x)

    return step


def _policy_value(head: PolicyValueHead) -> ArrayStep:
    weight, bias = _views(head.linear)
    log_std = None if head.log_std is None else head.log_std.detach().numpy()
    size = head.policy_size

    def outputs(x: Array) -> PolicyValue:
        both = x.dot(weight)
        both += bias
        policy = both[:, :size]
        if log_std is not None:
            policy = np.concatenate([policy, np.broadcast_to(log_std, policy.shape)], 1)
        return PolicyValue(policy, both[:, size])

    return outputs


def _action_values(head: QHead) -> ArrayStep:
    hidden = [_views(cast(nn.Linear, layer)) for layer in head.hidden]
    layers = [_views(cast(nn.Linear, layer)) for layer in head.outputs]
    dueling = head.mixing().numpy() if head.dueling else None

    def outputs(x: Array) -> Array:
        streams = [np.maximum(x @ weight + bias, 0.0) for weight, bias in hidden] or [x]
        parts = [y @ weight + bias for y, (weight, bias) in zip(streams, layers, strict=True)]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
        return rows if dueling is None else rows @ dueling

    return outputs


def _views(layer: nn.Linear) -> tuple[Array, Array]:
    return layer.weight.detach().numpy().T, layer.bias.detach().numpy()
