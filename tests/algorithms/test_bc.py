"""Behaviour cloning's losses as sums over steps, and that minimising them finds the policy of the data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.bc import BC, BCConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Sequence, Transition, Transitions
from pappus.networks.steps import module_step
from pappus.types import (
    ACTION_MASK,
    ActionSpec,
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
    map_leaves,
)

B = 6
VECTOR = ArraySpec((4,), "float32")
WEIGHT = torch.linspace(0.2, 1.0, B)
DISCRETE, MULTI, CONTINUOUS = DiscreteAction(3), MultiDiscreteAction((2, 3)), ContinuousAction((2,))


def made(action: ActionSpec, masked: bool = False, core: str = "none", **settings: Any) -> tuple[BC, Any]:
    shown: Any = {"observation": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")} if masked else VECTOR
    config: Any = NetworkConfig(hidden_sizes=(8,), core=core, core_size=5)  # type: ignore[arg-type]
    algorithm = BC(BCConfig(**settings), EnvSpec(shown, action), config)
    torch.manual_seed(1)
    network = algorithm.build_network()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    return algorithm, network


def actions(action: ActionSpec, shape: tuple[int, ...] = (B,)) -> torch.Tensor:
    if isinstance(action, ContinuousAction):
        return torch.randn(*shape, *action.shape)
    sizes = [action.n] if isinstance(action, DiscreteAction) else list(action.nvec)
    drawn = torch.stack([torch.randint(n, shape) for n in sizes], -1)
    return drawn.squeeze(-1) if isinstance(action, DiscreteAction) else drawn


def batch(action: ActionSpec) -> Transition:
    torch.manual_seed(0)
    nothing = torch.zeros(B)
    return Transition(torch.randn(B, 4), actions(action), nothing, nothing, torch.randn(B, 4))


def policy_of(network: Any, observation: Any) -> torch.Tensor:
    policy: torch.Tensor = module_step(network)(observation, torch.zeros(B, dtype=torch.bool), ((), ())).policy
    return policy


def gradients(loss: torch.Tensor, network: Any) -> torch.Tensor:
    network.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten()
                      for w in network.parameters()])


def literal(algorithm: BC, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The loss of one step."""
    spec = algorithm.env.action
    if isinstance(spec, ContinuousAction):
        size = math.prod(spec.shape)
        pairs = [(params[i], params[size + i], action.flatten()[i]) for i in range(size)]
        if algorithm.config.policy == "deterministic":
            return torch.as_tensor(sum((m.tanh() - a.clamp(-1, 1)) ** 2 for m, _, a in pairs)) / size
        return torch.as_tensor(sum(
            0.5 * ((a - m) / s.clamp(-10, 2).exp()) ** 2 + s.clamp(-10, 2) + 0.5 * math.log(2 * math.pi)
            for m, s, a in pairs
        ))
    sizes, total, at = [spec.n] if isinstance(spec, DiscreteAction) else list(spec.nvec), torch.zeros(()), 0
    for n, chosen in zip(sizes, action.reshape(-1).tolist(), strict=True):
        total = total - (params[at + chosen].exp() / params[at : at + n].exp().sum()).log()
        at += n
    return total


@pytest.mark.parametrize(
    ("action", "policy"),
    [(DISCRETE, "deterministic"), (MULTI, "deterministic"), (CONTINUOUS, "deterministic"), (CONTINUOUS, "gaussian")],
)
def test_the_loss_is_the_weighted_mean_over_steps(action: ActionSpec, policy: str) -> None:
    algorithm, network = made(action, policy=policy)
    data = batch(action)
    params = policy_of(network, data.observation)
    expected = torch.stack([WEIGHT[b] * literal(algorithm, params[b], data.action[b]) for b in range(B)]).mean()
    learned = algorithm.loss(network, network, data, WEIGHT)
    torch.testing.assert_close(learned.loss, expected)
    torch.testing.assert_close(gradients(learned.loss, network), gradients(expected, network), rtol=1e-4, atol=1e-5)
    assert torch.equal(learned.priority, torch.ones(B))


@pytest.mark.parametrize("action", [DISCRETE, MULTI])
def test_accuracy_is_the_share_of_steps_with_the_greedy_action(action: ActionSpec) -> None:
    algorithm, network = made(action)
    data = batch(action)
    greedy = algorithm.distribution.mode(policy_of(network, data.observation))
    data = data._replace(action=torch.where((torch.arange(B) < 2).view(B, *[1] * (greedy.dim() - 1)), greedy, 0))
    same = sum(torch.equal(data.action[b], greedy[b]) for b in range(B))
    assert algorithm.loss(network, network, data, WEIGHT).scalars["accuracy"].item() == pytest.approx(same / B)


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_what_is_learnt_on_arrays_is_what_the_loss_says(action: ActionSpec) -> None:
    algorithm, network = made(action)
    learn = algorithm.on_arrays(network, network)
    assert learn is not None
    said = algorithm.loss(network, network, batch(action), WEIGHT)
    expected = gradients(said.loss, network)
    found = learn(map_leaves(lambda leaf: leaf.numpy(), batch(action)), WEIGHT.numpy())
    assert found.loss == pytest.approx(said.loss.item(), rel=1e-5)
    assert found.scalars == pytest.approx({name: value.item() for name, value in said.scalars.items()}, rel=1e-4)
    own = torch.cat([torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten()
                     for w in network.parameters()])
    torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-5)


def test_what_arrays_cannot_do_is_left_to_the_loss() -> None:
    class Own(BC):
        def _losses(self, params: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return super()._losses(params, action)

    own = Own(BCConfig(), EnvSpec(VECTOR, DISCRETE), NetworkConfig())
    others = made(MULTI)[0], made(CONTINUOUS, policy="gaussian")[0], made(DISCRETE, masked=True)[0], own
    for algorithm in (*others, made(DISCRETE, core="lstm")[0]):
        assert algorithm.on_arrays(algorithm.build_network(), algorithm.build_network()) is None


def test_forbidden_actions_take_no_probability() -> None:
    algorithm, network = made(DISCRETE, masked=True)
    data, allowed = batch(DISCRETE), torch.ones(B, 3, dtype=torch.int8)
    allowed[torch.arange(B), (data.action + 1) % 3] = 0
    bare = policy_of(network, {"observation": data.observation, ACTION_MASK: torch.ones_like(allowed)})
    expected = torch.stack([
        -(bare[b, data.action[b]].exp() / bare[b, allowed[b].bool()].exp().sum()).log() * WEIGHT[b] for b in range(B)
    ]).mean()
    shown = data._replace(observation={"observation": data.observation, ACTION_MASK: allowed})
    torch.testing.assert_close(algorithm.loss(network, network, shown, WEIGHT).loss, expected)


def test_the_probabilities_of_the_data_are_found() -> None:
    algorithm, network = made(DISCRETE)
    learn = algorithm.on_arrays(network, network)
    assert learn is not None
    counts = {0: (6, 3, 1), 1: (0, 5, 5)}
    rows = [(state, action) for state, times in counts.items() for action, n in enumerate(times) for _ in range(n)]
    seen = np.eye(4, dtype=np.float32)[[state for state, _ in rows]]
    nothing = np.zeros(len(rows), np.float32)
    data = Transition(seen, np.array([action for _, action in rows]), nothing, nothing, seen)
    optimizer = torch.optim.Adam(network.parameters(), 0.05)
    for _ in range(300):
        learn(data, np.ones(len(rows), np.float32))
        optimizer.step()
    found = policy_of(network, torch.eye(4)[[0, 1, 0, 1, 0, 1]])[:2].softmax(-1).detach()
    assert np.allclose(found, np.array([counts[0], counts[1]]) / 10, atol=0.02)


def test_the_mean_and_deviation_of_the_data_are_found() -> None:
    algorithm = made(ContinuousAction((1,)), policy="gaussian")[0]
    torch.manual_seed(0)
    network: Any = algorithm.build_network()
    drawn = 0.3 + 0.2 * torch.randn(600, 1)
    data = Transition(torch.ones(600, 4), drawn, torch.zeros(600), torch.zeros(600), torch.ones(600, 4))
    for rate in (0.05, 0.005):
        optimizer = torch.optim.Adam(network.parameters(), rate)
        for _ in range(150):
            optimizer.zero_grad()
            algorithm.loss(network, network, data, torch.ones(600)).loss.backward()
            optimizer.step()
    mean, log_std = policy_of(network, torch.ones(B, 4))[0].tolist()
    assert mean == pytest.approx(drawn.mean().item(), abs=0.02)
    assert math.exp(log_std) == pytest.approx(drawn.std().item(), rel=0.05)


def sequences(action: ActionSpec, length: int) -> Sequence:
    """Episodes that begin after three steps, that terminate early, and one that goes on."""
    torch.manual_seed(0)
    first, valid = torch.zeros(length, B, dtype=torch.bool), torch.ones(length, B, dtype=torch.bool)
    first[3, 0], valid[:3, 0], valid[6:, 1] = True, False, False
    state = ((), (torch.randn(B, 5), torch.randn(B, 5)))
    nothing = torch.zeros(length, B)
    return Sequence(
        torch.randn(length, B, 4), first, actions(action, (length, B)), nothing, nothing, valid, state
    )


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_with_memory_the_valid_steps_after_the_burn_in_count(action: ActionSpec) -> None:
    algorithm, network = made(action, core="lstm", burn_in=3, length=5, period=4)
    data = sequences(action, 8)
    expected, count, state = torch.zeros(()), 0, data.state
    for t in range(8):
        with torch.set_grad_enabled(t >= 3):
            output = module_step(network)(data.observation[t], data.first[t], state)
            state = output.state
        for b in range(B):
            if t >= 3 and data.valid[t, b]:
                count += 1
                expected = expected + WEIGHT[b] * literal(algorithm, output.policy[b], data.action[t, b])
    learned = algorithm.loss(network, network, data, WEIGHT)
    torch.testing.assert_close(learned.loss, expected / count)
    torch.testing.assert_close(
        gradients(learned.loss, network), gradients(expected / count, network), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("action", [DISCRETE, MULTI, CONTINUOUS])
def test_greedy_actions_are_the_likeliest(action: ActionSpec) -> None:
    algorithm, network = made(action)
    seen, first = torch.randn(B, 4), torch.zeros(B, dtype=torch.bool)
    greedy, behaviour, _ = algorithm.act(module_step(network), seen, first, ((), ()), None)
    params = policy_of(network, seen)
    if isinstance(action, ContinuousAction):
        torch.testing.assert_close(greedy, params[:, :2].tanh())
        assert behaviour == algorithm.behaviour == {}
    else:
        assert torch.equal(greedy, algorithm.distribution.mode(params))
    drawn, _, _ = algorithm.act(module_step(network), seen, first, ((), ()), torch.Generator().manual_seed(0))
    assert drawn.shape == greedy.shape and drawn.dtype == greedy.dtype


def test_without_memory_it_learns_from_single_steps() -> None:
    assert made(DISCRETE)[0].experience == Transitions(1, 1.0)


def test_sequences_that_never_overlap_are_refused() -> None:
    with pytest.raises(UserError, match="sequences of at least 2 steps must begin again before they end"):
        BCConfig(length=10, period=10)


def test_moments_that_nobody_would_keep_are_refused() -> None:
    with pytest.raises(UserError, match="this algorithm learns from replay"):
        BC(BCConfig(), EnvSpec(VECTOR, DISCRETE), NetworkConfig(normalize=True)).build_network()
