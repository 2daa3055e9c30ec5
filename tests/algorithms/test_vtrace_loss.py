"""The loss as the paper writes it, and what must not matter to it."""

from __future__ import annotations

import math

import pytest
import torch

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Unroll

T, B = 4, 3
DISCRETE = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3))


def batch(env: EnvSpec = DISCRETE) -> Unroll:
    torch.manual_seed(0)
    shape = env.action.array.shape
    action = torch.randn(T, B, *shape) if isinstance(env.action, ContinuousAction) else torch.ones(T, B, *shape).long()
    valid = torch.ones(T, B, dtype=torch.bool)
    valid[2, 1] = False
    return Unroll(
        torch.randn(T + 1, B, 2), torch.zeros(T + 1, B, dtype=torch.bool), action, torch.randn(T, B), torch.ones(T, B),
        valid, {"log_prob": torch.full((T, B), math.log(1 / 3))}, torch.zeros(T, B), ((), ()),
    )


def test_the_loss_is_the_sum_of_its_three_parts() -> None:
    config = VTraceConfig(baseline_cost=0.3, entropy_cost=0.2)
    algorithm = VTrace(config, DISCRETE, NetworkConfig(hidden_sizes=(4,)))
    loss, scalars = algorithm.loss(algorithm.build_network(), batch())
    whole = scalars["policy_loss"] + 0.3 * scalars["value_loss"] - 0.2 * scalars["entropy"]
    assert torch.isclose(loss, whole) and 0 < scalars["entropy"] <= math.log(3) + 1e-6


def test_a_sum_is_the_mean_times_the_valid_steps() -> None:
    network = VTrace(VTraceConfig(), DISCRETE, NetworkConfig()).build_network()
    mean, _ = VTrace(VTraceConfig(), DISCRETE, NetworkConfig()).loss(network, batch())
    total, _ = VTrace(VTraceConfig(reduction="sum"), DISCRETE, NetworkConfig()).loss(network, batch())
    assert torch.isclose(total, mean * (T * B - 1), rtol=1e-4)


def test_what_stands_at_an_invalid_step_changes_nothing() -> None:
    algorithm = VTrace(VTraceConfig(), DISCRETE, NetworkConfig())
    network, clean, dirty = algorithm.build_network(), batch(), batch()
    dirty.reward[2, 1], dirty.discount[2, 1], dirty.behaviour["log_prob"][2, 1] = 1e6, 0.0, -50.0
    assert torch.equal(algorithm.loss(network, clean)[0], algorithm.loss(network, dirty)[0])


@pytest.mark.parametrize("action", [DiscreteAction(3), MultiDiscreteAction((3, 2)), ContinuousAction((2,))])
def test_every_weight_gets_a_gradient(action: DiscreteAction) -> None:
    env = EnvSpec(ArraySpec((2,), "float32"), action)
    algorithm = VTrace(VTraceConfig(), env, NetworkConfig(core="lstm"))
    network = algorithm.build_network()
    data = batch(env)._replace(state=((), (torch.zeros(B, 64), torch.zeros(B, 64))))
    algorithm.loss(network, data)[0].backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in network.parameters())
