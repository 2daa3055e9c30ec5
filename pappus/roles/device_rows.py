"""Large observations of a replay table that a learner caches on its device: each is copied once, and batches are
gathered there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pappus.core import ItemSource
from pappus.replay.sampling.kept_rows import NewRows, RowNumbers
from pappus.types import Array

SHARE_OF_MEMORY = 0.5
"""Of the device's free memory, how much observations of the table may take."""


def keep_large(source: ItemSource, free: int, tell: Callable[[str], None]) -> None:
    """Cache large observations on the device if they fit into its free memory, or `tell` why not."""
    needed = source.large_bytes()
    if needed > SHARE_OF_MEMORY * free:
        tell(
            f"replayed observations would take {needed / 2**30:.1f} GiB of the {free / 2**30:.1f} GiB that are "
            "free on the device, so they are sent with every batch"
        )
    elif needed:
        source.keep_rows()


class DeviceRows:
    """Rows of large columns that came with earlier batches, on the device: batches are gathered there. Number 0 stands
    for zeros."""

    def __init__(self, device: str, tell: Callable[[str], None] = lambda _: None) -> None:
        """`tell` is called with a message when memory is taken."""
        self._device, self._tell = device, tell
        self._columns: dict[str, torch.Tensor] = {}

    def store(self, new_rows: Iterable[NewRows]) -> None:
        """Store what comes with a batch."""
        for column, numbers, values, most in new_rows:
            rows = torch.from_numpy(values).to(self._device)
            if column not in self._columns:
                self._columns[column] = kept = rows.new_zeros(most + 1, *rows.shape[1:])
                self._tell(f"replayed observations are kept on {self._device}: {kept.nbytes / 2**30:.1f} GiB")
            self._columns[column].index_copy_(0, torch.from_numpy(numbers).to(self._device), rows)

    def tensor(self, leaf: Array | RowNumbers) -> torch.Tensor:
        """A leaf of a batch as a tensor; on the device where it is kept there."""
        if isinstance(leaf, RowNumbers):
            return self._columns[leaf.column][torch.from_numpy(leaf.numbers).to(self._device)]
        return torch.from_numpy(leaf)
