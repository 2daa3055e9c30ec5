"""Networks with batch renormalisation: what they compute, and by whose moments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.networks.build import build_normed_policy_critics
from pappus.networks.many_mlps import multiply_in_half
from pappus.networks.normed_mlps import MOMENTUM, BatchRenorm, NormedMLPs, NormedPolicyCritics
from tests.algorithms.continuous_tools import ENV

SMALL = NetworkConfig(hidden_sizes=(8, 5))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def network(config: NetworkConfig = SMALL, warm_up: int = 2) -> NormedPolicyCritics:
    return build_normed_policy_critics(ENV, config, (16, 7), warm_up, 0.5)


@pytest.mark.parametrize("learning", [False, True])
def test_they_are_each_an_mlp_with_norms(learning: bool) -> None:
    many, x = NormedMLPs(3, 4, (8, 6), 2, "relu", 0), torch.randn(20, 4)
    for norm in many.norms:
        norm(torch.randn(50, len(norm.mean)) * 2 + 1, learning=True)
    inputs, first, second = many.norms
    state = {name: one.clone() for name, one in many.state_dict().items()}
    found = many(x, learning)
    many.load_state_dict(state)
    columns = first(torch.relu(many.first(inputs(x, learning))), learning)
    hidden = [torch.relu(many.members[i][0](columns[:, 8 * i : 8 * i + 8])) for i in range(3)]
    columns = second(torch.cat(hidden, 1), learning)
    for i in range(3):
        torch.testing.assert_close(found[i], many.members[i][1](columns[:, 6 * i : 6 * i + 6]))
    assert not torch.equal(found[0], found[1])


def test_who_acts_changes_no_moments_and_who_learns_counts_its_batch() -> None:
    norm, x = BatchRenorm(4, warm_up=10), torch.randn(30, 4) + 5
    before = [one.clone() for one in norm.buffers()]
    norm(x, learning=False)
    assert all(torch.equal(one, other) for one, other in zip(norm.buffers(), before, strict=True))
    norm(x, learning=True)
    torch.testing.assert_close(norm.mean, (1 - MOMENTUM) * x.mean(0))
    torch.testing.assert_close(norm.variance, MOMENTUM + (1 - MOMENTUM) * x.var(0, correction=0))
    assert norm.count.item() == 1


def test_corrections_begin_after_the_warm_up() -> None:
    norm, x = BatchRenorm(4, warm_up=2), torch.randn(30, 4) + 5
    means = [norm(x, learning=True).mean(0).abs().max().item() for _ in range(3)]
    assert means[0] < 1e-5 and means[1] < 1e-5 and means[2] > 1, "the running mean is still near 0"


def test_who_acts_does_as_who_learns_once_moments_are_known() -> None:
    """Rows that are always the same have the running moments in the end."""
    made = network()
    seen, action = made.see(torch.randn(64, 3) * 4 - 2), torch.rand(64, 2) * 2 - 1
    with torch.no_grad():
        for _ in range(2_000):
            q, _ = made.learnt_q((seen, action), (seen, action))
            policy = made.learnt_policy(seen)
        torch.testing.assert_close(made.q(seen, action), q, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(made.policy(seen), policy, atol=1e-4, rtol=1e-4)
        few, more = (made.policy(made.see(torch.zeros(rows, 3))) for rows in (1, 5))
        torch.testing.assert_close(few[0], more[1])


def test_values_now_and_later_are_normalised_by_the_moments_of_both() -> None:
    made, other = network(), network()
    other.load_state_dict(made.state_dict())
    seen, later = made.see(torch.randn(9, 3)), made.see(torch.randn(9, 3) * 5)
    action = torch.rand(9, 2)
    q, q_later = made.learnt_q((seen, action), (later, action))
    rows = torch.cat([torch.cat([seen.features, action], 1), torch.cat([later.features, action], 1)])
    torch.testing.assert_close(torch.cat([q, q_later], 1), other.critics(rows, learning=True).squeeze(-1))
    alone = network()
    alone.load_state_dict(made.state_dict())
    assert not torch.allclose(alone.learnt_q((seen, action), (seen, action))[0], q, atol=1e-3)


def test_parts_are_policy_with_temperature_and_critics_in_the_order_of_the_parameters() -> None:
    made = network()
    names = [name for name, _ in made.named_parameters()]
    sizes = [parameter.numel() for parameter in made.parameters()]
    count = next(i for i, name in enumerate(names) if name.startswith("critics"))
    assert sum(sizes[:count]) == made.part_sizes[0] and sum(sizes) == sum(made.part_sizes)
    assert "log_temperature" in names[:count] and not any(name.startswith("actor") for name in names[count:])


def test_mixed_networks_differ_by_rounding() -> None:
    made, x = NormedMLPs(2, 4, (64, 64), 1, "relu", 0), torch.randn(6, 4)
    exact = made(x)
    multiply_in_half(made)
    assert 0 < (made(x) - exact).abs().max() < 0.05


def test_layer_norms_are_refused() -> None:
    with pytest.raises(UserError, match="crossq's networks have batch norms"):
        network(replace(SMALL, layer_norm=True))
