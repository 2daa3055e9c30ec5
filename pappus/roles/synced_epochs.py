"""The learner of algorithms that go over each batch several times, one of several that share every minibatch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from pappus.core import EpochAlgorithm, Source, SyncedEpochs, Waitable, WeightsWriter
from pappus.roles.epoch_learner import EpochLearner
from pappus.roles.gradient_learner import Known, LearnerSettings
from pappus.roles.synced_gradient import SyncedGradient
from pappus.types import Nest, Unroll, map_leaves

STEPS = "steps"
"""What is known of a minibatch apart from the algorithm's own scalars."""


class SyncedEpochLearner(EpochLearner):
    """source ──batch──▶ (minibatch ──▶ loss ──gradient──▶ sum over learners ──▶ optimizer) × … ──▶ weights.

    All learners make the same updates: whether a batch is left early is decided by what all say of it.
    """

    def __init__(
        self, name: str, algorithm: EpochAlgorithm, together: SyncedEpochs, source: Source, weights: WeightsWriter,
        settings: LearnerSettings, unrolls_per_batch: int,
    ) -> None:
        super().__init__(name, algorithm, source, weights, settings, unrolls_per_batch)
        assert self._common is not None, "who is alone has an EpochLearner"
        self._others: SyncedGradient = self._common
        self._together = together
        self._valid = torch.zeros((), device=settings.device)
        """Valid steps of the minibatch, always in the same place, where a captured graph looks for them."""
        self._before: Nest = None

    def _learn(self) -> Waitable | None:
        slots = self._source.take(self._unrolls_per_batch)
        if slots is None:
            return self._source
        self._before = super().save()
        self._under_way = self._train(self._joined(slots))
        return self._go_on()

    def _train(self, batch: Unroll) -> Generator[Waitable | None, None, None]:
        lag = self._lag(batch)
        seen_by_all = yield from self._seen_by_all(batch)
        prepares = self._together.prepare(self._network, batch, self._is_fresh(lag))
        steps = yield from self._others.answer(prepares)
        updates = 0
        for _ in range(self._together.epochs):
            made, of_all, known = yield from self._epoch(steps)
            updates += made
            if self._algorithm.enough(known):
                break
        self.metrics.mean("learner/policy_lag", lag)
        for name, value in known.items():
            self.metrics.mean(f"losses/{name}", value)
        self._observe(batch, seen_by_all)
        self._advance(int(batch.valid.sum()), updates, of_all)
        yield from self._until_published()
        self._source.release()

    def _epoch(self, steps: Any) -> Generator[Waitable | None, None, tuple[int, int, Known]]:
        """How many updates were made, the valid steps of all learners, and what all said of the last minibatch."""
        minibatches = yield from self._others.answer(self._together.epoch(steps))
        of_all = 0.0
        for i, (minibatch, valid) in enumerate(minibatches):
            self._reports = i == len(minibatches) - 1
            self._load(minibatch if self._on_arrays is None else map_leaves(lambda leaf: leaf.numpy(), minibatch))
            self._valid.copy_(valid)
            known = yield from self._update_together()
            of_all += known["steps_of_all"]
        said = yield from self._mean_of_all(known)
        return len(minibatches), int(of_all), said

    def _mean_of_all(self, known: Known) -> Generator[Waitable | None, None, Known]:
        """What the algorithm reported, a mean over the valid steps of all learners."""
        names = [name for name in self._names if name != STEPS]
        own = torch.tensor([known[STEPS], *(known[name] for name in names)], device=self._settings.device)
        everybodys = (yield from self._others.gather(own)).double()
        share = everybodys[:, :1] / everybodys[:, :1].sum().clamp(min=1)
        return dict(zip(names, (share * everybodys[:, 1:]).sum(0).tolist(), strict=True))

    def _own_gradient(self) -> Known:
        known = super()._own_gradient()
        if self._on_arrays is None:
            return known
        self._others.prepare(self._valid)
        return {**known, STEPS: self._valid.item()}

    def _loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, scalars = super()._loss()
        return loss, {STEPS: self._valid, **scalars}

    def receive(self, command: str, argument: int) -> None:
        """`finish` within a batch leaves the weights as they were before it: to go over the rest of it takes all
        learners, and another may have finished already."""
        if command == "finish" and self._under_way is not None:
            self._under_way = None
            if self._before is not None:
                self.load(self._before)
        super().receive(command, argument)

    def save(self) -> Nest:
        """What it was before the batch that is under way: that one is gone over anew."""
        return self._before if self._under_way is not None else super().save()
