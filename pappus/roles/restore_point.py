"""A restore point: a copy of everything that an optimizer's updates change."""

from __future__ import annotations

from typing import Any

import torch

from pappus.accelerator import copy_all


class RestorePoint:
    """Copies of weights and optimizer state. They are restored in place, where captured graphs read them."""

    def __init__(self, values: torch.Tensor, optimizer: Any) -> None:
        self._values, self._optimizer = values.detach(), optimizer
        self._kept: list[torch.Tensor] = []

    def keep(self) -> None:
        """Go back to here from now on."""
        changing = self._changing()
        if len(self._kept) == len(changing):
            copy_all(self._kept, changing)
        else:
            self._kept = [leaf.clone() for leaf in changing]

    def go_back(self) -> None:
        changing = self._changing()
        copy_all(changing[: len(self._kept)], self._kept)
        for leaf in changing[len(self._kept) :]:  # before its first step an optimizer knows nothing but zeros
            leaf.zero_()

    def _changing(self) -> list[torch.Tensor]:
        """All that an update changes, where it lies."""
        known = [leaf for state in self._optimizer.state.values() for leaf in state.values()]
        return [self._values, *(leaf for leaf in known if isinstance(leaf, torch.Tensor))]
