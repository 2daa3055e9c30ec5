"""All-reduce: learners that share every update.

Learner i has the gradient g_i of its own batch, of n_i valid steps. The gradient of all batches is

    g = Σ n_i · g_i / Σ n_i   where the loss is a mean over valid steps,   g = Σ g_i   where it is a sum,

whatever the n_i. All learners clip g and take the same step from the same weights, so they stay identical.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import TypeVar

import torch

from pappus.core import AllReduce, Waitable
from pappus.errors import RunError
from pappus.networks.flat import FlatParameters

Done = TypeVar("Done")
FINGERPRINT = 0xFFFFFF
"""Bits of a checksum that a float32 holds exactly."""


def numbers_beside(members: int) -> int:
    """Numbers that travel behind each learner's gradient: its valid steps, and a fingerprint per learner."""
    return 1 + members


class AllReducedGradient:
    """One learner's part in an all-reduce. `flat.travelling` has room for `numbers_beside` behind the gradient. Methods
    that wait are generators: they yield the port that they wait for, or None after progress."""

    def __init__(self, flat: FlatParameters, all_reduce: AllReduce, loss_is_mean: bool) -> None:
        self._flat, self._all_reduce, self._loss_is_mean = flat, all_reduce, loss_is_mean
        self._numbers = flat.travelling[flat.num_parameters :]
        self.compared = False
        """Whether all learners were seen to have the same weights; they are compared with the next update if not."""

    def prepare(self, steps: torch.Tensor) -> None:
        """Scale the gradient of a batch of `steps` valid steps such that it can be added to those of others."""
        self._numbers.zero_()
        self._numbers[0].copy_(steps)
        if self._loss_is_mean:
            self._flat.gradient.mul_(self._numbers[0])

    def reduce(self, updates: int) -> Generator[Waitable | None, None, float]:
        """Replace the gradient by that of all batches; the valid steps of all. `updates` were made before."""
        if not self.compared:
            self._numbers[1 + self._all_reduce.member] = self._fingerprint(updates)
        yield from self._add_up(self._flat.travelling)
        steps, *fingerprints = self._numbers.tolist()
        if not self.compared and len(set(fingerprints)) > 1:  # they would never agree
            raise RunError(f"{len(fingerprints)} learners that share updates began with different weights")
        self.compared = True
        if self._loss_is_mean:
            self._flat.gradient.div_(max(1.0, steps))
        return float(steps)

    def gather(self, numbers: torch.Tensor) -> Generator[Waitable | None, None, torch.Tensor]:
        """The numbers of every learner, `[members, …]`: a sum in which all others are 0."""
        rows = numbers.new_zeros(self._all_reduce.members, *numbers.shape, dtype=torch.float32)
        rows[self._all_reduce.member] = numbers
        for piece in torch.split(rows.view(-1), len(self._flat.travelling)):  # the all-reduce has room for no more
            yield from self._add_up(piece)
        return rows

    def answer(self, work: Generator[torch.Tensor, torch.Tensor, Done]) -> Generator[Waitable | None, None, Done]:
        """Do work that yields numbers of its own and is sent those of all learners."""
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

    def _fingerprint(self, updates: int) -> float:
        weights = self._flat.values.detach().cpu().numpy()
        return float(zlib.crc32(weights.tobytes(), updates) & FINGERPRINT)
