"""Distributions on atoms against the sum that the paper writes down, and what must hold of every projection."""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from pappus.ops.value_distributions import Atoms

ATOMS = Atoms(-2.0, 3.0, 11)
B = 7


def distributions(rows: int = B, atoms: Atoms = ATOMS) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(rows, atoms.count) * 2).softmax(-1)


def literal(atoms: Atoms, probability: list[float], reward: float, discount: float) -> list[float]:
    """Bellemare et al. 2017, algorithm 1, atom by atom."""
    spacing = (atoms.high - atoms.low) / (atoms.count - 1)
    found = [0.0] * atoms.count
    for j, share in enumerate(probability):
        moved = min(max(reward + discount * (atoms.low + j * spacing), atoms.low), atoms.high)
        place = (moved - atoms.low) / spacing
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            found[below] += share
        else:
            found[below] += share * (above - place)
            found[above] += share * (place - below)
    return found


def test_a_projection_is_the_sum_over_atoms() -> None:
    probability, reward, discount = distributions(), torch.linspace(-4, 4, B), torch.linspace(1, 0, B)
    found = ATOMS.projected(probability, reward, discount).probability
    for row in range(B):
        expected = literal(ATOMS, probability[row].tolist(), reward[row].item(), discount[row].item())
        torch.testing.assert_close(found[row], torch.tensor(expected), rtol=1e-5, atol=1e-6)


@hypothesis.given(
    low=st.floats(-50, 40), width=st.floats(0.5, 100), count=st.integers(2, 60), reward=st.floats(-30, 30),
    discount=st.floats(0, 1),
)
def test_the_mean_is_kept_where_nothing_is_clipped(
    low: float, width: float, count: int, reward: float, discount: float
) -> None:
    atoms = Atoms(low, low + width, count)
    probability, rewards, discounts = distributions(3, atoms), torch.full((3,), reward), torch.full((3,), discount)
    found = atoms.projected(probability, rewards, discounts)
    torch.testing.assert_close(found.probability.sum(-1), torch.ones(3))
    assert (found.probability >= -1e-6).all()
    before = reward + discount * probability @ atoms.values(probability)
    after = found.probability @ atoms.values(probability)
    if not found.beyond.any():
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5 * (abs(low) + width))
    ends = reward + discount * low, reward + discount * (low + width)
    inside = ends[0] >= low + 1e-3 and ends[1] <= low + width - 1e-3
    assert not inside or not found.beyond.any()


def test_what_moves_beyond_the_atoms_goes_to_the_last_one_and_is_told() -> None:
    probability, zeros = distributions(), torch.zeros(B)
    high = ATOMS.projected(probability, torch.full((B,), 99.0), zeros)
    low = ATOMS.projected(probability, torch.full((B,), -99.0), zeros)
    torch.testing.assert_close(high.probability[:, -1], torch.ones(B))
    torch.testing.assert_close(low.probability[:, 0], torch.ones(B))
    torch.testing.assert_close(high.beyond, torch.ones(B))
    half = Atoms(0.0, 1.0, 2).projected(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5]), torch.tensor([1.0]))
    torch.testing.assert_close(half.beyond, torch.tensor([0.5]))
    torch.testing.assert_close(half.probability, torch.tensor([[0.25, 0.75]]))


def test_a_distribution_that_does_not_move_stays_and_a_terminal_one_is_its_reward() -> None:
    probability, ones = distributions(), torch.ones(B)
    same = ATOMS.projected(probability, torch.zeros(B), ones)
    torch.testing.assert_close(same.probability, probability, atol=1e-5, rtol=0.0)
    ended = ATOMS.projected(probability, torch.full((B,), 0.75), torch.zeros(B)).probability
    assert ended[0].nonzero().flatten().tolist() == [5, 6], "the neighbours of 0.75 on the atoms −2, −1.5 …"
    torch.testing.assert_close(ended[:, 5], ones / 2)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_leaves_no_distribution(reward: float) -> None:
    found = ATOMS.projected(distributions(), torch.tensor([reward] + [0.0] * (B - 1)), torch.ones(B)).probability
    assert found[0].isnan().any() and found[1:].isfinite().all()


def test_the_mean_of_logits_is_that_of_their_probabilities() -> None:
    logits = torch.randn(2, B, ATOMS.count)
    torch.testing.assert_close(ATOMS.mean(logits), (logits.softmax(-1) * torch.linspace(-2, 3, 11)).sum(-1))
