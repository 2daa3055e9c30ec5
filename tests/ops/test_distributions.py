from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch import distributions as td

from pappus.ops.distributions import (
    LOG_STD_RANGE,
    MASKED_LOGIT,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
    distribution_for,
    mask_logits,
)
from pappus.types import ContinuousAction, DiscreteAction, MultiDiscreteAction

ALL: list[Distribution] = [Categorical(4), MultiCategorical((3, 2, 5)), MultiCategorical((3, 3)), Gaussian((2, 3))]
SHAPES: dict[Distribution, tuple[int, ...]] = dict(zip(ALL, [(), (3,), (2,), (2, 3)], strict=True))


def parameters(distribution: Distribution, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, distribution.parameter_size, generator=torch.Generator().manual_seed(seed)) * 4 - 2


def reference(distribution: Distribution, params: Tensor) -> list[td.Distribution]:
    """torch.distributions of the same law, one per independent choice."""
    if isinstance(distribution, Gaussian):
        mean, log_std = (half.unflatten(-1, distribution.shape) for half in params.chunk(2, -1))
        return [td.Independent(td.Normal(mean, log_std.exp()), len(distribution.shape))]
    sizes = [distribution.n] if isinstance(distribution, Categorical) else list(distribution.nvec)
    return [td.Categorical(logits=logits) for logits in params.split(sizes, -1)]


def columns(distribution: Distribution, action: Tensor) -> list[Tensor]:
    return list(action.unbind(-1)) if isinstance(distribution, MultiCategorical) else [action]


@pytest.mark.parametrize("distribution", ALL, ids=str)
class TestEveryDistribution:
    def test_log_prob_is_that_of_torch(self, distribution: Distribution) -> None:
        params = parameters(distribution, 5, 7)
        action = distribution.sample_with_log_prob(params)[0]
        laws = zip(reference(distribution, params), columns(distribution, action), strict=True)
        torch.testing.assert_close(distribution.log_prob(params, action), sum(law.log_prob(a) for law, a in laws))

    def test_entropy_is_that_of_torch(self, distribution: Distribution) -> None:
        params = parameters(distribution, 5, 7)
        torch.testing.assert_close(
            distribution.entropy(params), sum(law.entropy() for law in reference(distribution, params))
        )

    def test_sampled_log_prob_is_that_of_the_action(self, distribution: Distribution) -> None:
        params = parameters(distribution, 5, 7)
        action, log_prob = distribution.sample_with_log_prob(params)
        torch.testing.assert_close(log_prob, distribution.log_prob(params, action), rtol=1e-5, atol=1e-5)

    def test_actions_have_the_shape_and_dtype_of_their_spec(self, distribution: Distribution) -> None:
        params = parameters(distribution, 5, 7)
        dtype = torch.float32 if isinstance(distribution, Gaussian) else torch.int64
        for action in (distribution.sample_with_log_prob(params)[0], distribution.mode(params)):
            assert action.shape == (5, 7, *SHAPES[distribution]) and action.dtype == dtype

    def test_mode_is_at_least_as_probable_as_any_sample(self, distribution: Distribution) -> None:
        params = parameters(distribution, 1).expand(200, -1)
        best = distribution.log_prob(params, distribution.mode(params))
        assert (best >= distribution.log_prob(params, distribution.sample_with_log_prob(params)[0]) - 1e-6).all()

    def test_same_generator_state_gives_the_same_action(self, distribution: Distribution) -> None:
        params = parameters(distribution, 50)
        generators = [torch.Generator().manual_seed(3) for _ in range(2)]
        first, second = (distribution.sample_with_log_prob(params, generator)[0] for generator in generators)
        assert torch.equal(first, second)

    def test_gradient_flows_through_log_prob_and_entropy_but_not_samples(self, distribution: Distribution) -> None:
        params = parameters(distribution, 5).requires_grad_()
        action, log_prob = distribution.sample_with_log_prob(params)
        assert not action.requires_grad and not log_prob.requires_grad
        (distribution.log_prob(params, action) + distribution.entropy(params)).sum().backward()
        assert params.grad is not None and params.grad.abs().sum() > 0


def test_categorical_samples_with_the_probabilities_of_its_logits() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    action = Categorical(4).sample_with_log_prob(logits.expand(200_000, 4), torch.Generator().manual_seed(0))[0]
    torch.testing.assert_close(action.bincount(minlength=4) / 200_000, logits.softmax(-1), rtol=0, atol=0.005)


def test_gaussian_samples_with_its_mean_and_deviation() -> None:
    params = torch.tensor([1.0, -2.0, 0.5, -1.0]).expand(200_000, 4)
    action = Gaussian((2,)).sample_with_log_prob(params, torch.Generator().manual_seed(0))[0]
    torch.testing.assert_close(action.mean(0), torch.tensor([1.0, -2.0]), rtol=0, atol=0.02)
    torch.testing.assert_close(action.std(0).log(), torch.tensor([0.5, -1.0]), rtol=0, atol=0.02)


def test_gaussian_clamps_its_log_deviation() -> None:
    low, high = (Gaussian((1,)).entropy(torch.tensor([0.0, log_std])).item() for log_std in (-1e3, 1e3))
    assert high - low == pytest.approx(LOG_STD_RANGE[1] - LOG_STD_RANGE[0])


@pytest.mark.parametrize("scale", [0.0, 50.0])
@pytest.mark.parametrize("distribution", [Categorical(6), MultiCategorical((2, 4))], ids=str)
def test_masked_actions_are_never_sampled(distribution: Distribution, scale: float) -> None:
    mask = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.int8)
    # The logits favour what the mask forbids.
    params = mask_logits((1 - mask) * scale + torch.zeros(100_000, 6), mask)
    action, log_prob = distribution.sample_with_log_prob(params)
    allowed = [{1, 3, 4}] if isinstance(distribution, Categorical) else [{1}, {1, 2}]
    assert [set(column.tolist()) for column in columns(distribution, action)] == allowed
    assert torch.isfinite(log_prob).all()


def test_masked_entropy_is_that_of_the_allowed_actions() -> None:
    logits = mask_logits(torch.zeros(5), torch.tensor([True, False, True, True, False]))
    assert Categorical(5).entropy(logits).item() == pytest.approx(torch.tensor(3.0).log().item())


def test_masked_logits_have_finite_gradients() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    masked = mask_logits(logits, torch.tensor([1, 0, 0, 1, 0]))
    log_prob, entropy = Categorical(5).log_prob_and_entropy(masked, torch.tensor([0, 3, 0, 3]))
    (entropy + log_prob).sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert not logits.grad[:, [1, 2, 4]].any()


def test_a_choice_with_every_value_masked_stays_in_range() -> None:
    params = torch.full((1000, 7), MASKED_LOGIT)
    action = MultiCategorical((2, 5)).sample_with_log_prob(params)[0]
    assert int(action[:, 0].max()) == 1 and int(action[:, 1].max()) == 4


def test_action_specs_have_their_distributions() -> None:
    assert distribution_for(DiscreteAction(3)) == Categorical(3)
    assert distribution_for(MultiDiscreteAction((2, 4))) == MultiCategorical((2, 4))
    assert distribution_for(ContinuousAction((2, 3))) == Gaussian((2, 3))


def test_a_squashed_gaussian_is_the_tanh_of_a_gaussian() -> None:
    squashed, plain = SquashedGaussian((2,)), Gaussian((2,))
    params = torch.tensor([[0.3, -0.5, -0.2, 0.4]]).expand(4, 4)
    action, log_prob = squashed.sample_with_log_prob(params, torch.Generator().manual_seed(0))
    before, base = plain.sample_with_log_prob(params, torch.Generator().manual_seed(0))
    torch.testing.assert_close(action, before.tanh())
    expected = base - torch.log(1 - before.double().tanh() ** 2).sum(-1).float()
    torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(squashed.log_prob(params, action), log_prob, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(squashed.mode(params), plain.mode(params).tanh())


def test_a_squashed_density_adds_up_to_one() -> None:
    grid = torch.linspace(-0.999999, 0.999999, 200_001, dtype=torch.float64).unsqueeze(-1)
    params = torch.tensor([0.4, -0.3], dtype=torch.float64).expand(len(grid), 2)
    density = SquashedGaussian((1,)).log_prob(params, grid).exp()
    assert float(torch.trapezoid(density, grid.squeeze(-1))) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.5, -1.0), (2.0, -0.5), (-1.0, 0.0), (0.0, 0.7)])
def test_a_squashed_entropy_is_the_mean_surprise(mean: float, log_std: float) -> None:
    squashed = SquashedGaussian((1,))
    params = torch.tensor([mean, log_std], dtype=torch.float64).expand(400_000, 2)
    _, log_prob = squashed.sample_with_log_prob(params, torch.Generator().manual_seed(0))
    assert float(squashed.entropy(params[:1])) == pytest.approx(-float(log_prob.mean()), abs=0.02)


def test_a_squashed_action_at_its_bound_is_finite_and_so_is_its_gradient() -> None:
    params = torch.tensor([[20.0, 2.0]], requires_grad=True)
    squashed = SquashedGaussian((1,))
    action, log_prob = squashed.sample_with_log_prob(params, torch.Generator().manual_seed(0))
    again = squashed.log_prob(params, action) + squashed.entropy(params)
    again.sum().backward()
    assert torch.isfinite(log_prob).all() and torch.isfinite(again).all()
    assert params.grad is not None and torch.isfinite(params.grad).all()
