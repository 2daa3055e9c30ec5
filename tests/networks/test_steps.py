"""Acting one step at a time gives what the module gives, whichever way it is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pappus.config import NetworkConfig
from pappus.networks.build import build_actor_critic, build_q_network
from pappus.networks.flat import FlatParameters
from pappus.networks.q_networks import QNetwork
from pappus.networks.steps import BatchForward, single_step
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction

VECTOR = ArraySpec((4,), "float32")
CASES: list[tuple[EnvSpec, dict[str, Any]]] = [
    (EnvSpec(VECTOR, DiscreteAction(3)), {}),
    (EnvSpec(VECTOR, DiscreteAction(3)), {"activation": "tanh"}),
    (EnvSpec(ArraySpec((2, 3), "float32"), MultiDiscreteAction((2, 3))), {}),
    (EnvSpec(VECTOR, ContinuousAction((2,))), {}),
    (EnvSpec(ArraySpec((5,), "uint8"), DiscreteAction(3)), {}),
    (EnvSpec(ArraySpec((5,), "int64"), DiscreteAction(3)), {}),
    (EnvSpec(VECTOR, DiscreteAction(3)), {"core": "lstm"}),
    (EnvSpec({"a": VECTOR, "b": ArraySpec((), "int64", (5,))}, DiscreteAction(3)), {}),
    (EnvSpec({"observation": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, DiscreteAction(3)), {}),
    (EnvSpec(ArraySpec((84, 84), "uint8"), DiscreteAction(3), frame_stack=4), {}),
]


def example(spec: Any, batch: int) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    return torch.rand(batch, *spec.shape) if dtype.is_floating_point else torch.ones(batch, *spec.shape, dtype=dtype)


@pytest.mark.parametrize(("env", "settings"), CASES, ids=[f"{c[0].action}-{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_a_single_step_equals_the_module(env: EnvSpec, settings: dict[str, Any]) -> None:
    import optree

    torch.manual_seed(0)
    network = build_actor_critic(env, NetworkConfig(hidden_sizes=(8, 8), **settings)).requires_grad_(False)
    observation = optree.tree_map(lambda spec: example(spec, 6), env.observation)
    first = torch.tensor([True, False] * 3)
    state = network.initial_state(6)
    step = single_step(network)(observation, first, state)
    whole = network(optree.tree_map(lambda leaf: leaf[None], observation), first[None], state)
    assert torch.allclose(step.policy, whole.policy[0], atol=1e-5)
    assert torch.allclose(step.value, whole.value[0], atol=1e-5)
    assert all(
        torch.allclose(a.float(), b.float(), atol=1e-6)
        for a, b in zip(optree.tree_leaves(step.state), optree.tree_leaves(whole.state), strict=True)
    )


def test_a_step_follows_weights_that_are_replaced_in_place() -> None:
    network = build_actor_critic(EnvSpec(VECTOR, DiscreteAction(3)), NetworkConfig()).requires_grad_(False)
    flat = FlatParameters(network)
    step = single_step(network)
    observation, first = torch.rand(6, 4), torch.zeros(6, dtype=torch.bool)
    flat.values.mul_(2)
    policy = network(observation[None], first[None], ((), ())).policy[0]
    assert torch.allclose(step(observation, first, ((), ())).policy, policy, atol=1e-5)


Q_CASES: list[tuple[EnvSpec, dict[str, Any]]] = [
    (EnvSpec(VECTOR, DiscreteAction(3)), {"dueling": False}),
    (EnvSpec(VECTOR, DiscreteAction(3)), {"dueling": True}),
    (EnvSpec(VECTOR, DiscreteAction(3)), {"dueling": False, "hidden": 6}),
    (EnvSpec(VECTOR, DiscreteAction(3)), {"dueling": True, "hidden": 6}),
    (EnvSpec(VECTOR, DiscreteAction(3)), {"quantiles": 4}),
    (EnvSpec({"observation": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, DiscreteAction(3)), {}),
]


def random_weights(network: torch.nn.Module) -> None:
    """Biases begin as zeros, which hides a bias that is left out."""
    for weight in network.parameters():
        torch.nn.init.normal_(weight)


@pytest.mark.parametrize(("env", "settings"), Q_CASES, ids=[f"{c[1]}-{i}" for i, c in enumerate(Q_CASES)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_single_step_of_action_values_equals_the_module(
    env: EnvSpec, settings: dict[str, Any], activation: Any
) -> None:
    import optree

    torch.manual_seed(0)
    network = build_q_network(env, NetworkConfig(hidden_sizes=(8, 8), activation=activation), **settings)
    random_weights(network.requires_grad_(False))
    observation = optree.tree_map(lambda spec: example(spec, 6), env.observation)
    if env.masked:
        observation[ACTION_MASK][2, 1] = 0
    first, state = torch.tensor([True, False] * 3), network.initial_state(6)
    step = single_step(network)(observation, first, state)
    whole = network(optree.tree_map(lambda leaf: leaf[None], observation), first[None], state)
    assert torch.allclose(step.q, whole.q[0], atol=1e-4, rtol=1e-4)
    assert torch.allclose(step.quantiles, whole.quantiles[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("env", "settings"), Q_CASES, ids=[f"{c[1]}-{i}" for i, c in enumerate(Q_CASES)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_learning_step_has_the_values_and_gradients_of_the_module(
    env: EnvSpec, settings: dict[str, Any], activation: Any
) -> None:
    import optree

    torch.manual_seed(0)
    network = build_q_network(env, NetworkConfig(hidden_sizes=(8, 8), activation=activation), **settings)
    random_weights(network)
    observation = optree.tree_map(lambda spec: example(spec, 6), env.observation)
    if env.masked:
        observation[ACTION_MASK][2, 1] = 0
    first, state = torch.tensor([True, False] * 3), network.initial_state(6)
    step = single_step(network, learns=True)(observation, first, state)
    whole = network(optree.tree_map(lambda leaf: leaf[None], observation), first[None], state)
    torch.testing.assert_close(step.q, whole.q[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(step.quantiles, whole.quantiles[0], atol=1e-4, rtol=1e-4)
    upstream = torch.randn_like(step.q)
    own = gradients(network, (step.q * upstream).sum())
    torch.testing.assert_close(own, gradients(network, (whole.q[0] * upstream).sum()), atol=1e-3, rtol=1e-4)


PLAIN = [case for case in CASES if "core" not in case[1]][:5]


@pytest.mark.parametrize(("env", "settings"), PLAIN, ids=[f"{c[0].action}-{c[1]}-{i}" for i, c in enumerate(PLAIN)])
@pytest.mark.parametrize("sizes", [(8,), (8, 7), (8, 7, 6)])
def test_a_learning_step_of_a_policy_has_the_gradients_of_the_module(
    env: EnvSpec, settings: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    network = build_actor_critic(env, NetworkConfig(hidden_sizes=sizes, **settings))
    random_weights(network)
    observation, first = example(env.observation, 6), torch.zeros(6, dtype=torch.bool)
    step = single_step(network, learns=True)(observation, first, ((), ()))
    whole = network(observation[None], first[None], ((), ()))
    torch.testing.assert_close((step.policy, step.value), (whole.policy[0], whole.value[0]), atol=1e-4, rtol=1e-4)
    upstream = torch.randn_like(step.policy)
    own = gradients(network, (step.policy * upstream).sum() + step.value.square().sum())
    theirs = gradients(network, (whole.policy[0] * upstream).sum() + whole.value.square().sum())
    torch.testing.assert_close(own, theirs, atol=1e-3, rtol=1e-4)


def gradients(network: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor | None]:
    network.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [None if weight.grad is None else weight.grad.clone() for weight in network.parameters()]


def test_gradients_of_two_batches_that_are_under_way_at_once_add_up() -> None:
    torch.manual_seed(0)
    network = build_actor_critic(EnvSpec(VECTOR, DiscreteAction(3)), NetworkConfig(hidden_sizes=(8, 8)))
    step, first = single_step(network, learns=True), torch.zeros(6, dtype=torch.bool)
    batches = [torch.rand(6, 4) for _ in range(2)]
    alone = [gradients(network, step(batch, first, ((), ())).value.sum()) for batch in batches]
    together = gradients(network, sum(step(batch, first, ((), ())).value.sum() for batch in batches))  # type: ignore[arg-type]
    network.zero_grad()
    for batch in batches:
        step(batch, first, ((), ())).value.sum().backward()
    one_by_one = [None if weight.grad is None else weight.grad for weight in network.parameters()]
    for total, again, *parts in zip(together, one_by_one, *alone, strict=True):
        assert total is not None and again is not None
        torch.testing.assert_close(total, parts[0] + parts[1])
        torch.testing.assert_close(again, total)


def test_a_learning_step_follows_weights_that_are_replaced_in_place() -> None:
    network = build_q_network(EnvSpec(ArraySpec((2, 3), "int64"), DiscreteAction(3)), NetworkConfig(), hidden=4)
    step, flat = single_step(network, learns=True), FlatParameters(network)
    observation, first = torch.ones(6, 2, 3, dtype=torch.int64), torch.zeros(6, dtype=torch.bool)
    with torch.no_grad():
        flat.values.copy_(torch.randn(flat.size, generator=torch.Generator().manual_seed(0)) / 4)
    expected = network(observation[None], first[None], ((), ())).q[0]
    torch.testing.assert_close(step(observation, first, ((), ())).q, expected, atol=1e-4, rtol=1e-4)


def test_a_network_with_a_forward_of_its_own_is_left_alone() -> None:
    class Own(QNetwork):
        def forward(self, *inputs: Any) -> Any:
            output = super().forward(*inputs)
            return output._replace(q=output.q + 1)

    plain = build_q_network(EnvSpec(VECTOR, DiscreteAction(3)), NetworkConfig())
    own = Own(plain.torso, plain.core, plain.head).requires_grad_(False)
    observation, first = torch.rand(6, 4), torch.zeros(6, dtype=torch.bool)
    for learns in (False, True):
        steps = [single_step(network, learns)(observation, first, ((), ())) for network in (own, plain)]
        difference = steps[0].q - steps[1].q
        torch.testing.assert_close(difference, torch.ones(6, 3))


def test_a_learning_step_keeps_to_the_precision_that_is_asked_for() -> None:
    network = build_q_network(EnvSpec(VECTOR, DiscreteAction(3)), NetworkConfig())
    observation, first = torch.rand(6, 4), torch.zeros(6, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        step = single_step(network, learns=True)(observation, first, ((), ()))
        whole = network(observation[None], first[None], ((), ()))
    assert torch.equal(step.q, whole.q[0])


def test_a_step_of_action_values_follows_weights_that_are_replaced_in_place() -> None:
    network = build_q_network(EnvSpec(VECTOR, DiscreteAction(3)), NetworkConfig(), hidden=4).requires_grad_(False)
    flat = FlatParameters(network)
    step = single_step(network)
    observation, first = torch.rand(6, 4), torch.zeros(6, dtype=torch.bool)
    flat.values.copy_(torch.randn(flat.size, generator=torch.Generator().manual_seed(0)) / 4)
    q = network(observation[None], first[None], ((), ())).q[0]
    assert torch.allclose(step(observation, first, ((), ())).q, q, atol=1e-4, rtol=1e-4)


def test_a_network_with_a_forward_pass_of_its_own_gets_frames_as_its_state() -> None:
    env = EnvSpec(ArraySpec((36, 36), "uint8"), DiscreteAction(3), 4)

    class Own(QNetwork):
        def forward(self, observation: Any, first: Any, state: Any) -> Any:
            assert self.frame_stack is not None and state[0] is not None
            self.stacks, _ = self.frame_stack(observation, first, state[0])
            return super().forward(observation, first, state)

    plain = build_q_network(env, NetworkConfig())
    own = Own(plain.torso, plain.core, plain.head, plain.frame_stack)
    stacks = torch.randint(0, 256, (5, 4, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(BatchForward()(own, stacks).q, BatchForward()(plain, stacks).q)
    assert torch.equal(own.stacks[0], stacks)
