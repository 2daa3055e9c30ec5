"""The learner: takes batches, changes weights, publishes them. It is composed of three parts.

    training ──batch──▶ gradient step ──weights──▶ publication
    (`Training`)        (`GradientStep`)           (`Publication`)

Training says where batches come from and what is done with one: unrolls once (`unroll_training`), unrolls in epochs of
minibatches (`epoch_training`), items of replay (`replay_training`). The gradient step says how the gradient becomes an
update: alone, with those of other learners, or through a channel (`gradient_sync`). Of learners that share every update
the first publishes, saves and counts updates for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import NamedTuple, Protocol

import torch

from pappus.core import Waitable, WeightsReader, WeightsWriter
from pappus.roles.gradient_step import GradientStep, Objective
from pappus.roles.role import IDLE, Idle, Role
from pappus.types import Nest

PUBLISH_SECONDS = 0.25
"""How often roles that do not share the device get new weights from it."""
POLL_SECONDS = 1e-4
"""How often to look whether the first learner has published: it is about to do so."""


class Trained(NamedTuple):
    """What was done with a batch."""

    steps: int
    """Valid env steps of this learner's batch."""
    steps_of_all: int
    """Those of the batches of all learners that share the update."""
    updates: int = 1


class Training(Objective, Protocol):
    """Where batches come from, and what is done with one."""

    interruptible: bool
    """Whether `train` waits between updates of one batch: then checkpoints hold what was before the batch."""

    def take(self) -> Waitable | None:
        """Take the next batch, or return the port that has none."""
        ...

    def train(self) -> Generator[Waitable | None, None, Trained]:
        """Make the updates of the batch. It yields the port that it waits for, or None when it made progress."""
        ...

    def release(self) -> None:
        """Give the batch back: the weights that it led to are published."""
        ...

    def save(self) -> dict[str, Nest]:
        """State beside that of the gradient step."""
        ...

    def load(self, state: Nest) -> None:
        """Continue from a checkpoint of the learner."""
        ...

    def close(self) -> None: ...


class Publication(Idle):
    """Where weights are published. As a port it is what learners wait for whose actors need the newest weights.

    `nearby` is read by roles on the same device: they get every version. Then all others get one every
    `PUBLISH_SECONDS`, since a copy from the device takes time. `published` reads what the first learner publishes.
    """

    name = "publication"

    def __init__(
        self, weights: WeightsWriter | None, nearby: WeightsWriter | None = None,
        published: WeightsReader | None = None,
    ) -> None:
        self._weights, self._nearby, self._published = weights, nearby, published
        self._next = 0.0

    def publish(self, flat: torch.Tensor, version: int, last: bool) -> None:
        """Publish a version; the last one reaches everybody."""
        if self._nearby is not None:
            self._nearby.publish(flat, version)
            now = time.perf_counter()
            if now < self._next and not last:
                return
            self._next = now + PUBLISH_SECONDS
        if self._weights is not None:
            self._weights.publish(flat.cpu().numpy(), version)

    def lacks(self, version: int) -> bool:
        """Whether the first learner has still to publish this version."""
        return self._published is not None and self._published.version() < version

    def explain(self) -> str:
        return "the first learner has not published yet"


class Learner(Role):
    """Makes updates until the run has all its steps. One `step()` is the training on one batch, or a part of it.

    Without a publication, gradients are applied elsewhere, and whoever applies them counts, publishes and saves.
    """

    def __init__(
        self, name: str, gradient: GradientStep, training: Training, publication: Publication | None = None
    ) -> None:
        super().__init__(name)
        self.metrics = gradient.metrics
        self._gradient, self._training, self._publication = gradient, training, publication
        gradient.objective = training
        self.leads = self.stateful = gradient.leads
        self._total_steps = math.inf if publication is None else gradient.settings.total_steps
        self._begun = publication is None
        """Whether the first weights were published."""
        self._under_way: Generator[Waitable | None, None, None] | None = None
        self._before: Nest = None
        """The state before the batch that is under way, if its training is interruptible."""

    @property
    def steps(self) -> int:
        """Env steps that were learned from, by all learners that share updates."""
        return self._gradient.steps

    @property
    def updates(self) -> int:
        """Updates so far: the version of the weights."""
        return self._gradient.updates

    def step(self) -> Waitable | None:
        """Train on one batch or go on with it, or return the port that has to be waited for."""
        if self.finished or self._gradient.steps >= self._total_steps:
            return IDLE
        with self._gradient.on_device():
            if self._under_way is None:
                if not self._begun:
                    self._publish()  # not before a checkpoint could be loaded
                    return None
                port = self._take()
                if port is not None:
                    return port
                self._before = self.save() if self._training.interruptible else None
                self._under_way = self._train()
            return self._go_on()

    def _take(self) -> Waitable | None:
        sent = self._gradient.sent
        port = None if sent is None else sent.blocked()
        return self._training.take() if port is None else port

    def _go_on(self) -> Waitable | None:
        assert self._under_way is not None
        try:
            return next(self._under_way)
        except StopIteration:
            self._under_way = None
            return None

    def _train(self) -> Generator[Waitable | None, None, None]:
        """A batch is given back when its weights are published: whoever waits for its memory finds the newest."""
        self._advance((yield from self._training.train()))
        if self._publication is not None:
            while self._publication.lacks(self.updates):
                self.wake_at = time.perf_counter() + POLL_SECONDS
                yield self._publication
            self.wake_at = None
        self._training.release()

    def _advance(self, trained: Trained) -> None:
        self._gradient.steps += trained.steps_of_all
        self._gradient.updates += trained.updates
        if self._publication is None:
            self.metrics.count("gradients", trained.updates)
            return
        self.metrics.count("env_steps", trained.steps)
        if self.leads:
            self.metrics.count("updates", trained.updates)
            self.finished = self.steps >= self._total_steps
        self._publish()

    def _publish(self) -> None:
        self._begun = True
        if self.leads and self._publication is not None:
            self._publication.publish(self._gradient.flat.values.detach(), self.updates, self.finished)

    def receive(self, command: str, argument: int) -> None:
        """`finish`: publish the weights as they are. Within an interruptible batch, publish those from before it: its
        other updates take all learners, and another may have finished already."""
        if command != "finish":
            return super().receive(command, argument)
        if self._under_way is not None and self._training.interruptible:
            self._under_way = None
            if self._before is not None:
                self.load(self._before)
        self.finished = True
        with self._gradient.on_device():
            self._publish()

    def progress(self) -> tuple[int, int] | None:
        """Steps and updates, if this learner leads."""
        return (self.steps, self.updates) if self.leads else None

    def save(self) -> Nest:
        """Weights, optimizer, counts and random state. Learners that share updates save them once."""
        if self._under_way is not None and self._training.interruptible:
            return self._before
        return {**self._gradient.save(), **self._training.save()} if self.leads else None

    def load(self, state: Nest) -> None:
        """Continue from a checkpoint."""
        with self._gradient.on_device():
            self._gradient.load(state)
            self._training.load(state)
            self.finished = self.leads and self.steps >= self._total_steps
            self._publish()

    def close(self) -> None:
        with self._gradient.on_device():
            self._training.close()
