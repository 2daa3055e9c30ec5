"""One gradient of several learners.

Learner i has the gradient g_i of its own batch, of n_i valid steps. They meet as

    g = Σ n_i · g_i / Σ n_i   where the loss is a mean over valid steps,   g = Σ g_i   where it is a sum,

which is the gradient of all batches side by side, whatever the n_i. Clipping follows, on g, and so all take the same
step from the same weights: they stay identical. What else they must know of each other's batches meets in the same
place, without being added up.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from typing import TypeVar

import torch

from pappus.core import AllReduce, Waitable
from pappus.errors import RunError
from pappus.networks.flat import FlatParameters

Done = TypeVar("Done")
FINGERPRINT = 0xFFFFFF
"""Bits of a checksum that a float32 holds exactly."""


def numbers_beside(members: int) -> int:
    """How many numbers travel with the gradient of one of so many learners: its steps, and everybody's fingerprint."""
    return 1 + members


class SyncedGradient:
    """One learner's part in it. `travelling` of its flat parameters has room for `numbers_beside` the gradient."""

    def __init__(self, flat: FlatParameters, all_reduce: AllReduce, loss_is_mean: bool) -> None:
        self._flat, self._all_reduce, self._loss_is_mean = flat, all_reduce, loss_is_mean
        self._numbers = flat.travelling[flat.num_parameters :]
        self._compared = False

    def prepare(self, steps: torch.Tensor) -> None:
        """Make the gradient of a batch of so many valid steps what can be added to those of others."""
        self._numbers.zero_()
        self._numbers[0].copy_(steps)
        if self._loss_is_mean:
            self._flat.gradient.mul_(self._numbers[0])

    def meet(self, updates: int) -> Generator[Waitable | None, None, float]:
        """Make it the gradient of all batches; the valid steps of all. `updates` is how many there were before."""
        if not self._compared:
            self._numbers[1 + self._all_reduce.member] = self._fingerprint(updates)
        yield from self._add_up(self._flat.travelling)
        steps, *fingerprints = self._numbers.tolist()
        self._compare(fingerprints)
        if self._loss_is_mean:
            self._flat.gradient.div_(max(1.0, steps))
        return float(steps)

    def gather(self, numbers: torch.Tensor) -> Generator[Waitable | None, None, torch.Tensor]:
        """What each learner brings, one beside the other `[members, …]`: a sum in which all others are 0."""
        rows = numbers.new_zeros(self._all_reduce.members, *numbers.shape, dtype=torch.float32)
        rows[self._all_reduce.member] = numbers
        for piece in torch.split(rows.view(-1), len(self._flat.travelling)):  # the room that the all-reduce has
            yield from self._add_up(piece)
        return rows

    def answer(self, work: Generator[torch.Tensor, torch.Tensor, Done]) -> Generator[Waitable | None, None, Done]:
        """Do work that asks for everybody's numbers by yielding its own."""
        try:
            own = next(work)
            while True:
                own = work.send((yield from self.gather(own)))
        except StopIteration as end:
            done: Done = end.value
            return done

    def _add_up(self, flat: torch.Tensor) -> Generator[Waitable | None, None, None]:
        self._all_reduce.bring(flat)
        yield None
        while not self._all_reduce.collect(flat):
            yield self._all_reduce

    def begin_anew(self) -> None:
        """The weights are others now: compare them once more."""
        self._compared = False

    def _fingerprint(self, updates: int) -> float:
        weights = self._flat.values.detach().cpu().numpy()
        return float(zlib.crc32(weights.tobytes(), updates) & FINGERPRINT)

    def _compare(self, fingerprints: Sequence[float]) -> None:
        """Whoever begins with other weights would never come to the same."""
        if not self._compared and len(set(fingerprints)) > 1:
            raise RunError(f"{len(fingerprints)} learners that share updates began with different weights")
        self._compared = True
