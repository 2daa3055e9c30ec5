"""The learner of Ape-X and its kin: learns from batches out of replay, and says how surprising they were."""

from __future__ import annotations

from typing import Any

import torch

from pappus.core import ItemSource, ReplayAlgorithm, StepTotal, Waitable, WeightsWriter
from pappus.experience import SMALLEST_PRIORITY, ItemBatch
from pappus.networks.flat import FlatParameters
from pappus.roles.gradient_learner import GradientLearner, LearnerSettings
from pappus.roles.staleness import Staleness
from pappus.types import Nest, leaves_of, map_leaves

INFO_UPDATES = 50
"""Updates between two looks at the table's counts."""


class ReplayLearner(GradientLearner):
    """replay ──batch──▶ loss ──gradient──▶ optimizer ──▶ weights, and new priorities back; a target network follows.

    Its `steps` are those that the actors have made: the limiter of the table keeps both sides in step.
    """

    def __init__(
        self, name: str, algorithm: ReplayAlgorithm, source: ItemSource, weights: WeightsWriter, counted: StepTotal,
        settings: LearnerSettings, capacity: int,
    ) -> None:
        """`capacity` is that of the table."""
        super().__init__(name, algorithm, weights, settings)
        self._capacity, self._service = capacity, 0
        self._staleness = Staleness(capacity)
        self._algorithm, self._source, self._counted = algorithm, source, counted
        self._target: Any = algorithm.build_network()
        self._target.requires_grad_(False)
        self._target_flat = FlatParameters(self._target, device=settings.device)
        self._target_flat.values.copy_(self._flat.values)
        self._batch: Any = None
        self._weight = self._priority = torch.zeros(0, device=settings.device)

    def _learn(self) -> Waitable | None:
        batch = self._source.take()
        if batch is None:
            return self._source
        self._load(batch)
        known = self._update()
        self._source.update(batch, self._priority.double().cpu().numpy() + SMALLEST_PRIORITY)
        for name in self._names:
            self.metrics.mean(f"losses/{name}", known[name])
        self._report_ages(batch)
        self._advance(self._counted.total() - self.steps)
        self._follow()
        if self.updates % INFO_UPDATES == 0:
            self._report_table()
        return None

    def _load(self, batch: ItemBatch) -> None:
        """The batch as tensors; on a device always in the same place, where a captured graph looks for it."""
        items, weight = map_leaves(torch.from_numpy, (batch.items, batch.weight))
        if not self._accelerator.real:
            self._batch, self._weight = items, weight
        elif self._batch is None:
            self._batch, self._weight = map_leaves(lambda leaf: leaf.to(self._settings.device), (items, weight))
        else:
            for into, leaf in zip(leaves_of((self._batch, self._weight)), leaves_of((items, weight)), strict=True):
                into.copy_(leaf, non_blocking=True)

    def _kind_of_update(self) -> int:
        """Which parts of the network rest, as a number."""
        return sum((self.updates % every > 0) << i for i, every in enumerate(self._algorithm.part_delays))

    def _loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, scalars, priority = self._algorithm.loss(
            self._network, self._target, self._batch, self._weight, self.updates
        )
        if self._priority.shape != priority.shape:
            self._priority = torch.zeros_like(priority)
        self._priority.copy_(priority.detach())  # always the same tensor, whichever graph writes it
        return loss, scalars

    def _apply_gradient(self) -> None:
        """Parts whose turn it is not keep what they are, and what their optimizer remembers."""
        delays = self._algorithm.part_delays
        resting = [
            parameter for parameter, every in zip(self._parameters, delays, strict=True) if self.updates % every
        ]
        gradients = [parameter.grad for parameter in resting]
        for parameter in resting:
            parameter.grad = None
        super()._apply_gradient()
        for parameter, gradient in zip(resting, gradients, strict=True):
            parameter.grad = gradient

    def _batch_to_keep(self) -> Nest:
        return {**self._batch._asdict(), "weight": self._weight}

    def _follow(self) -> None:
        """The target network takes over weights when it is time to."""
        updates = self._algorithm.target_updates
        if self.updates % updates.every == 0:
            with torch.no_grad():
                self._target_flat.values.lerp_(self._flat.values, updates.share)

    def _report_ages(self, batch: ItemBatch) -> None:
        if batch.service != self._service:
            self._service, self._staleness = batch.service, Staleness(self._capacity)
        staleness, fresh = self._staleness.of(batch.keys, self.updates)
        if staleness is not None:
            self.metrics.mean("replay/priority_staleness", staleness)
        self.metrics.mean("replay/first_draws", fresh)
        self.metrics.mean("replay/age", batch.age)
        self._staleness.written(batch.keys, self.updates)

    def _report_table(self) -> None:
        for name, value in self._source.info().items():
            if name in ("size", "inserts", "samples"):
                self.metrics.gauge(f"replay/{name}", value)

    def save(self) -> Nest:
        """What every learner saves, and the target network."""
        return {**super().save(), "target": self._target_flat.values.detach().cpu().clone()}

    def load(self, state: Nest) -> None:
        """Go on from a checkpoint."""
        with torch.no_grad():
            self._target_flat.values.copy_(state["target"])
        self._counted.set_total(state["steps"])
        super().load(state)

    def close(self) -> None:
        self._source.close()
