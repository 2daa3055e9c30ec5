from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.networks.build import build_policy_critics, build_twin_deterministic
from pappus.networks.many_mlps import ManyMLPs, Member, multiply_in_half
from pappus.ops.distributions import SquashedGaussian
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction

VECTOR = ArraySpec((3,), "float32")
ENV = EnvSpec(VECTOR, ContinuousAction((2,)))
SMALL = NetworkConfig(hidden_sizes=(8, 5))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes", [(8, 5), (7,)])
def test_many_mlps_are_each_what_an_mlp_is(sizes: tuple[int, ...], layer_norm: bool) -> None:
    many, x = ManyMLPs(3, 4, sizes, 2, layer_norm=layer_norm), torch.randn(6, 4)
    found = many(x)
    for i in range(3):
        part, member = slice(i * sizes[0], (i + 1) * sizes[0]), cast(Member, many.members[i])
        y = x @ many.weight[:, part] + many.bias[part]
        for k, layer in enumerate([*member.layers, member.last]):
            y = layer(torch.relu(member.norms[k](y) if layer_norm else y))
        torch.testing.assert_close(found[i], y)
    torch.testing.assert_close(many.first(x), found[0])
    assert not torch.equal(found[0], found[1])


def test_a_layer_with_a_hook_or_a_forward_pass_of_its_own_is_called() -> None:
    many, x = ManyMLPs(2, 4, (8, 5)), torch.randn(6, 4)
    before = many(x)
    member = cast(Member, many.members[1])
    handle = member.layers[0].register_forward_hook(lambda module, inputs, output: output * 0)
    found = many(x)
    torch.testing.assert_close(found[0], before[0])
    torch.testing.assert_close(found[1], member.last.bias.expand(6, 1))
    handle.remove()
    torch.testing.assert_close(many(x), before)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mixed_networks_differ_by_rounding_and_their_layers_are_called_all_the_same(layer_norm: bool) -> None:
    many, x = ManyMLPs(2, 4, (64, 64), layer_norm=layer_norm), torch.randn(6, 4)
    exact = many(x)
    multiply_in_half(many)
    assert 0 < (many(x) - exact).abs().max() < 0.02
    member = cast(Member, many.members[1])
    member.layers[0].register_forward_hook(lambda module, inputs, output: output * torch.nan)
    assert many(x)[1].isnan().all()


def test_a_policy_that_is_squashed_predicts_its_deviation_and_another_has_one_for_all_states() -> None:
    seen = torch.randn(4, 3)
    for squash in (False, True):
        network = build_policy_critics(ENV, SMALL, squash=squash, value=True)
        torch.nn.init.normal_(cast(Member, network.actor.members[0]).last.weight, std=9.0)
        mean, log_std = network.policy(network.see(seen)).chunk(2, -1)
        assert bool((log_std.std(0) > 0).all()) == squash and bool(mean.abs().max() > 1) == squash
        assert network.q(network.see(seen), torch.rand(4, 2)).shape == (2, 4)
        assert network.value(network.see(seen)).shape == (4,)


def test_values_of_many_actions_are_those_of_each() -> None:
    network = build_policy_critics(ENV, SMALL, squash=True)
    seen, actions = network.see(torch.randn(4, 3)), torch.rand(4, 5, 2) * 2 - 1
    found = network.q_of_many(seen, actions)
    for n in range(5):
        torch.testing.assert_close(found[..., n], network.q(seen, actions[:, n]))


def test_critics_see_every_discrete_action_apart_and_masks_forbid_actions() -> None:
    spec = {"seen": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}
    network = build_policy_critics(EnvSpec(spec, DiscreteAction(3)), SMALL)
    observation = {"seen": torch.randn(4, 3), ACTION_MASK: torch.tensor([[1, 0, 1]] * 4)}
    seen = network.see(observation)
    assert torch.equal(network.encoded(torch.tensor([2, 0])), torch.tensor([[0.0, 0, 1], [1, 0, 0]]))
    assert (network.policy(seen).softmax(-1)[:, 1] == 0).all() and network.q(seen, torch.ones(4).long()).shape == (2, 4)
    several = build_policy_critics(EnvSpec(VECTOR, MultiDiscreteAction((2, 3))), SMALL)
    assert torch.equal(several.encoded(torch.tensor([[1, 0]])), torch.tensor([[0.0, 1, 1, 0, 0]]))


def test_observations_are_scaled_by_their_moments_for_policy_and_critics() -> None:
    rows = torch.randn(1, 500, 3) * 7 + 3
    config = replace(SMALL, normalize=True)
    networks: list[Any] = [build_policy_critics(ENV, config), build_twin_deterministic(ENV, config)]
    for network in networks:
        network.observe(rows)
    seen = networks[0].see(rows[0]).features
    assert seen.mean(0).abs().max() < 1e-4 and (seen.std(0, correction=0) - 1).abs().max() < 1e-3
    torch.testing.assert_close(networks[1].critics[0](rows)[0], seen)


def test_the_deterministic_network_judges_as_its_critics_do() -> None:
    network = build_twin_deterministic(ENV, SMALL)
    seen, action = torch.randn(1, 4, 3), torch.rand(1, 4, 2)
    first, second = network.judge(seen, action)
    torch.testing.assert_close(network.q(seen, action), first)
    assert first.shape == (1, 4) and not torch.equal(first, second)
    output = network(seen, torch.zeros(1, 4, dtype=torch.bool), ())
    torch.testing.assert_close(output.value, network.q(seen, output.action))
    assert sum(network.part_sizes) == sum(parameter.numel() for parameter in network.parameters())


def test_memory_is_refused() -> None:
    with pytest.raises(UserError, match="this policy has none"):
        build_policy_critics(ENV, replace(SMALL, core="lstm"))


def test_a_reparameterised_action_is_distributed_as_its_density_says() -> None:
    """∫ density = 1, and samples have the mean that the density gives, by numerical integration."""
    policy = SquashedGaussian((1,))
    for mean, deviation in ((0.0, 0.5), (0.8, 1.0), (-1.5, 0.3)):
        params = torch.tensor([mean, math.log(deviation)], dtype=torch.float64)
        grid = torch.linspace(-1 + 5e-7, 1 - 5e-7, 400_001, dtype=torch.float64)
        density = policy.log_prob(params.expand(len(grid), 2), grid[:, None]).exp()
        assert float(torch.trapezoid(density, grid)) == pytest.approx(1.0, abs=2e-3)
        action, log_prob = policy.reparameterized(params.float(), 20_000)
        assert float(action.mean()) == pytest.approx(float(torch.trapezoid(density * grid, grid)), abs=0.02)
        expected = policy.log_prob(params.float().expand(20_000, 2), action)
        near = action[:, 0].abs() < 0.999
        torch.testing.assert_close(log_prob[near], expected[near], atol=2e-3, rtol=1e-3)


def test_a_reparameterised_action_carries_the_gradient_of_its_parameters() -> None:
    policy = SquashedGaussian((2,))
    params = torch.tensor([[0.3, -0.2, -0.5, 0.1]], dtype=torch.float64, requires_grad=True)

    def drawn(params: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        action, log_prob = policy.reparameterized(params, 3)
        return torch.cat([action.flatten(), log_prob.flatten()])

    assert torch.autograd.gradcheck(drawn, params)
