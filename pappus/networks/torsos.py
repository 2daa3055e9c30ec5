"""Torsos for images and for categories; `modules.Flat` takes everything else."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from pappus.networks.modules import Torso, orthogonal
from pappus.types import ArraySpec

GAIN = math.sqrt(2)


class CNN(Torso):
    """Convolutions of an image, then a layer of `output_size` units."""

    smallest_side: int
    linear: nn.Linear

    def __init__(self, image: ArraySpec) -> None:
        super().__init__()
        self.pixels = Pixels(image)

    def convolved(self, x: Tensor) -> Tensor:
        """From planes to planes."""
        raise NotImplementedError

    def forward(self, image: Tensor) -> Tensor:
        x = self.convolved(self.pixels(image, self.linear.weight.dtype))
        features: Tensor = self.linear(x.flatten(1)).relu_()
        return features.view(*image.shape[:2], self.output_size)

    def _end(self, planes: int, height: int, width: int, units: int) -> None:
        """Add the last layer, for planes of this size."""
        self.linear, self.output_size = orthogonal(nn.Linear(planes * height * width, units), GAIN), units
        convert_conv2d_weight_memory_format(self, torch.channels_last)


class NatureCNN(CNN):
    """The DQN torso (Mnih et al. 2015): convolutions 32×8/4, 64×4/2, 64×3/1, then 512 units."""

    smallest_side = 36

    def __init__(self, image: ArraySpec) -> None:
        super().__init__(image)
        self.conv1 = orthogonal(PixelConv2d(self.pixels.channels, 32, 8, 4, scale=self.pixels.scale), GAIN)
        self.conv2 = orthogonal(nn.Conv2d(32, 64, 4, 2), GAIN)
        self.conv3 = orthogonal(nn.Conv2d(64, 64, 3, 1), GAIN)
        height, width = (((side - 4) // 4 - 2) // 2 - 2 for side in (self.pixels.height, self.pixels.width))
        self._end(64, height, width, 512)

    def convolved(self, x: Tensor) -> Tensor:
        x = self.conv2(self.conv1(x).relu_()).relu_()
        x = self.conv3(x).relu_()
        return x


class MinAtarCNN(CNN):
    """For grids of a few cells (Young and Tian 2019): one convolution 16×3/1, then 128 units."""

    smallest_side = 3

    def __init__(self, image: ArraySpec) -> None:
        super().__init__(image)
        self.conv = orthogonal(PixelConv2d(self.pixels.channels, 16, 3, scale=self.pixels.scale), GAIN)
        self._end(16, self.pixels.height - 2, self.pixels.width - 2, 128)

    def convolved(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu_()
        return x


class ImpalaDeep(CNN):
    """The deep IMPALA torso (Espeholt et al. 2018, figure 3, right), without its LSTM: 15 convolutions, 256 units."""

    smallest_side = 8

    def __init__(self, image: ArraySpec) -> None:
        super().__init__(image)
        height, width, scale = self.pixels.height, self.pixels.width, self.pixels.scale
        self.sections = nn.Sequential()
        for fan_in, fan_out in pairwise((self.pixels.channels, 16, 32, 32)):
            self.sections.append(_ImpalaSection(PixelConv2d(fan_in, fan_out, 3, padding=1, scale=scale)))
            height, width, scale = (height + 1) // 2, (width + 1) // 2, 1.0
        self._end(32, height, width, 256)

    def convolved(self, x: Tensor) -> Tensor:
        x = self.sections(x).relu_()
        return x


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


class OneHot(Torso):
    """A leaf of categories (`ArraySpec.num_values`) as concatenated one-hot vectors."""

    def __init__(self, leaf: ArraySpec) -> None:
        super().__init__()
        assert leaf.num_values is not None and len(leaf.num_values) == math.prod(leaf.shape), leaf
        self.output_size = sum(leaf.num_values)
        counts = torch.tensor(leaf.num_values)
        self.which = nn.Buffer(torch.arange(len(counts)).repeat_interleave(counts), persistent=False)
        self.value = nn.Buffer(torch.cat([torch.arange(n) for n in leaf.num_values]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1).index_select(2, self.which) == self.value
