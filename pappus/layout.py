"""Which tensors of a network lie where in its one flat buffer of weights.

The buffer is what is trained, published and hashed. Files hold the tensors by name, so that anything that reads
safetensors can use them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:  # a role without a network needs no torch
    from torch import Tensor


class Part(NamedTuple):
    """One tensor in the buffer."""

    name: str
    shape: tuple[int, ...]
    channels_last: bool = False
    """Whether the buffer holds it in that order, as convolutions like it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Layout: TypeAlias = tuple[Part, ...]
"""All tensors, in the order of the buffer."""


def size_of(layout: Layout) -> int:
    """Numbers in the buffer."""
    return sum(part.size for part in layout)


def view(piece: Tensor, part: Part) -> Tensor:
    """A piece of the buffer as the tensor that it is."""
    if not part.channels_last:
        return piece.view(part.shape)
    outputs, inputs, height, width = part.shape
    return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def places(layout: Layout) -> Iterator[tuple[Part, slice]]:
    """All tensors with their places in the buffer."""
    begin = 0
    for part in layout:
        yield part, slice(begin, begin + part.size)
        begin += part.size


def named(flat: Tensor, layout: Layout) -> dict[str, Tensor]:
    """All tensors by name, as views of the buffer."""
    return {part.name: view(flat[place], part) for part, place in places(layout)}


def flattened(tensors: Iterable[tuple[Tensor, bool]]) -> Tensor:
    """The buffer of tensors, each with whether it is channels-last there."""
    import torch

    rows = [(tensor.permute(0, 2, 3, 1) if last else tensor).reshape(-1) for tensor, last in tensors]
    return torch.cat(rows) if rows else torch.zeros(0)


def cut(layout: Layout, sizes: Sequence[int]) -> list[Layout]:
    """The layouts of consecutive shards of these sizes. A tensor that is cut is a row of numbers in each, in the order
    of the buffer, called `NAME[FROM:TO]`."""
    shards: list[list[Part]] = [[] for _ in sizes]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    for part, place in places(layout):
        for shard, size, end in zip(shards, sizes, ends, strict=True):
            start, stop = max(place.start, end - size) - place.start, min(place.stop, end) - place.start
            if stop - start == part.size:
                shard.append(part)
            elif stop > start:
                shard.append(Part(f"{part.name}[{start}:{stop}]", (stop - start,)))
    return [tuple(shard) for shard in shards]


def name_of_part(name: str) -> str:
    """The name of the tensor that a piece of `cut` belongs to."""
    return name.partition("[")[0]
