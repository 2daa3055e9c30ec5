"""Training on unrolls as they come: one update per batch (IMPALA, SEED, A2C, A3C).

    source ──unrolls──▶ batch ──▶ loss ──▶ one update
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import torch

from pappus.core import OnPolicyAlgorithm, Source, StepCounter, Waitable
from pappus.recording.unrolls import as_tensor, concatenate, copy_side_by_side
from pappus.roles.gradient_step import GradientStep
from pappus.roles.learner import Trained
from pappus.types import Nest, Unroll, map_leaves

BATCH_SCALARS = ("steps", "mean_version", "oldest_version")
"""Scalars of every batch, before the algorithm's own."""


class UnrollTraining:
    """`unrolls_per_batch` unrolls of the source make a batch, and an update.

    A worker that learns from its own unrolls has no queue to report of; it counts its steps with `counter`.
    """

    interruptible = False

    def __init__(
        self, algorithm: OnPolicyAlgorithm, source: Source, gradient: GradientStep, unrolls_per_batch: int,
        releases_early: bool = False, counter: StepCounter | None = None,
    ) -> None:
        """`releases_early`: give slots back once they are copied to the device, in the order of the streams."""
        self._algorithm, self._source, self._gradient = algorithm, source, gradient
        self._unrolls_per_batch, self._counter = unrolls_per_batch, counter
        self._releases_early = releases_early and gradient.accelerator.real
        self._unrolls: dict[int, Unroll] = {}
        """Slots as tensors."""
        self._batch: Unroll | None = None
        self._depth = 0

    def take(self) -> Waitable | None:
        """Take a batch of unrolls."""
        slots = self._source.take(self._unrolls_per_batch)
        if slots is None:
            return self._source
        self._depth = self._source.depth()
        self._batch = self._joined(slots)
        if self._releases_early:
            self._source.release()
        return None

    def train(self) -> Generator[Waitable | None, None, Trained]:
        """Make one update, with all other learners if there are some."""
        batch, gradient = self._batch, self._gradient
        assert batch is not None
        moments = yield from gradient.gather_moments(batch)
        computed, of_all = yield from gradient.combined(gradient.backward())
        gradient.apply(computed)
        self._report(computed.scalars)
        gradient.observe(batch, moments)
        steps = int(computed.scalars["steps"])
        if self._counter is not None:
            self._counter.add(steps)
        return Trained(steps, of_all)

    def _joined(self, slots: Sequence[Unroll]) -> Unroll:
        """The slots side by side, on a device always in the same memory; a single slot is used in place."""
        real = self._gradient.accelerator.real
        if real or len(slots) > 1:
            tensors = [map_leaves(as_tensor, slot) for slot in slots]
            if not real or self._batch is None:
                return concatenate(tensors, self._gradient.settings.device)
            copy_side_by_side(tensors, self._batch)
            return self._batch
        key = id(slots[0])
        if key not in self._unrolls:
            self._unrolls[key] = map_leaves(as_tensor, slots[0])
        return self._unrolls[key]

    def loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The algorithm's, and `BATCH_SCALARS` before its scalars."""
        batch = self._batch
        assert batch is not None
        loss, scalars = self._algorithm.loss(self._gradient.network, batch)
        version = batch.version.double()
        of_batch = zip(BATCH_SCALARS, (batch.valid.sum(), version.mean(), version.min()), strict=True)
        return loss, {**dict(of_batch), **scalars}

    def batch(self) -> Nest:
        """The present batch by field."""
        assert self._batch is not None
        return self._batch._asdict()

    def _report(self, scalars: Mapping[str, float]) -> None:
        metrics, updates = self._gradient.metrics, self._gradient.updates
        for name, value in scalars.items():
            if name not in BATCH_SCALARS:
                metrics.mean(f"losses/{name}", value)
        if self._counter is None:
            metrics.gauge("queue/depth", self._depth)
            metrics.mean("learner/policy_lag", updates - scalars["mean_version"])
            metrics.maximum("learner/policy_lag_max", updates - scalars["oldest_version"])

    def release(self) -> None:
        """Give the slots back."""
        if not self._releases_early:
            self._source.release()

    def save(self) -> dict[str, Nest]:
        """Nothing of its own."""
        return {}

    def load(self, state: Nest) -> None: ...

    def close(self) -> None:
        """Count the steps that are left in the queue: they will not be trained on."""
        while self._counter is None and (slots := self._source.take(1)) is not None:
            steps = sum(int(slot.valid.sum()) for slot in slots)
            self._gradient.metrics.count("inference/steps_dropped", steps)
            self._source.release()
