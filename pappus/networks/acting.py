"""One step of a network, as actors and learners need it thousands of times a second.

Plain MLPs are computed in NumPy, without gradients (`arrays`) and with them (`array_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import optree
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pappus.networks.actor_critic import Output
from pappus.networks.array_gradient import ArrayMLP
from pappus.networks.arrays import ArrayStep, PolicyValue, array_step, flat_and_trunk, is_plain_mlp
from pappus.networks.body import Body
from pappus.networks.heads import PolicyValueHead, QHead
from pappus.networks.q_network import QOutput
from pappus.networks.torsos import ACTIVATIONS
from pappus.types import Nest

StepFunction: TypeAlias = Callable[[Nest, Tensor, Nest], Any]
"""(observation `[N, …]`, first `[N]`, state) → the network's output without its dimension of time."""


def single_step(network: nn.Module) -> StepFunction:
    """The fastest way to run `network` for one step; it follows the module's weights as long as they stay in place."""
    arrays = array_step(network)
    return module_step(network) if arrays is None else _tensors_around(arrays, module_step(network))


def learning_step(network: nn.Module) -> StepFunction:
    """The fastest way to run `network` for one step with gradients; its parameters must stay the same tensors."""
    if not is_plain_mlp(network):
        return module_step(network)
    head: nn.Module = cast(Any, network).head
    if isinstance(head, PolicyValueHead):
        return _gradient_step(network, _policy_value(head))
    assert isinstance(head, QHead)
    if head.hidden:
        return _stream_step(cast(Body, network), head, module_step(network))
    return _gradient_step(network, _action_values(head))


def module_step(network: nn.Module) -> StepFunction:
    """The network itself, for one step."""

    def step(observation: Nest, first: Tensor, state: Nest) -> Any:
        timed = optree.tree_map(lambda leaf: leaf.unsqueeze(0), observation)
        *values, state = output = network(timed, first.unsqueeze(0), state)
        return type(output)(*(value.squeeze(0) for value in values), state)

    return step


def _tensors_around(arrays: ArrayStep, otherwise: StepFunction) -> StepFunction:
    def step(observation: Nest, first: Tensor, state: Nest) -> Any:
        if not isinstance(observation, Tensor):
            return otherwise(observation, first, state)  # a mask came along
        output = arrays(observation.numpy())
        if isinstance(output, PolicyValue):
            return Output(torch.from_numpy(output.policy), torch.from_numpy(output.value), state)
        values = torch.from_numpy(output)
        return QOutput(values, values.unsqueeze(-1), state)

    return step


def learning_rows(network: nn.Module) -> Callable[[Nest], Tensor | None]:
    """What the last layer of a plain MLP says, `[N, …]` with gradients; None where torch must compute it."""
    head: Any = getattr(network, "head", None)
    if not is_plain_mlp(network) or (isinstance(head, QHead) and head.hidden):
        return lambda observation: None
    flat, trunk = flat_and_trunk(cast(Body, network))
    last = head.linear if isinstance(head, PolicyValueHead) else head.outputs[0]
    mlp = ArrayMLP([*cast("list[nn.Linear]", list(trunk.layers)), last], trunk.activation)

    def rows(observation: Nest) -> Tensor | None:
        if not isinstance(observation, Tensor) or torch.is_autocast_enabled("cpu"):
            return None  # a mask came along, or another precision is asked for
        x = observation.reshape(len(observation), -1).float()
        if flat.moments is not None:
            x = flat.moments(x)
        return mlp(x.numpy())

    return rows


def _gradient_step(network: nn.Module, outputs: Callable[[Tensor, Nest], Any]) -> StepFunction:
    rows_of, otherwise = learning_rows(network), module_step(network)

    def step(observation: Nest, first: Tensor, state: Nest) -> Any:
        rows = rows_of(observation)
        return otherwise(observation, first, state) if rows is None else outputs(rows, state)

    return step


def _policy_value(head: PolicyValueHead) -> Callable[[Tensor, Nest], Output]:
    policy_size, log_std = head.policy_size, head.log_std

    def outputs(both: Tensor, state: Nest) -> Output:
        policy = both[:, :policy_size]
        if log_std is not None:
            policy = torch.cat([policy, log_std.expand_as(policy)], 1)
        return Output(policy, both[:, policy_size], state)

    return outputs


def _action_values(head: QHead) -> Callable[[Tensor, Nest], QOutput]:
    dueling = head.mixing() if head.dueling else None

    def outputs(rows: Tensor, state: Nest) -> QOutput:
        q = rows if dueling is None else rows @ dueling
        return QOutput(q, q.unsqueeze(-1), state)

    return outputs


def _stream_step(network: Body, head: QHead, otherwise: StepFunction) -> StepFunction:
    """Of a network whose head has two layers beside each other, in as few operations as torch needs."""
    flat, trunk = flat_and_trunk(network)
    activation = ACTIVATIONS[trunk.activation]
    layers = [_parameters(layer) for layer in trunk.layers]
    hidden, last = ([_parameters(layer) for layer in part] for part in (head.hidden, head.outputs))
    outputs = _action_values(head)

    def step(observation: Nest, first: Tensor, state: Nest) -> Any:
        if not isinstance(observation, Tensor) or torch.is_autocast_enabled("cpu"):
            return otherwise(observation, first, state)
        x = observation.reshape(len(observation), -1).float()
        if flat.moments is not None:
            x = flat.moments(x)
        for weight, bias in layers:
            x = activation(F.linear(x, weight, bias))
        streams = [torch.relu(F.linear(x, weight, bias)) for weight, bias in hidden]
        parts = [F.linear(y, weight, bias) for y, (weight, bias) in zip(streams, last, strict=True)]
        return outputs(torch.cat(parts, 1), state)

    return step


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor]:
    linear = cast(nn.Linear, layer)
    return linear.weight, linear.bias
