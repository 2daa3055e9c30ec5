from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.dqn import EpsilonConfig, EpsilonGreedy
from pappus.errors import UserError
from pappus.networks.q_networks import FORBIDDEN, QOutput
from pappus.types import ACTION_MASK

N = 20_000
Q = torch.tensor([0.5, 3.0, -1.0, 2.0])


def act(epsilon: torch.Tensor | None, seed: int | None, mask: torch.Tensor | None = None) -> tuple[Any, Any]:
    """Actions of as many envs as there are ε, all of which have the same values."""
    count = N if epsilon is None else len(epsilon)
    q = Q.repeat(count, 1)
    observation: Any = torch.zeros(count, 1)
    if mask is not None:
        q = torch.where(mask, q, FORBIDDEN)
        observation = {"observation": observation, ACTION_MASK: mask.to(torch.int8)}
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    action, behaviour, state = EpsilonGreedy(EpsilonConfig()).act(
        lambda *_: QOutput(q, q.unsqueeze(-1), "after"), observation, torch.zeros(count, dtype=torch.bool), "before",
        generator, epsilon,
    )
    assert state == "after"
    return action, behaviour


def shares(action: torch.Tensor) -> torch.Tensor:
    return torch.bincount(action, minlength=4) / len(action)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_actions_are_greedy_but_for_a_share_of_epsilon(epsilon: float) -> None:
    action, _ = act(torch.full((N,), epsilon), seed=0)
    expected = torch.full((4,), epsilon / 4)
    expected[1] += 1 - epsilon
    # 4 standard deviations of a share of N draws.
    torch.testing.assert_close(shares(action), expected, atol=4 * 0.5 / N**0.5, rtol=0)


def test_every_env_explores_to_its_own_degree() -> None:
    epsilon = torch.tensor([0.0, 1.0]).repeat(N // 2)
    action, behaviour = act(epsilon, seed=0)
    assert (action[0::2] == 1).all() and (action[1::2] != 1).float().mean() == pytest.approx(0.75, abs=0.02)
    assert torch.equal(behaviour["epsilon"], epsilon)


def test_forbidden_actions_are_never_taken() -> None:
    masks = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]]).bool()
    action, _ = act(torch.ones(N), seed=0, mask=masks.repeat(N // 4, 1))
    for i, mask in enumerate(masks):
        expected = mask / mask.sum()
        found = shares(action[i::4])
        assert not found[~mask].any()
        torch.testing.assert_close(found, expected, atol=4 * 0.5 / (N / 4) ** 0.5, rtol=0)


def test_a_masked_policy_is_greedy_among_what_is_allowed() -> None:
    mask = torch.tensor([[1, 0, 1, 1]]).bool().repeat(N, 1)
    action, _ = act(torch.zeros(N), seed=0, mask=mask)
    assert (action == 3).all()


def test_without_a_generator_actions_are_greedy() -> None:
    action, behaviour = act(torch.ones(N), seed=None)
    assert (action == 1).all() and not behaviour["epsilon"].any()
    assert (behaviour["q"] == 3.0).all() and (behaviour["value"] == 3.0).all()


def test_what_is_recorded_is_the_value_of_the_action_and_of_the_best_one() -> None:
    action, behaviour = act(torch.ones(N), seed=0)
    assert torch.equal(behaviour["q"], Q[action]) and (behaviour["value"] == 3.0).all()
    assert len(behaviour["q"].unique()) == 4


def test_the_same_seed_gives_the_same_actions() -> None:
    one, two, other = (act(torch.full((N,), 0.5), seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_on_a_ladder_every_env_keeps_its_rung() -> None:
    algorithm = EpsilonGreedy(EpsilonConfig("ladder", base=0.4, alpha=7.0))
    early, late = (algorithm.exploration(np.array([1, 3]), 4, steps) for steps in (0, 10**6))
    assert early.tolist() == pytest.approx([0.4 ** (1 + 7 / 3), 0.4**8]) and np.array_equal(early, late)
    assert early.dtype == np.float32


def test_a_linear_schedule_falls_for_all_envs_alike() -> None:
    algorithm = EpsilonGreedy(EpsilonConfig("linear", start=1.0, end=0.1, steps=100))
    assert algorithm.exploration(np.arange(2), 2, 50).tolist() == pytest.approx([0.55, 0.55])


@pytest.mark.parametrize("name", ["base", "start", "end"])
def test_an_epsilon_that_is_no_probability_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"epsilon.{name}=1.5 is no probability"):
        EpsilonConfig(**{name: 1.5})  # type: ignore[arg-type]


def test_a_recorded_epsilon_does_not_change_when_exploration_does() -> None:
    exploration = torch.tensor([0.25])
    _, behaviour = act(exploration, seed=0)
    exploration.fill_(1.0)
    assert behaviour["epsilon"].tolist() == [0.25]
