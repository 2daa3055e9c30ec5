from __future__ import annotations

import pytest
import torch

from pappus.errors import UserError
from pappus.networks.modules import MLP, Encoder, Flat
from pappus.networks.torsos import ImpalaDeep, MinAtarCNN, NatureCNN, OneHot, Pixels
from pappus.types import ArraySpec

CNNS = [NatureCNN, ImpalaDeep]


def test_mlp_is_orthogonal_with_zero_biases() -> None:
    (layer,) = MLP(32, (16,)).layers
    assert isinstance(layer, torch.nn.Linear)
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(16))
    assert not layer.bias.any()


@pytest.mark.parametrize("cnn", CNNS)
@pytest.mark.parametrize("shape", [(36, 36), (4, 36, 44), (40, 52, 3), (2, 36, 36, 3)])
def test_cnn_reads_every_image_layout(cnn: type[NatureCNN | ImpalaDeep], shape: tuple[int, ...]) -> None:
    torso = cnn(ArraySpec(shape, "uint8"))
    features = torso(torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8))
    assert features.shape == (2, 3, torso.output_size)


def test_planes_are_the_image_whatever_its_layout() -> None:
    rows = torch.arange(2 * 6 * 8 * 3, dtype=torch.uint8).view(1, 2, 6, 8, 3)
    last, first = Pixels(ArraySpec((6, 8, 3), "uint8")), Pixels(ArraySpec((3, 6, 8), "uint8"))
    planes = last(rows, torch.float32)
    assert planes.shape == (2, 3, 6, 8) and planes.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(planes, first(rows.movedim(-1, 2), torch.float32))
    assert planes[1, 2, 4, 5] == rows[0, 1, 4, 5, 2]


def test_stacked_colour_frames_become_planes_in_order() -> None:
    stack = torch.randint(0, 256, (1, 1, 2, 6, 8, 3), dtype=torch.uint8)
    planes = Pixels(ArraySpec((2, 6, 8, 3), "uint8"))(stack, torch.float32)
    assert planes.shape == (1, 6, 6, 8)
    assert torch.equal(planes[0, 4], stack[0, 0, 1, :, :, 1].float())


@pytest.mark.parametrize("cnn", CNNS)
def test_bytes_are_scaled_to_one(cnn: type[NatureCNN | ImpalaDeep]) -> None:
    torch.manual_seed(0)
    of_bytes = cnn(ArraySpec((40, 40), "uint8"))
    of_floats = cnn(ArraySpec((40, 40), "float32"))
    of_floats.load_state_dict(of_bytes.state_dict())
    image = torch.randint(0, 256, (1, 2, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(of_bytes(image), of_floats(image / 255), rtol=1e-4, atol=1e-5)


def test_impala_deep_has_fifteen_convolutions() -> None:
    convs = [m for m in ImpalaDeep(ArraySpec((72, 96, 3), "uint8")).modules() if isinstance(m, torch.nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == [16] * 5 + [32] * 10


@pytest.mark.parametrize("cnn", CNNS)
def test_cnn_trains_under_autocast(cnn: type[NatureCNN | ImpalaDeep]) -> None:
    torso = cnn(ArraySpec((36, 36), "uint8"))
    with torch.autocast("cpu", torch.bfloat16):
        features = torso(torch.randint(0, 256, (1, 2, 36, 36), dtype=torch.uint8))
    features.float().sum().backward()
    assert all(parameter.grad is not None for parameter in torso.parameters())


def test_categories_become_one_hot_rows() -> None:
    rows = OneHot(ArraySpec((2,), "int64", (3, 2)))(torch.tensor([[[2, 0], [0, 1]]]))
    assert rows.int().tolist() == [[[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]]


def test_single_category_becomes_one_hot() -> None:
    assert OneHot(ArraySpec((), "int64", (3,)))(torch.tensor([[1]])).int().tolist() == [[[0, 1, 0]]]


def test_flat_keeps_floats_and_scales_bytes() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(Flat(ArraySpec((4, 5), "float32"))(x), x.flatten(2))
    assert Flat(ArraySpec((1,), "uint8"))(torch.full((1, 1, 1), 255, dtype=torch.uint8)).item() == pytest.approx(1.0)


def test_encoder_joins_the_leaves_of_a_nest() -> None:
    torsos = [Flat(ArraySpec((3,), "float32")), OneHot(ArraySpec((), "int64", (4,)))]
    joined = Encoder(torsos, None)({"a": torch.ones(1, 2, 3), "b": torch.tensor([[0, 3]])})
    assert joined.tolist() == [[[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 1]]]


@pytest.mark.parametrize("shape", [(84, 84), (4, 40, 44), (36, 52, 3)])
def test_folded_pixels_give_the_same_features_and_gradients(shape: tuple[int, ...]) -> None:
    """What a GPU computes, here on the CPU."""
    torso = NatureCNN(ArraySpec(shape, "uint8"))
    image, pixels = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8), torso.pixels
    planes = pixels(image, torch.float32)
    folded = pixels.folded(planes, torch.float32)
    assert folded.shape[1] == 16 * planes.shape[1] and folded.is_contiguous(memory_format=torch.channels_last)
    plain = torso.conv1(planes)
    (expected,) = torch.autograd.grad(plain.square().sum(), torso.conv1.weight)
    torch.testing.assert_close(torso.conv1(folded), plain, rtol=1e-4, atol=1e-5)
    (found,) = torch.autograd.grad(torso.conv1(folded).square().sum(), torso.conv1.weight)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_sides_that_the_stride_does_not_divide_are_not_folded() -> None:
    assert NatureCNN(ArraySpec((86, 84), "uint8")).pixels.stride == 1


@pytest.mark.parametrize("cnn", [NatureCNN, MinAtarCNN])
def test_layer_norm_makes_features_independent_of_contrast(cnn: type[NatureCNN | MinAtarCNN]) -> None:
    torch.manual_seed(0)
    torso, plain = cnn(ArraySpec((40, 40), "float32"), layer_norm=True), cnn(ArraySpec((40, 40), "float32"))
    image = torch.rand(1, 5, 40, 40)
    torch.testing.assert_close(torso(image), torso(3 * image), rtol=1e-2, atol=1e-2)
    assert not torch.allclose(plain(image), plain(3 * image), rtol=1e-2, atol=1e-2)


def test_an_mlp_with_layer_norm_has_one_for_every_layer() -> None:
    mlp = MLP(4, (8, 6), "relu", layer_norm=True)
    x = torch.randn(2, 3, 4)
    first = torch.nn.functional.layer_norm(mlp.layers[0](x), (8,)).relu()
    torch.testing.assert_close(mlp(x), torch.nn.functional.layer_norm(mlp.layers[1](first), (6,)).relu())


def test_the_deep_torso_has_no_layer_norm() -> None:
    with pytest.raises(UserError, match="impala-deep has no layer norm; use torso='nature'"):
        ImpalaDeep(ArraySpec((40, 40), "uint8"), layer_norm=True)
