"""The learner of on-policy algorithms: turns unrolls into weights as they come, alone or with others of its kind."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch

from pappus.core import OnPolicyAlgorithm, Source, Waitable, WeightsWriter
from pappus.roles.gradient_learner import GradientLearner, LearnerSettings
from pappus.types import Nest, Unroll, leaves_of, map_leaves

KNOWN = ("steps", "mean_version", "oldest_version")
"""What is known of every batch, before the algorithm's own scalars."""


class Learner(GradientLearner):
    """source ──batch──▶ loss ──gradient──▶ optimizer ──▶ weights."""

    def __init__(
        self, name: str, algorithm: OnPolicyAlgorithm, source: Source, weights: WeightsWriter,
        settings: LearnerSettings, unrolls_per_batch: int, nearby: WeightsWriter | None = None,
    ) -> None:
        super().__init__(name, algorithm, weights, settings, nearby)
        self._algorithm, self._source, self._unrolls_per_batch = algorithm, source, unrolls_per_batch
        self._batches: dict[int, Unroll] = {}
        self._batch: Unroll | None = None

    def _learn(self) -> Waitable | None:
        slots = self._source.take(self._unrolls_per_batch)
        if slots is None:
            return self._source
        depth = self._source.depth()
        self._batch = self._load(slots)
        self._under_way = self._train(depth)
        return self._go_on()

    def _train(self, depth: int) -> Generator[Waitable | None, None, None]:
        copied = self._nearby is not None and self._accelerator.real
        if copied:  # on the device, in the order of the streams
            self._source.release()
        assert self._batch is not None
        seen_by_all = yield from self._seen_by_all(self._batch)
        known = yield from self._update_together()
        self._report(known, depth)
        self._observe(self._batch, seen_by_all)
        self._advance(int(known["steps"]), of_all=int(known["steps_of_all"]))
        if not copied:  # whoever waits for a slot finds the newest weights with it
            yield from self._until_published()
            self._source.release()

    def _load(self, slots: Sequence[Unroll]) -> Unroll:
        """The slots side by side on the device, always in the same place; a single slot is used where it lies."""
        tensors = [map_leaves(as_tensor, slot) for slot in slots] if self._accelerator.real or len(slots) > 1 else []
        if self._accelerator.real:
            if self._batch is None:
                return concatenate(tensors, self._settings.device)
            copy_side_by_side(tensors, self._batch)
            return self._batch
        if tensors:
            return concatenate(tensors, "cpu")
        key = id(slots[0])
        if key not in self._batches:
            self._batches[key] = map_leaves(as_tensor, slots[0])
        return self._batches[key]

    def _loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        batch = self._batch
        assert batch is not None
        loss, scalars = self._algorithm.loss(self._network, batch)
        version = batch.version.double()
        return loss, {**dict(zip(KNOWN, (batch.valid.sum(), version.mean(), version.min()), strict=True)), **scalars}

    def _batch_to_keep(self) -> Nest:
        assert self._batch is not None
        return self._batch._asdict()

    def _report(self, known: dict[str, float], depth: int) -> None:
        self.metrics.gauge("queue/depth", depth)
        for name in self._names[len(KNOWN) :]:
            self.metrics.mean(f"losses/{name}", known[name])
        self.metrics.mean("learner/policy_lag", self.updates - known["mean_version"])
        self.metrics.maximum("learner/policy_lag_max", self.updates - known["oldest_version"])

    def close(self) -> None:
        """Count what lies in the source: it will not be trained on."""
        with self._accelerator.on(self._stream):
            while (slots := self._source.take(1)) is not None:
                self.metrics.count("inference/steps_dropped", sum(int(slot.valid.sum()) for slot in slots))
                self._source.release()


def as_tensor(leaf: Any) -> torch.Tensor:
    """An array as a tensor over the same memory; tensors stay what they are."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf)


def concatenate(unrolls: Sequence[Unroll], device: str) -> Unroll:
    """Unrolls side by side along the env dimension."""

    def along(dim: int) -> Any:
        return lambda *leaves: torch.cat([leaf.to(device, non_blocking=True) for leaf in leaves], dim)

    states = map_leaves(along(0), *(unroll.state for unroll in unrolls))
    timed = [unroll._replace(state=()) for unroll in unrolls]
    joined: Unroll = map_leaves(along(1), *timed)
    return joined._replace(state=states)


def copy_side_by_side(unrolls: Sequence[Unroll], batch: Unroll) -> None:
    """`concatenate` into a batch that is there already."""
    start = 0
    for unroll in unrolls:
        stop = start + unroll.first.shape[1]
        for into, leaf in zip(leaves_of(batch[:-1]), leaves_of(unroll[:-1]), strict=True):
            into[:, start:stop].copy_(leaf, non_blocking=True)
        for into, leaf in zip(leaves_of(batch.state), leaves_of(unroll.state), strict=True):
            into[start:stop].copy_(leaf, non_blocking=True)
        start = stop
