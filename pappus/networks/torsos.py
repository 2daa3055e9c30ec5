"""Torsos: from observations `[T, B, …]` to features `[T, B, D]`; each has its D as `output_size`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, TypeVar, cast

import optree
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from pappus.networks.moments import RunningMoments
from pappus.types import ArraySpec, Nest

Activation: TypeAlias = Literal["relu", "tanh"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}

Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d)


class MLP(nn.Module):
    """Linear layers of these sizes, each followed by the activation; orthogonal, gain √2."""

    def __init__(self, input_size: int, sizes: tuple[int, ...] = (64, 64), activation: Activation = "relu") -> None:
        super().__init__()
        pairs = pairwise((input_size, *sizes))
        self.layers = nn.ModuleList(orthogonal(nn.Linear(*pair), math.sqrt(2)) for pair in pairs)
        self.activation = activation
        self.output_size = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(cast(nn.Linear, self.layers[0]).weight.dtype)
        activation = ACTIVATIONS[self.activation]
        for layer in self.layers:
            x = activation(layer(x))
        return x


class NatureCNN(nn.Module):
    """The DQN torso (Mnih et al. 2015): convolutions 32×8/4, 64×4/2, 64×3/1, then 512 units."""

    smallest_side = 36

    def __init__(self, image: ArraySpec) -> None:
        super().__init__()
        self.pixels = Pixels(image)
        gain = math.sqrt(2)
        self.conv1 = orthogonal(PixelConv2d(self.pixels.channels, 32, 8, 4, scale=self.pixels.scale), gain)
        self.conv2 = orthogonal(nn.Conv2d(32, 64, 4, 2), gain)
        self.conv3 = orthogonal(nn.Conv2d(64, 64, 3, 1), gain)
        height, width = (((side - 4) // 4 - 2) // 2 - 2 for side in (self.pixels.height, self.pixels.width))
        self.linear = orthogonal(nn.Linear(64 * height * width, 512), gain)
        self.output_size = 512
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        x = self.conv1(self.pixels(image, self.conv1.weight.dtype)).relu_()
        x = self.conv3(self.conv2(x).relu_()).relu_()
        features: Tensor = self.linear(x.flatten(1)).relu_()
        return features.view(*image.shape[:2], self.output_size)


class MinAtarCNN(nn.Module):
    """For grids of a few cells (Young and Tian 2019): one convolution 16×3/1, then 128 units."""

    smallest_side = 3

    def __init__(self, image: ArraySpec) -> None:
        super().__init__()
        self.pixels = Pixels(image)
        gain = math.sqrt(2)
        self.conv = orthogonal(PixelConv2d(self.pixels.channels, 16, 3, scale=self.pixels.scale), gain)
        self.linear = orthogonal(nn.Linear(16 * (self.pixels.height - 2) * (self.pixels.width - 2), 128), gain)
        self.output_size = 128
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        x = self.conv(self.pixels(image, self.conv.weight.dtype)).relu_()
        features: Tensor = self.linear(x.flatten(1)).relu_()
        return features.view(*image.shape[:2], self.output_size)


class ImpalaDeep(nn.Module):
    """The deep IMPALA torso (Espeholt et al. 2018, figure 3, right), without its LSTM: 15 convolutions, 256 units."""

    smallest_side = 8

    def __init__(self, image: ArraySpec, channels: tuple[int, ...] = (16, 32, 32)) -> None:
        super().__init__()
        self.pixels = Pixels(image)
        height, width = self.pixels.height, self.pixels.width
        sections = []
        for index, (fan_in, fan_out) in enumerate(zip((self.pixels.channels, *channels), channels, strict=False)):
            scale = self.pixels.scale if index == 0 else 1.0
            sections.append(_ImpalaSection(PixelConv2d(fan_in, fan_out, 3, padding=1, scale=scale)))
            height, width = (height + 1) // 2, (width + 1) // 2
        self.sections = nn.Sequential(*sections)
        self.linear = orthogonal(nn.Linear(channels[-1] * height * width, 256), math.sqrt(2))
        self.output_size = 256
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        x = self.sections(self.pixels(image, self.linear.weight.dtype))
        features: Tensor = self.linear(x.relu_().flatten(1)).relu_()
        return features.view(*image.shape[:2], self.output_size)


class _ImpalaSection(nn.Module):
    """One column of the figure: convolution, max-pooling that halves the sides, two residual blocks."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.block1 = _ResidualBlock(conv.out_channels)
        self.block2 = _ResidualBlock(conv.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        x = self.block2(self.block1(x))
        return x


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.conv2(self.conv1(x.relu()).relu_())
        return change.add_(x)


class Pixels(nn.Module):
    """Images `[T, B, …]` of shape `[H, W]`, `[H, W, C]`, `[C, H, W]` or k such frames as planes `[T*B, k*C, H, W]`.

    The planes lie channels-last in memory, where convolutions are fastest, and are not yet multiplied by `scale`.
    """

    def __init__(self, image: ArraySpec) -> None:
        super().__init__()
        self.channels_last = len(image.shape) > 2 and image.shape[-1] < image.shape[-3]
        rest = (*image.shape[:-3], image.shape[-1], *image.shape[-3:-1]) if self.channels_last else image.shape
        self.height, self.width = rest[-2:]
        self.channels = math.prod(rest[:-2])
        self.scale = 1 / 255 if image.dtype == "uint8" else 1.0

    def forward(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        if self.channels_last:
            image = image.movedim(-1, -3)
        device = image.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        planes = image.reshape(-1, self.channels, self.height, self.width)
        return planes.to(dtype, memory_format=torch.channels_last)


class PixelConv2d(nn.Conv2d):
    """A convolution of `scale` times its input: it scales the few weights instead of the many pixels."""

    def __init__(
        self, fan_in: int, fan_out: int, kernel: int, stride: int = 1, padding: int = 0, *, scale: float
    ) -> None:
        super().__init__(fan_in, fan_out, kernel, stride, padding)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.scale, self.bias, self.stride, self.padding)


class Flat(nn.Module):
    """A leaf of any shape, flattened to floats; uint8 is scaled by 1/255, then everything by `moments`, if any."""

    def __init__(self, leaf: ArraySpec, normalize: bool = False) -> None:
        super().__init__()
        self.output_size = math.prod(leaf.shape)
        self.scale = 1 / 255 if leaf.dtype == "uint8" else None
        self.moments = RunningMoments(self.output_size) if normalize else None

    def row(self, x: Tensor) -> Tensor:
        """Flattened to floats."""
        x = x.reshape(*x.shape[:2], self.output_size)
        return x if self.scale is None else x * self.scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.row(x)
        return x if self.moments is None else self.moments(x)


class OneHot(nn.Module):
    """A leaf of categories (`ArraySpec.num_values`) as concatenated one-hot vectors."""

    which: Tensor
    value: Tensor

    def __init__(self, leaf: ArraySpec) -> None:
        super().__init__()
        assert leaf.num_values is not None and len(leaf.num_values) == math.prod(leaf.shape), leaf
        self.output_size = sum(leaf.num_values)
        counts = torch.tensor(leaf.num_values)
        self.register_buffer("which", torch.arange(len(counts)).repeat_interleave(counts), persistent=False)
        self.register_buffer("value", torch.cat([torch.arange(n) for n in leaf.num_values]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1).index_select(2, self.which) == self.value


LeafTorso: TypeAlias = NatureCNN | MinAtarCNN | ImpalaDeep | Flat | OneHot


class Encoder(nn.Module):
    """A nest of observations: each leaf through its torso, then their concatenation through `trunk`."""

    def __init__(self, torsos: Sequence[LeafTorso], trunk: MLP | None) -> None:
        super().__init__()
        self.torsos = nn.ModuleList(torsos)
        self.trunk = trunk
        self.output_size = sum(torso.output_size for torso in torsos) if trunk is None else trunk.output_size

    def forward(self, observation: Nest) -> Tensor:
        """`torsos` are in the order of `optree.tree_leaves(observation)`."""
        vectors = [torso(leaf) for torso, leaf in zip(self.torsos, optree.tree_leaves(observation), strict=True)]
        features: Tensor = vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)
        return features if self.trunk is None else self.trunk(features)

    def shown(self, observation: Nest) -> list[tuple[RunningMoments, Tensor]]:
        """Every module of running moments, with the numbers of these observations that it counts."""
        leaves = zip(self.torsos, optree.tree_leaves(observation), strict=True)
        flats = [(torso, leaf) for torso, leaf in leaves if isinstance(torso, Flat)]
        return [(torso.moments, torso.row(leaf)) for torso, leaf in flats if torso.moments is not None]


def orthogonal(layer: Layer, gain: float) -> Layer:
    """The layer with orthogonal weights of this gain and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
