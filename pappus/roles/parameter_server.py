"""The parameter server of Gorila and A3C: one shard of the weights, changed by the gradients of all learners.

    learner 0 ──gradient, version, loss──┐
    learner 1 ──gradient, version, loss──┼──▶ shard: optimizer ──▶ weights (versioned)
      ⋮                                  │
    learner N ──gradient, version, loss──┘

Gradients are applied as they arrive. A gradient is dropped if its weights are too old, or if the loss of its batch is
far above the running mean (Nair et al. 2015, section 4.2).
`ShardedWeights` and `ShardedChannel` are the other side: all shards as one flat buffer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pappus.config import OptimizerConfig
from pappus.core import ShardWeights, Sink, Source, StepTotal, Waitable, WeightsReader
from pappus.roles.gradient_step import learning_rate_at, make_optimizer
from pappus.roles.role import IDLE, Role
from pappus.types import Array, ArraySpec, Nest

DECAY = 0.99
"""Decay of the running mean and variance of losses."""
TRUSTED = 100
"""Gradients after which the running mean and variance are trusted."""


class Gradient(NamedTuple):
    """What a learner sends to one shard: its part of the gradient, the version of the weights, and the loss."""

    values: Any
    version: Any
    loss: Any


def gradient_spec(size: int) -> Gradient:
    """Specs of the gradients for a shard of `size` weights."""
    return Gradient(ArraySpec((size,), "float32"), ArraySpec((), "int64"), ArraySpec((), "float64"))


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the run that a shard needs."""

    optimizer: OptimizerConfig
    total_steps: int
    max_staleness: int | None
    loss_deviations: float


class UsualLoss:
    """Running mean and variance of losses, and whether a loss is far above them."""

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self.mean = self.variance = 0.0
        self.count = 0

    def admits(self, loss: float) -> bool:
        """Whether a loss is usual. One that is not counts as the largest usual one: a single high loss changes little,
        and if all losses stay high, they become usual."""
        limit = self.mean + self._deviations * math.sqrt(self.variance)
        unusual = bool(self._deviations) and self.count >= TRUSTED and loss > limit
        loss = limit if unusual else loss
        self.count += 1
        share = max(1 - DECAY, 1 / self.count)
        change = loss - self.mean
        self.mean += share * change
        self.variance = (1 - share) * (self.variance + share * change * change)
        return not unusual


class ParameterServer(Role):
    """One shard. The one that `leads` counts steps and updates for all of them, and ends the run."""

    def __init__(
        self, name: str, initial: torch.Tensor, source: Source, weights: ShardWeights, settings: ServerSettings,
        counted: StepTotal, leads: bool,
    ) -> None:
        super().__init__(name)
        self._source, self._weights, self._settings, self._counted = source, weights, settings, counted
        self._leads = leads
        self._parameter = torch.nn.Parameter(initial.clone())
        self._parameter.grad = torch.zeros_like(self._parameter)
        self._optimizer = make_optimizer(settings.optimizer, [self._parameter])
        self._usual = UsualLoss(settings.loss_deviations)
        self.steps = self.updates = 0
        self._published = False

    def step(self) -> Waitable | None:
        if self.finished:
            return IDLE
        if not self._published and self._weights.version() != self.updates:
            self._begin()
            return None
        gradients = self._source.take(1)
        if gradients is None:
            self._count_steps()
            return self._source
        gradient: Any = gradients[0]
        self._receive(gradient)
        self._source.release()
        self._count_steps()
        return None

    def receive(self, command: str, argument: int) -> None:
        if command != "finish":
            return super().receive(command, argument)
        self.finished = True

    def _begin(self) -> None:
        """Publish; take over the weights of a predecessor in this run, which are newer than any checkpoint."""
        newest = self._weights.version()
        if newest > self.updates:
            into = np.empty(self._parameter.numel(), np.float32)
            version = self._weights.read(into)
            with torch.no_grad():
                self._parameter.copy_(torch.from_numpy(into))
            self.metrics.event(
                f"back with the weights of version {version:,} and the optimizer's state of update {self.updates:,}"
            )
            self.updates, self.steps = version, self._counted.total()  # which it had counted
        self._publish()

    def _receive(self, gradient: Gradient) -> None:
        staleness, loss = self.updates - int(gradient.version), float(gradient.loss)
        oldest = self._settings.max_staleness
        self.metrics.mean("staleness", staleness)
        self.metrics.maximum("staleness_max", staleness)
        if oldest is not None and staleness > oldest:
            self.metrics.count("gradients_stale")
        elif not math.isfinite(loss) or not self._usual.admits(loss):
            self.metrics.count("gradients_unusual")
        else:
            self._apply(gradient.values)

    def _apply(self, values: Any) -> None:
        assert self._parameter.grad is not None
        self._parameter.grad.copy_(torch.from_numpy(values))
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self._optimizer.step()
        self.updates += 1
        if self._leads:
            self.metrics.count("updates")
        self._publish()

    def learning_rate(self) -> float:
        return learning_rate_at(self._settings.optimizer, self.steps, self._settings.total_steps)

    def _count_steps(self) -> None:
        total = self._counted.total()
        if self._leads:
            self.metrics.count("env_steps", total - self.steps)
            self.finished = total >= self._settings.total_steps
        self.steps = total

    def _publish(self) -> None:
        self._published = True
        self._weights.publish(self._parameter.detach().numpy(), self.updates)

    def progress(self) -> tuple[int, int] | None:
        return (self.steps, self.updates) if self._leads else None

    def save(self) -> Nest:
        return {
            "weights": self._parameter.detach().clone(), "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "steps": self.steps, "updates": self.updates,
            "losses": [self._usual.mean, self._usual.variance, self._usual.count],
        }

    def load(self, state: Nest) -> None:
        with torch.no_grad():
            self._parameter.copy_(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps, self.updates = state["steps"], state["updates"]
        self._usual.mean, self._usual.variance, self._usual.count = state["losses"]
        if self._leads and self._counted.total() < self.steps:
            self._counted.set_total(self.steps)


class ShardedWeights:
    """Reads the newest version of every shard. Its version is that of the first shard, which leads."""

    def __init__(self, readers: Sequence[WeightsReader], sizes: Sequence[int]) -> None:
        self._readers, self._sizes = readers, sizes
        self.name = readers[0].name
        self.versions = [-1] * len(readers)
        """The version of every shard that was read last."""

    def version(self) -> int:
        """The newest version, -1 until every shard has one."""
        versions = [reader.version() for reader in self._readers]
        return versions[0] if min(versions) >= 0 else -1

    def read(self, into: Array) -> int:
        begin = 0
        for i, (reader, size) in enumerate(zip(self._readers, self._sizes, strict=True)):
            if reader.version() != self.versions[i]:
                self.versions[i] = reader.read(into[begin : begin + size])
            begin += size
        return self.versions[0]

    def explain(self) -> str:
        return "no version of some shard was published yet"

    def fileno(self) -> int:
        return next((reader for reader in self._readers if reader.version() < 0), self._readers[0]).fileno()

    def clear(self) -> None: ...


class ShardedChannel(ShardedWeights):
    """The gradient channel to all shards: sends gradients, reads weights."""

    def __init__(self, readers: Sequence[WeightsReader], sinks: Sequence[Sink], sizes: Sequence[int]) -> None:
        super().__init__(readers, sizes)
        self._sinks = sinks

    def full(self) -> Waitable | None:
        """A shard that cannot take one more gradient now."""
        return next((sink for sink in self._sinks if sink.acquire() is None), None)

    def save(self) -> Nest:
        return {"versions": list(self.versions)}

    def load(self, saved: Nest) -> None:
        self.versions = list(saved["versions"])

    def send(self, gradient: Array, loss: float) -> None:
        """Send every shard its part of a gradient, and the version of its weights that was read last."""
        begin = 0
        for sink, size, version in zip(self._sinks, self._sizes, self.versions, strict=True):
            slot: Any = sink.acquire()
            assert slot is not None, "full() comes before send()"
            slot.values[:] = gradient[begin : begin + size]
            slot.version[...], slot.loss[...] = version, loss
            sink.commit()
            begin += size


def shard_sizes(total: int, shards: int) -> list[int]:
    """How many of `total` weights each shard has, as evenly as possible."""
    return [total // shards + (i < total % shards) for i in range(shards)]
