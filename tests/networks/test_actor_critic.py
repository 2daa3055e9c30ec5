from __future__ import annotations

from itertools import product
from typing import Any, Literal

import optree
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pappus.config import NetworkConfig
from pappus.networks.build import build_actor_critic
from pappus.networks.modules import ActorCritic, Output
from pappus.ops.distributions import Categorical, distribution_for
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Nest

CoreName = Literal["none", "lstm", "gru"]

T, B = 6, 3
VECTOR = ArraySpec((4,), "float32")
NESTED = {"picture": ArraySpec((36, 40, 3), "uint8"), "kind": ArraySpec((), "int64", (5,)), "speed": VECTOR}


def build(env: EnvSpec, core: CoreName = "none") -> ActorCritic:
    torch.manual_seed(0)
    return build_actor_critic(env, NetworkConfig(hidden_sizes=(8,), core=core, core_size=7))


def observe(spec: Nest, *lead: int) -> Nest:
    """Random observations of this spec."""

    def leaf(spec: ArraySpec) -> Tensor:
        if spec.dtype == "float32":
            return torch.randn(*lead, *spec.shape)
        high = 128 if spec.num_values is None else min(spec.num_values)
        return torch.randint(0, high, (*lead, *spec.shape), dtype=getattr(torch, spec.dtype))

    return optree.tree_map(leaf, spec)


def step_by_step(network: ActorCritic, observation: Nest, first: Tensor, state: Nest) -> Output:
    outputs = []
    for t in range(first.shape[0]):
        now = slice(t, t + 1)
        output = network(optree.tree_map(lambda leaf, now=now: leaf[now], observation), first[now], state)
        state = output.state
        outputs.append(output)
    return Output(torch.cat([o.policy for o in outputs]), torch.cat([o.value for o in outputs]), state)


RESETS = st.integers(1, 7).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=B, max_size=B), min_size=length, max_size=length)
)


@pytest.mark.parametrize(("core", "frame_stack"), list(product(["none", "lstm", "gru"], [1, 4])))
@settings(max_examples=15, deadline=None)
@given(resets=RESETS, warm=st.booleans())
def test_stepping_one_by_one_equals_unrolling(
    core: CoreName, frame_stack: int, resets: list[list[bool]], warm: bool
) -> None:
    network = build(EnvSpec(VECTOR, DiscreteAction(3), frame_stack), core)
    first = torch.tensor(resets)
    observation = observe(VECTOR, len(resets), B)
    state = network.initial_state(B)
    if warm:
        state = network(observe(VECTOR, 2, B), torch.zeros(2, B, dtype=torch.bool), state).state
    with torch.no_grad():
        unrolled, stepped = network(observation, first, state), step_by_step(network, observation, first, state)
    for a, b in zip(optree.tree_leaves(unrolled), optree.tree_leaves(stepped), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("action", [DiscreteAction(3), MultiDiscreteAction((2, 3)), ContinuousAction((2, 2))], ids=str)
@pytest.mark.parametrize("observation", [VECTOR, NESTED], ids=["vector", "nested"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_outputs_are_float32_and_have_the_distributions_size(
    action: Any, observation: Nest, dtype: torch.dtype
) -> None:
    network = build(EnvSpec(observation, action, frame_stack=2), "lstm").to(dtype)
    first = torch.zeros(2, B, dtype=torch.bool)
    with torch.no_grad():
        output = network(observe(observation, 2, B), first, network.initial_state(B))
    assert output.policy.shape == (2, B, distribution_for(action).parameter_size)
    assert output.value.shape == (2, B)
    assert output.policy.dtype == output.value.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_state_keeps_the_shapes_and_dtypes_of_its_spec(dtype: torch.dtype) -> None:
    network = build(EnvSpec(NESTED, DiscreteAction(3), frame_stack=3), "lstm").to(dtype)
    initial = network.initial_state(B)
    with torch.no_grad():
        later = network(observe(NESTED, 2, B), torch.zeros(2, B, dtype=torch.bool), initial).state
    for state in (initial, later):
        assert optree.tree_structure(state) == optree.tree_structure(network.state_spec)
        for leaf, spec in zip(optree.tree_leaves(state), optree.tree_leaves(network.state_spec), strict=True):
            assert leaf.shape == (B, *spec.shape) and leaf.dtype == getattr(torch, spec.dtype)


def test_network_without_memory_has_an_empty_state() -> None:
    assert optree.tree_leaves(build(EnvSpec(VECTOR, DiscreteAction(2))).state_spec) == []


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradient_reaches_every_parameter(core: CoreName, autocast: bool) -> None:
    env = EnvSpec(NESTED, ContinuousAction((2,)), frame_stack=2)
    network = build(env, core)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = network(observe(NESTED, 2, B), torch.zeros(2, B, dtype=torch.bool), network.initial_state(B))
        log_prob = distribution_for(env.action).log_prob(output.policy, torch.ones(2, B, 2))
    (log_prob.sum() + output.value.sum()).backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_nothing_waits_for_values_so_that_a_cuda_graph_can_capture_it(core: CoreName) -> None:
    # Meta tensors have no values: whatever looks at one raises.
    spec = {"kind": NESTED["kind"], "speed": VECTOR, ACTION_MASK: ArraySpec((5,), "int8")}
    env = EnvSpec(spec, MultiDiscreteAction((2, 3)), frame_stack=3)
    network = build(env, core).to("meta")
    observation = optree.tree_map(lambda leaf: leaf.to("meta"), observe(spec, T, B))
    output = network(observation, torch.zeros(T, B, dtype=torch.bool, device="meta"), network.initial_state(B))
    action, log_prob = distribution_for(env.action).sample_with_log_prob(output.policy)
    assert action.shape == (T, B, 2) and log_prob.shape == (T, B)


def test_first_policy_is_nearly_uniform() -> None:
    network = build(EnvSpec(VECTOR, DiscreteAction(4)))
    policy = network(observe(VECTOR, T, B), torch.zeros(T, B, dtype=torch.bool), network.initial_state(B)).policy
    assert (Categorical(4).entropy(policy) > 0.999 * torch.tensor(4.0).log()).all()


def masked_env() -> EnvSpec:
    return EnvSpec({"x": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, DiscreteAction(3))


def test_masked_actions_have_no_probability() -> None:
    network = build(masked_env())
    mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(T, B, 3)
    observation = {"x": torch.randn(T, B, 4), ACTION_MASK: mask}
    output = network(observation, torch.zeros(T, B, dtype=torch.bool), network.initial_state(B))
    assert not output.policy.softmax(-1)[..., 1].any()
    assert torch.isfinite(output.policy).all()


def test_mask_does_not_enter_the_network_and_stays_in_the_observation() -> None:
    network = build(masked_env())
    x, first = torch.randn(T, B, 4), torch.zeros(T, B, dtype=torch.bool)
    masks = torch.ones(T, B, 3, dtype=torch.int8), torch.tensor([0, 1, 1], dtype=torch.int8).expand(T, B, 3)
    observations = [{"x": x, ACTION_MASK: mask} for mask in masks]
    open_, shut = (network(observation, first, network.initial_state(B)) for observation in observations)
    assert torch.equal(open_.value, shut.value)
    assert torch.equal(open_.policy[..., 1:], shut.policy[..., 1:])
    assert all(ACTION_MASK in observation for observation in observations)
