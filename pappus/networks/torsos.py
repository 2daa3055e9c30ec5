"""Torsos for images and for categories; `modules.Flat` takes everything else."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from pappus.errors import UserError
from pappus.networks.modules import Torso, orthogonal
from pappus.types import ArraySpec

GAIN = math.sqrt(2)


class CNN(Torso):
    """Convolutions of an image, then a layer of `output_size` units."""

    smallest_side: int
    stride = 1
    """Of the first convolution, where its kernel is a multiple of it."""
    linear: nn.Linear

    def __init__(self, image: ArraySpec, layer_norm: bool = False) -> None:
        super().__init__()
        self.pixels, self._layer_norm = Pixels(image, self.stride), layer_norm

    def convolved(self, x: Tensor) -> Tensor:
        """From planes to planes."""
        raise NotImplementedError

    def forward(self, image: Tensor) -> Tensor:
        x = self.convolved(self.pixels(image, self.linear.weight.dtype))
        features: Tensor = self.norm(self.linear(x.flatten(1))).relu_()
        return features.view(*image.shape[:2], self.output_size)

    def _norm(self, planes: int) -> nn.Module:
        """A layer norm over all planes of an image, with a gain and a bias for each plane."""
        return nn.GroupNorm(1, planes) if self._layer_norm else nn.Identity()

    def _end(self, planes: int, height: int, width: int, units: int) -> None:
        """Add the last layer, for planes of this size."""
        self.linear, self.output_size = orthogonal(nn.Linear(planes * height * width, units), GAIN), units
        self.norm = nn.LayerNorm(units) if self._layer_norm else nn.Identity()
        convert_conv2d_weight_memory_format(self, torch.channels_last)


class NatureCNN(CNN):
    """The DQN torso (Mnih et al. 2015): convolutions 32×8/4, 64×4/2, 64×3/1, then 512 units."""

    smallest_side, stride = 36, 4

    def __init__(self, image: ArraySpec, layer_norm: bool = False) -> None:
        super().__init__(image, layer_norm)
        self.conv1 = orthogonal(PixelConv2d(self.pixels.channels, 32, 8, self.stride, scale=self.pixels.scale), GAIN)
        self.conv2 = orthogonal(nn.Conv2d(32, 64, 4, 2), GAIN)
        self.conv3 = orthogonal(nn.Conv2d(64, 64, 3, 1), GAIN)
        self.norm1, self.norm2, self.norm3 = self._norm(32), self._norm(64), self._norm(64)
        height, width = (((side - 4) // 4 - 2) // 2 - 2 for side in (self.pixels.height, self.pixels.width))
        self._end(64, height, width, 512)

    def convolved(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu_()
        x = self.norm2(self.conv2(x)).relu_()
        x = self.norm3(self.conv3(x)).relu_()
        return x


class MinAtarCNN(CNN):
    """For grids of a few cells (Young and Tian 2019): one convolution 16×3/1, then 128 units."""

    smallest_side = 3

    def __init__(self, image: ArraySpec, layer_norm: bool = False) -> None:
        super().__init__(image, layer_norm)
        self.conv = orthogonal(PixelConv2d(self.pixels.channels, 16, 3, scale=self.pixels.scale), GAIN)
        self.norm1 = self._norm(16)
        self._end(16, self.pixels.height - 2, self.pixels.width - 2, 128)

    def convolved(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv(x)).relu_()
        return x


class ImpalaDeep(CNN):
    """The deep IMPALA torso (Espeholt et al. 2018, figure 3, right), without its LSTM: 15 convolutions, 256 units."""

    smallest_side = 8
    planes = (16, 32, 32)
    """Of its three sections."""

    def __init__(self, image: ArraySpec, layer_norm: bool = False) -> None:
        super().__init__(image)
        if layer_norm:
            raise UserError("network.layer_norm=True: the torso impala-deep has no layer norm; use torso='nature'")
        height, width, scale = self.pixels.height, self.pixels.width, self.pixels.scale
        self.sections = nn.Sequential()
        for fan_in, fan_out in pairwise((self.pixels.channels, *self.planes)):
            self.sections.append(_ImpalaSection(PixelConv2d(fan_in, fan_out, 3, padding=1, scale=scale)))
            height, width, scale = (height + 1) // 2, (width + 1) // 2, 1.0
        self._end(self.planes[-1], height, width, 256)

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

    The planes lie channels-last in memory, where convolutions are fastest, and are not yet multiplied by `scale`. On a
    GPU they are folded for a first convolution of this stride s: each square of s × s pixels becomes one place with s²
    times as many planes, `[T*B, s²*k*C, H/s, W/s]`. Its tensor cores need a multiple of eight planes.
    """

    def __init__(self, image: ArraySpec, stride: int = 1) -> None:
        super().__init__()
        self.channels_last = len(image.shape) > 2 and image.shape[-1] < image.shape[-3]
        rest = (*image.shape[:-3], image.shape[-1], *image.shape[-3:-1]) if self.channels_last else image.shape
        self.height, self.width = rest[-2:]
        self.channels = math.prod(rest[:-2])
        self.scale = 1 / 255 if image.dtype == "uint8" else 1.0
        self.stride = 1 if self.height % stride or self.width % stride else stride

    def forward(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        if self.channels_last:
            image = image.movedim(-1, -3)
        device = image.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        planes = image.reshape(-1, self.channels, self.height, self.width)
        if self.stride == 1 or not planes.is_cuda:
            return planes.to(dtype, memory_format=torch.channels_last)
        return self.folded(planes, dtype)

    def folded(self, planes: Tensor, dtype: torch.dtype) -> Tensor:
        """Planes `[N, k*C, H, W]` with each square of pixels in one place."""
        side, height, width = self.stride, self.height // self.stride, self.width // self.stride
        squares = planes.reshape(-1, self.channels, height, side, width, side).permute(0, 2, 4, 3, 5, 1)
        return squares.to(dtype, memory_format=torch.contiguous_format).flatten(3).permute(0, 3, 1, 2)


class PixelConv2d(nn.Conv2d):
    """A convolution of `scale` times its input: it scales the few weights instead of the many pixels. Of folded pixels
    (`Pixels`) it is a smaller one with stride 1."""

    def __init__(
        self, fan_in: int, fan_out: int, kernel: int, stride: int = 1, padding: int = 0, *, scale: float
    ) -> None:
        super().__init__(fan_in, fan_out, kernel, stride, padding)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * self.scale
        if x.shape[1] == self.in_channels:
            return F.conv2d(x, weight, self.bias, self.stride, self.padding)
        side = self.stride[0]
        height, width = (size // side for size in self.kernel_size)
        squares = weight.reshape(-1, self.in_channels, height, side, width, side).permute(0, 3, 5, 1, 2, 4)
        return F.conv2d(x, squares.flatten(1, 3).contiguous(memory_format=torch.channels_last), self.bias)


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
