from __future__ import annotations

import pytest
import torch

from pappus.algorithms.choices import Fixed, Sampled, SoftGreedy
from pappus.errors import UserError
from pappus.ops.distributions import Categorical, Gaussian
from pappus.types import ContinuousAction, MultiDiscreteAction


def test_soft_greedy_spreads_epsilon_over_the_allowed_actions() -> None:
    allowed = torch.tensor([[True, True, False], [True, True, True]])
    choice = SoftGreedy(torch.tensor([1, 2]), 0.3, allowed)
    expected = torch.tensor([[0.15, 0.85, 0.0], [0.1, 0.1, 0.8]])
    torch.testing.assert_close(choice.probabilities, expected)
    torch.testing.assert_close(choice.log_prob(torch.tensor([0, 2])), torch.tensor([0.15, 0.8]).log())
    drawn = choice.sample(4_000, torch.Generator().manual_seed(0))
    shares = torch.nn.functional.one_hot(drawn, 3).float().mean(0)
    torch.testing.assert_close(shares, expected, atol=0.03, rtol=0)


def test_a_greedy_policy_never_takes_another_action() -> None:
    choice = SoftGreedy(torch.tensor([1]), 0.0, torch.ones(1, 3, dtype=torch.bool))
    assert choice.log_prob(torch.tensor([1])).item() == 0 and choice.log_prob(torch.tensor([0])).item() == -torch.inf


def test_a_sampled_choice_is_its_distribution() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    choice, action = Sampled(Categorical(3), logits), torch.tensor([0, 1, 2, 0, 1])
    assert choice.probabilities is not None
    torch.testing.assert_close(choice.log_prob(action), choice.probabilities.gather(1, action[:, None])[:, 0].log())
    assert Sampled(Gaussian((2,)), torch.zeros(5, 4)).probabilities is None
    assert Sampled(Gaussian((2,)), torch.zeros(5, 4)).sample(3, torch.Generator()).shape == (3, 5, 2)


def test_a_fixed_action_has_a_probability_only_where_it_is_a_choice() -> None:
    choice = Fixed(torch.tensor([[0, 1]]), MultiDiscreteAction((2, 2)))
    assert choice.log_prob(torch.tensor([[0, 1]])).item() == 0
    assert choice.log_prob(torch.tensor([[1, 1]])).item() == -torch.inf
    with pytest.raises(UserError, match="has no density"):
        Fixed(torch.zeros(1, 2), ContinuousAction((2,))).log_prob(torch.zeros(1, 2))
