from __future__ import annotations

from typing import Any

import optree
import pytest
import torch

from pappus.config import NetworkConfig
from pappus.networks.build import build_q_network
from pappus.networks.q_networks import FORBIDDEN, QHead
from pappus.networks.steps import BatchForward
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec

VECTOR = ArraySpec((4,), "float32")
PLAIN = EnvSpec(VECTOR, DiscreteAction(3))
MASKED = EnvSpec({"observation": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, DiscreteAction(3))
SMALL = NetworkConfig(hidden_sizes=(8,), core_size=5)
NO_STATE: Any = ((), ())


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def no_resets(time: int, batch: int) -> torch.Tensor:
    return torch.zeros(time, batch, dtype=torch.bool)


@pytest.mark.parametrize("hidden", [0, 7])
@pytest.mark.parametrize("quantiles", [1, 4])
def test_dueling_advantages_have_no_mean(hidden: int, quantiles: int) -> None:
    head, features = QHead(6, 3, dueling=True, hidden=hidden, quantiles=quantiles), torch.randn(2, 5, 6)
    value_stream = torch.nn.Sequential(head.hidden[1], torch.nn.ReLU()) if hidden else torch.nn.Identity()
    value = head.outputs[-1](value_stream(features))[..., -quantiles:]
    torch.testing.assert_close(head(features).mean(-2), value)


@pytest.mark.parametrize("hidden", [0, 7])
def test_a_dueling_value_moves_all_actions_alike(hidden: int) -> None:
    head, features = QHead(6, 3, dueling=True, hidden=hidden).requires_grad_(False), torch.randn(2, 5, 6)
    before = head(features)
    head.outputs[-1].bias[-1] += 2.0  # type: ignore[operator,index]
    torch.testing.assert_close(head(features), before + 2.0)


def test_without_dueling_the_head_is_one_linear_layer() -> None:
    head, features = QHead(6, 3, dueling=False), torch.randn(2, 5, 6)
    assert torch.equal(head(features).squeeze(-1), head.outputs[0](features))


@pytest.mark.parametrize("dueling", [True, False])
def test_a_value_is_the_mean_of_its_quantiles(dueling: bool) -> None:
    network = build_q_network(PLAIN, SMALL, dueling, quantiles=5)
    q, quantiles, _ = network(torch.randn(2, 6, 4), no_resets(2, 6), NO_STATE)
    assert q.shape == (2, 6, 3) and quantiles.shape == (2, 6, 3, 5)
    torch.testing.assert_close(q, quantiles.mean(-1))
    assert quantiles.std(-1).min() > 0


def test_a_mask_forbids_actions_and_changes_no_other_value() -> None:
    network = build_q_network(MASKED, SMALL)
    observation = torch.randn(1, 3, 4)
    mask = torch.tensor([[[1, 1, 1], [1, 0, 1], [0, 1, 0]]], dtype=torch.int8)
    free = network({"observation": observation, ACTION_MASK: torch.ones_like(mask)}, no_resets(1, 3), NO_STATE).q
    masked = network({"observation": observation, ACTION_MASK: mask}, no_resets(1, 3), NO_STATE).q
    assert torch.equal(masked[mask.bool()], free[mask.bool()]) and (masked[~mask.bool()] == FORBIDDEN).all()


@pytest.mark.parametrize("quantiles", [1, 5])
def test_a_state_where_nothing_is_allowed_is_worth_nothing(quantiles: int) -> None:
    network = build_q_network(MASKED, SMALL, quantiles=quantiles)
    mask = torch.tensor([[[0, 0, 0], [0, 1, 0]]], dtype=torch.int8)
    found = network({"observation": torch.randn(1, 2, 4), ACTION_MASK: mask}, no_resets(1, 2), NO_STATE)
    assert not found.q[0, 0].any() and not found.quantiles[0, 0].any()
    assert found.q[0, 1].argmax() == 1 and found.quantiles[0, 1].all()


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("env", [PLAIN, EnvSpec(VECTOR, DiscreteAction(3), frame_stack=3)])
def test_stepping_gives_what_unrolling_gives(core: Any, env: EnvSpec) -> None:
    network = build_q_network(env, NetworkConfig(hidden_sizes=(8,), core=core, core_size=5)).requires_grad_(False)
    observation, first = torch.randn(9, 2, 4), torch.rand(9, 2) < 0.25
    start = optree.tree_map(lambda leaf: torch.randn(leaf.shape), network.initial_state(2))
    whole = network(observation, first, start)
    state, q = start, []
    for t in range(9):
        step = network(observation[t : t + 1], first[t : t + 1], state)
        q, state = [*q, step.q], step.state
    torch.testing.assert_close(torch.cat(q), whole.q)
    for one, other in zip(optree.tree_leaves(state), optree.tree_leaves(whole.state), strict=True):
        torch.testing.assert_close(one, other)


FRAMES: list[EnvSpec] = [
    EnvSpec(VECTOR, DiscreteAction(3), frame_stack=3),
    EnvSpec({"a": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, DiscreteAction(3), frame_stack=3),
]


@pytest.mark.parametrize("env", FRAMES, ids=["plain", "masked"])
def test_a_look_at_stacks_is_what_the_frames_give_one_by_one(env: EnvSpec) -> None:
    network = build_q_network(env, SMALL).requires_grad_(False)
    frames = torch.randn(6, 2, 4)
    masks = torch.ones(6, 2, 3, dtype=torch.int8)
    masks[3, 1, 0] = 0

    def observation(of: torch.Tensor, allowed: torch.Tensor) -> Any:
        return {"a": of, ACTION_MASK: allowed} if env.masked else of

    first = no_resets(6, 2)
    first[0] = True
    expected = network(observation(frames, masks), first, network.initial_state(2)).q
    blank = torch.cat([torch.zeros(2, 2, 4), frames])  # what a network sees from before an episode
    for t in range(6):
        stack = observation(blank[t : t + 3].transpose(0, 1), masks[t].unsqueeze(1).expand(2, 3, 3))
        seen = BatchForward()(network, stack)
        torch.testing.assert_close(seen.q, expected[t])
        assert seen.quantiles.shape == (2, 3, 1)


def test_a_look_without_frames_is_one_step() -> None:
    network, observation = build_q_network(PLAIN, SMALL), torch.randn(6, 4)
    expected = network(observation.unsqueeze(0), no_resets(1, 6), NO_STATE)
    torch.testing.assert_close(BatchForward()(network, observation).q, expected.q[0])
