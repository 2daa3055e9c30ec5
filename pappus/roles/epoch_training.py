"""Training on unrolls in epochs of minibatches (PPO): several updates per batch.

    source ──unrolls──▶ batch ──▶ (minibatch ──▶ loss ──▶ update) × minibatches × epochs

Learners that share updates have their own parts of every minibatch, and make the same updates: whether a batch is left
early depends on what all of them report.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from pappus.core import ArrayLoss, EpochAlgorithm, Source, SyncedEpochs, Waitable
from pappus.recording.unrolls import as_tensor, concatenate
from pappus.roles.blame import to_blame, unroll_part
from pappus.roles.gradient_step import Computed, GradientStep
from pappus.roles.gradient_sync import AllReducedGradient
from pappus.roles.learner import Trained, Training, steps_left
from pappus.types import ORIGIN, Array, Nest, Unroll, leaves_of, map_leaves


class EpochTraining(Training):
    """`unrolls_per_batch` unrolls of the source make a batch; with other learners, `synced` says how to share it."""

    def __init__(
        self, algorithm: EpochAlgorithm, source: Source, gradient: GradientStep, unrolls_per_batch: int,
        synced: SyncedEpochs | None = None,
    ) -> None:
        self._algorithm, self._source, self._gradient = algorithm, source, gradient
        self._unrolls_per_batch, self._synced = unrolls_per_batch, synced
        self.interruptible = gradient.others is not None
        assert self.interruptible == (synced is not None), "learners that share updates share epochs"
        self._unroll: Any = None
        self._steps: Any = None
        self._minibatch: Any = None
        self._reports = False
        self._valid = torch.zeros((), device=gradient.settings.device)
        """Valid steps of the minibatch, always in the same memory, where a captured graph reads them."""
        self._on_arrays: ArrayLoss | None = gradient.array_loss(algorithm, gradient.network)

    def take(self) -> Waitable | None:
        """Take a batch of unrolls, side by side; a single one is used in place where the learner can read it."""
        slots = self._source.take(self._unrolls_per_batch)
        if slots is None:
            return self._source
        tensors: list[Unroll] = [map_leaves(as_tensor, slot) for slot in slots]
        alone = len(tensors) == 1 and not self._gradient.accelerator.real
        self._unroll = tensors[0] if alone else concatenate(tensors, self._gradient.settings.device)
        return None

    def train(self) -> Generator[Waitable | None, None, Trained]:
        """Make the updates of all epochs, or fewer if the algorithm says that it is enough."""
        unroll, gradient = self._unroll, self._gradient
        lag = gradient.updates - float(unroll.version.double().mean())  # a mean over all steps
        fresh = lag == 0 and gradient.settings.precision == "float32"  # the network that acted is the present one
        moments = yield from gradient.gather_moments(unroll)
        steps = int(unroll.valid.sum())
        if self._synced is None or gradient.others is None:
            updates, of_all, scalars = self._alone(fresh, steps)
        else:
            updates, of_all, scalars = yield from self._with_others(self._synced, gradient.others, fresh)
        gradient.metrics.lag(lag)
        for name, value in scalars.items():
            gradient.metrics.mean(f"losses/{name}", value)
        gradient.observe(unroll, moments)
        return Trained(steps, of_all, updates)

    def _alone(self, fresh: bool, valid: int) -> tuple[int, int, Mapping[str, float]]:
        """Updates, valid steps, and scalars of the last minibatch."""
        algorithm, gradient, updates = self._algorithm, self._gradient, 0
        self._steps = steps = self._readable(algorithm.prepare(gradient.network, self._unroll, fresh))
        for minibatch, reports in algorithm.minibatches(steps):
            self._load(minibatch, reports)
            updates += 1
            if gradient.accelerator.real and not reports:
                gradient.backward_and_apply()
                continue
            computed = self._backward()
            gradient.apply(computed, int(reports))
            if reports and algorithm.enough(computed.scalars):
                break
        return updates, valid, computed.scalars

    def _with_others(
        self, synced: SyncedEpochs, others: AllReducedGradient, fresh: bool
    ) -> Generator[Waitable | None, None, tuple[int, int, Mapping[str, float]]]:
        """Updates, valid steps of all learners, and their mean scalars of the last minibatch."""
        steps = yield from others.answer(synced.prepare(self._gradient.network, self._unroll, fresh))
        updates = 0
        for _ in range(synced.epochs):
            minibatches = yield from others.answer(synced.epoch(steps))
            of_all, computed = yield from self._shared_epoch(minibatches, others)
            updates += len(minibatches)
            scalars = yield from self._mean_of_all(computed, others)
            if self._algorithm.enough(scalars):
                break
        return updates, of_all, scalars

    def _shared_epoch(
        self, minibatches: Any, others: AllReducedGradient
    ) -> Generator[Waitable | None, None, tuple[int, Computed]]:
        """Valid steps of all learners, and what was computed for this learner's part of the last minibatch."""
        total = 0
        for i, (minibatch, valid) in enumerate(minibatches):
            self._load(self._readable(minibatch), reports=i == len(minibatches) - 1)
            self._valid.copy_(valid)
            computed = self._backward()
            if self._on_arrays is not None:
                others.prepare(self._valid)
                computed.scalars["steps"] = self._valid.item()
            computed, of_all = yield from self._gradient.combined(computed)
            self._gradient.apply(computed, int(self._reports))
            total += of_all
        return total, computed

    def _mean_of_all(
        self, computed: Computed, others: AllReducedGradient
    ) -> Generator[Waitable | None, None, dict[str, float]]:
        """The algorithm's scalars, a mean over the valid steps of all learners."""
        scalars = dict(computed.scalars)
        steps = scalars.pop("steps")
        own = torch.tensor([steps, *scalars.values()], device=self._gradient.settings.device)
        rows = (yield from others.gather(own)).double()
        share = rows[:, :1] / rows[:, :1].sum().clamp(min=1)
        return dict(zip(scalars, (share * rows[:, 1:]).sum(0).tolist(), strict=True))

    def _readable(self, steps: Any) -> Any:
        return steps if self._on_arrays is None else map_leaves(lambda leaf: leaf.numpy(), steps)

    def _load(self, minibatch: Any, reports: bool) -> None:
        """On a device always into the same memory, where a captured graph reads it."""
        self._reports = reports
        if self._minibatch is None or not self._gradient.accelerator.real:
            self._minibatch = minibatch
            return
        for into, leaf in zip(leaves_of(self._minibatch), leaves_of(minibatch), strict=True):
            into.copy_(leaf)

    def _backward(self) -> Computed:
        if self._on_arrays is None:
            return self._gradient.backward(int(self._reports))
        return self._gradient.computed(*self._on_arrays(self._minibatch, self._reports))

    def loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The algorithm's loss of the minibatch; with its valid steps where learners share it."""
        loss, scalars = self._algorithm.loss(self._gradient.network, self._minibatch, self._reports)
        return loss, scalars if self._synced is None else {"steps": self._valid, **scalars}

    def batch(self) -> Nest:
        """The minibatch; on a device all steps, if nobody waited for the minibatch that was to blame."""
        at_fault = self._steps if self._gradient.accelerator.real and self._synced is None else self._minibatch
        kept: Nest = map_leaves(as_tensor, at_fault)._asdict()
        return kept

    def give_up(self, blamed: Sequence[int]) -> int:
        return int(self._unroll.valid.sum())

    def blamed(self) -> list[int] | None:
        algorithm, network, unroll = self._algorithm, self._gradient.network, self._unroll

        def is_finite(columns: Array, tame: bool) -> bool:
            part = unroll_part(unroll, columns, tame)
            return self._gradient.is_finite(
                lambda: algorithm.loss(network, algorithm.prepare(network, part, False), False)[0]
            )

        return to_blame(unroll.behaviour[ORIGIN][0].cpu().numpy(), is_finite)

    def release(self) -> None:
        self._source.release()

    def left(self) -> int:
        return steps_left(self._source)
