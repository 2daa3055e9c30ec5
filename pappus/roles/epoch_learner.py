"""The learner of algorithms that go over each batch several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pappus.core import EpochAlgorithm, Source, Waitable, WeightsWriter
from pappus.roles.gradient_learner import GradientLearner, Known, LearnerSettings
from pappus.roles.learner import as_tensor, concatenate
from pappus.types import Nest, Unroll, leaves_of, map_leaves


class EpochLearner(GradientLearner):
    """source ──batch──▶ (minibatch ──▶ loss ──gradient──▶ optimizer) × epochs × minibatches ──▶ weights.

    Slots are given back when the weights are published: whoever waits for one acts with the newest.
    """

    def __init__(
        self, name: str, algorithm: EpochAlgorithm, source: Source, weights: WeightsWriter, settings: LearnerSettings,
        unrolls_per_batch: int,
    ) -> None:
        super().__init__(name, algorithm, weights, settings)
        self._algorithm, self._source, self._unrolls_per_batch = algorithm, source, unrolls_per_batch
        self._minibatch: Any = None
        self._reports = False
        plain = not self._accelerator.real and settings.precision == "float32"
        self._on_arrays = algorithm.on_arrays(self._network) if plain else None
        self._gradient = self._flat.gradient.numpy() if plain else np.zeros(0)

    def _learn(self) -> Waitable | None:
        slots = self._source.take(self._unrolls_per_batch)
        if slots is None:
            return self._source
        batch = self._joined(slots)
        lag = self._lag(batch)
        self.metrics.mean("learner/policy_lag", lag)
        updates, known = self._go_over(self._algorithm.prepare(self._network, batch, self._is_fresh(lag)))
        for name in self._names:
            self.metrics.mean(f"losses/{name}", known[name])
        self._observe(batch)
        self._advance(int(batch.valid.sum()), updates)
        self._source.release()
        return None

    def _lag(self, batch: Unroll) -> float:
        """Updates since the weights that acted, a mean over all steps."""
        return self.updates - float(batch.version.double().mean())

    def _is_fresh(self, lag: float) -> bool:
        """Whether the network that acted is the present one, to the bit."""
        return lag == 0 and self._settings.precision == "float32"

    def _own_gradient(self) -> Known:
        if self._on_arrays is None:
            return super()._own_gradient()
        loss, scalars = self._on_arrays(self._minibatch, self._reports)
        self._names = list(scalars)
        return {"loss": loss, "gradient_norm": self._norm_of_arrays(), **scalars}

    def _norm_of_arrays(self) -> float:
        norm = math.sqrt(self._gradient @ self._gradient)
        self._norm.fill_(norm)
        return norm

    def _joined(self, slots: Sequence[Unroll]) -> Unroll:
        """The slots side by side; a single one is used where it lies, if the learner can read it there."""
        tensors: list[Unroll] = [map_leaves(as_tensor, slot) for slot in slots]
        if len(tensors) == 1 and not self._accelerator.real:
            return tensors[0]
        return concatenate(tensors, self._settings.device)

    def _go_over(self, steps: Any) -> tuple[int, dict[str, float]]:
        """How many updates were made, and what the last one said."""
        if self._on_arrays is not None:
            steps = map_leaves(lambda leaf: leaf.numpy(), steps)
        updates, known = 0, {}
        for minibatch, reports in self._algorithm.minibatches(steps):
            self._reports = reports
            self._load(minibatch)
            known = self._update()
            updates += 1
            if self._reports and self._algorithm.enough(known):
                break
        return updates, known

    def _load(self, minibatch: Any) -> None:
        """On a device always in the same place, where a captured graph looks for it."""
        if self._minibatch is None or not self._accelerator.real:
            self._minibatch = minibatch
            return
        for into, leaf in zip(leaves_of(self._minibatch), leaves_of(minibatch), strict=True):
            into.copy_(leaf)

    def _kind_of_update(self) -> int:
        return int(self._reports)

    def _loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self._algorithm.loss(self._network, self._minibatch, self._reports)

    def _batch_to_keep(self) -> Nest:
        kept: Nest = map_leaves(as_tensor, self._minibatch)._asdict()
        return kept
