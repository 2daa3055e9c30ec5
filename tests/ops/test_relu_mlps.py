from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pappus.ops.relu_mlps import Layer, relu_mlps

INPUTS, WIDTH, OUTPUTS, ROWS = 5, 16, 2, 7


def networks(count: int, hidden: int) -> tuple[Tensor, Tensor, list[list[Layer]]]:
    """First layers of all, and the others of each."""
    torch.manual_seed(count + hidden)

    def drawn(*shape: int) -> Tensor:
        return (0.5 * torch.randn(shape)).requires_grad_()

    sizes = [(WIDTH, WIDTH)] * hidden + [(OUTPUTS, WIDTH)]
    members = [[(drawn(*size), drawn(size[0])) for size in sizes] for _ in range(count)]
    return drawn(INPUTS, count * WIDTH), drawn(count * WIDTH), members


def one_by_one(x: Tensor, weight: Tensor, bias: Tensor, members: list[list[Layer]]) -> Tensor:
    """The same, layer by layer."""
    found = []
    for i, layers in enumerate(members):
        part = slice(i * WIDTH, (i + 1) * WIDTH)
        h = x @ weight[:, part] + bias[part]
        for w, b in layers:
            h = h.relu() @ w.T + b
        found.append(h)
    return torch.stack(found)


@pytest.mark.parametrize(("count", "hidden", "block"), [(1, 1, 512), (2, 1, 3), (3, 2, 512), (2, 0, 4)])
def test_outputs_and_gradients_are_those_of_the_layers_one_by_one(
    count: int, hidden: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pappus.ops.relu_mlps.BLOCK", block)
    weight, bias, members = networks(count, hidden)
    x = torch.randn(ROWS, INPUTS, requires_grad=True)
    inputs = [x, weight, bias, *(tensor for layers in members for layer in layers for tensor in layer)]
    found, expected = relu_mlps(x, weight, bias, members, half=False), one_by_one(x, weight, bias, members)
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, slope), torch.autograd.grad(expected, inputs, slope), rtol=1e-4, atol=1e-5
    )
    with torch.no_grad():
        torch.testing.assert_close(relu_mlps(x, weight, bias, members, half=False), found)


def test_gradients_of_gradients_are_those_of_the_layers_one_by_one() -> None:
    weight, bias, members = networks(2, 1)
    penalties = []
    for network in (lambda x: relu_mlps(x, weight, bias, members, half=False),
                    lambda x: one_by_one(x, weight, bias, members)):
        x = torch.ones(ROWS, INPUTS, requires_grad=True)
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), [weight, members[0][0][0]]))
    torch.testing.assert_close(*penalties)


def test_half_rounds_what_hidden_layers_multiply_and_nothing_else() -> None:
    weight, bias, members = networks(2, 1)
    x = torch.randn(ROWS, INPUTS)
    found = relu_mlps(x, weight, bias, members, half=True)
    assert found.dtype == torch.float32
    for i, ((w, b), (last, last_bias)) in enumerate(members):
        part = slice(i * WIDTH, (i + 1) * WIDTH)
        h = (x @ weight[:, part] + bias[part]).relu().bfloat16().float() @ w.bfloat16().float().T
        expected = (h.bfloat16().float() + b).relu() @ last.T + last_bias
        torch.testing.assert_close(found[i], expected, rtol=0.01, atol=0.01)
    exact = one_by_one(x, weight, bias, members)
    assert 0 < (found - exact).abs().max() < 0.05 * exact.abs().max()
    parameters = [weight, members[1][0][0]]
    for one, other in zip(
        torch.autograd.grad(found.sum(), parameters), torch.autograd.grad(exact.sum(), parameters), strict=True
    ):
        assert one.dtype == torch.float32 and (one - other).norm() < 0.02 * other.norm()
