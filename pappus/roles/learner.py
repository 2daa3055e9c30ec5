"""The learner: takes batches, changes weights, publishes them. It is composed of three parts.

    training ──batch──▶ gradient step ──weights──▶ publication
    (`Training`)        (`GradientStep`)           (`Publication`)

Training defines where batches come from and how one is used: unrolls once (`UnrollTraining`), unrolls in epochs of
minibatches (`epoch_training`), items of replay (`replay_training`). It also has the loss: `GradientStep.backward` calls
`Training.loss`, which calls the algorithm's. The gradient step defines how the gradient becomes an update: alone,
with those of other learners (`gradient_sync`), or through a channel. Of learners that share every update the first
publishes, saves and counts updates for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

import torch

from pappus.core import OnPolicyAlgorithm, Sink, Source, StepCounter, Waitable, WeightsReader, WeightsWriter
from pappus.errors import NonFiniteError
from pappus.recording.unrolls import as_tensor, concatenate, copy_side_by_side
from pappus.roles.blame import accuse, to_blame, unroll_part
from pappus.roles.gradient_step import GradientStep
from pappus.roles.role import IDLE, Idle, Role
from pappus.telemetry.accounts import TRAINED
from pappus.types import ORIGIN, Array, Nest, Unroll, map_leaves

PUBLISH_SECONDS = 0.25
"""How often roles that do not share the device get new weights from it."""
POLL_SECONDS = 1e-4
"""How often to look whether the first learner has published: it is about to do so."""
MOST_SKIPPED = 10
"""Batches in a row whose loss is not finite: then it is not the batches that are broken."""
BATCH_SCALARS = ("steps", "mean_version", "oldest_version")
"""Scalars of every batch of unrolls, before the algorithm's own."""


class Trained(NamedTuple):
    """The result of training on a batch."""

    steps: int
    """Valid env steps of this learner's batch."""
    steps_of_all: int
    """Those of the batches of all learners that share the update."""
    updates: int = 1


class Training:
    """Where batches come from, and how the learner trains on one."""

    interruptible = False
    """Whether `train` waits between updates of one batch: then checkpoints hold what was before the batch."""
    replays = False
    """Whether its batches come from replay, where a step may be drawn never or often."""

    def take(self) -> Waitable | None:
        """Take the next batch, or return the port that has none."""
        raise NotImplementedError

    def train(self) -> Generator[Waitable | None, None, Trained]:
        """Make the updates of the batch. It yields the port that it waits for, or None when it made progress."""
        raise NotImplementedError

    def loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of the present batch, and named scalars to report. With an all-reduce, `steps` is among them: the
        valid steps that the loss is a mean or a sum of."""
        raise NotImplementedError

    def batch(self) -> Nest:
        """The present batch, to be saved if its loss is not finite."""
        raise NotImplementedError

    def give_up(self, blamed: Sequence[int]) -> int:
        """The loss is not finite: undo the effects of `train`, and keep the data of `blamed` clients from being used
        again; the env steps of this learner that are lost."""
        return 0

    def blamed(self) -> list[int] | None:
        """Its loss is not finite: the clients whose experience made it so, by their origins; None if the batch of this
        learner is finite, and that of another one is not."""
        return []

    def release(self) -> None:
        """Return the batch to its source: the weights that it led to are published."""

    def left(self) -> int:
        """Give back what was not trained on; its valid steps."""
        return 0

    def save(self) -> dict[str, Nest]:
        """State beside that of the gradient step."""
        return {}

    def load(self, state: Nest) -> None:
        """Continue from a checkpoint of the learner."""

    def close(self) -> None: ...


class UnrollTraining(Training):
    """source ──`unrolls_per_batch` unrolls──▶ batch ──▶ loss ──▶ one update, or `epochs`: IMPALA, SEED, A2C, A3C.
    A worker that learns from its own unrolls has no queue to report on; it counts its steps with `counter`."""

    def __init__(
        self, algorithm: OnPolicyAlgorithm, source: Source, gradient: GradientStep, unrolls_per_batch: int,
        releases_early: bool = False, counter: StepCounter | None = None, epochs: int = 1,
    ) -> None:
        """`releases_early`: give slots back once they are copied to the device, in the order of the streams."""
        self._algorithm, self._source, self._gradient = algorithm, source, gradient
        self._unrolls_per_batch, self._counter, self._epochs = unrolls_per_batch, counter, epochs
        self.interruptible = epochs > 1 and gradient.others is not None
        self._releases_early = releases_early and gradient.accelerator.real
        self._unrolls: dict[int, Unroll] = {}
        """Slots as tensors."""
        self._batch: Unroll | None = None
        self._depth = 0

    def take(self) -> Waitable | None:
        slots = self._source.take(self._unrolls_per_batch)
        if slots is None:
            return self._source
        self._depth = self._source.depth()
        self._batch = self._joined(slots)
        if self._releases_early:
            self._source.release()
        return None

    def train(self) -> Generator[Waitable | None, None, Trained]:
        batch, gradient = self._batch, self._gradient
        assert batch is not None
        moments = yield from gradient.gather_moments(batch)
        for _ in range(self._epochs - 1):
            yield from self._unreported_update()
        computed, of_all = yield from gradient.combined(gradient.backward())
        gradient.apply(computed)
        self._report(computed.scalars)
        gradient.observe(batch, moments)
        steps = int(computed.scalars["steps"])
        if self._counter is not None:
            self._counter.add(steps)
        return Trained(steps, of_all, self._epochs)

    def _unreported_update(self) -> Generator[Waitable | None, None, None]:
        gradient = self._gradient
        if gradient.accelerator.real and gradient.others is None:
            return gradient.backward_and_apply()
        computed, _ = yield from gradient.combined(gradient.backward())
        gradient.apply(computed)

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
        assert self._batch is not None
        return self._batch._asdict()

    def give_up(self, blamed: Sequence[int]) -> int:
        assert self._batch is not None
        return int(self._batch.valid.sum())

    def blamed(self) -> list[int] | None:
        batch, network = self._batch, self._gradient.network
        assert batch is not None

        def is_finite(columns: Array, tame: bool) -> bool:
            part = unroll_part(batch, columns, tame)
            return self._gradient.is_finite(lambda: self._algorithm.loss(network, part)[0])

        return to_blame(batch.behaviour[ORIGIN][0].cpu().numpy(), is_finite)

    def _report(self, scalars: Mapping[str, float]) -> None:
        metrics, updates = self._gradient.metrics, self._gradient.updates
        for name, value in scalars.items():
            if name not in BATCH_SCALARS:
                metrics.mean(f"losses/{name}", value)
        if self._counter is None:
            metrics.gauge("queue/depth", self._depth)
            metrics.lag(updates - scalars["mean_version"])
            metrics.maximum("learner/policy_lag_max", updates - scalars["oldest_version"])

    def release(self) -> None:
        if not self._releases_early:
            self._source.release()

    def left(self) -> int:
        return steps_left(self._source)


def steps_left(source: Source) -> int:
    """Give back all unrolls of a source; their valid steps."""
    steps = 0
    while (slots := source.take(1)) is not None:
        steps += sum(int(slot.valid.sum()) for slot in slots)
        source.release()
    return steps


class Publication(Idle):
    """Publishes weights. As a port, learners wait for it if their actors need the newest weights.
    `nearby` is read by roles on the same device, which get every version. Then, and with `seldom`, others get one every
    `PUBLISH_SECONDS`, since a copy from the device takes time. `published` reads what the first learner publishes."""

    name = "publication"

    def __init__(
        self, weights: WeightsWriter | None, nearby: WeightsWriter | None = None,
        published: WeightsReader | None = None, seldom: bool = False,
    ) -> None:
        self._weights, self._nearby, self._published = weights, nearby, published
        self._seldom, self._next = seldom or nearby is not None, 0.0
        self._sent = -1
        """The version that all readers can have."""

    def publish(self, flat: torch.Tensor, version: int, last: bool) -> None:
        """Publish a version; the last one reaches all readers."""
        if self._nearby is not None:
            self._nearby.publish(flat, version)
        if version == self._sent:
            return
        if self._seldom:
            now = time.perf_counter()
            if now < self._next and not last:
                return
            self._next = now + PUBLISH_SECONDS
        self._sent = version
        if self._weights is not None:
            self._weights.publish(flat.cpu().numpy(), version)

    def lacks(self, version: int) -> bool:
        """Whether the first learner has not published this version yet."""
        return self._published is not None and self._published.version() < version

    def explain(self) -> str:
        return "the first learner has not published yet"


class Learner(Role):
    """Makes updates until the run has all its steps. One `step()` is the training on one batch, or a part of it.
    Without a publication, gradients are applied by another role, which counts, publishes and saves. Where envs of
    others take part, `suspects` gets the origins of those that made a batch not finite."""

    def __init__(
        self, name: str, gradient: GradientStep, training: Training, publication: Publication | None = None,
        suspects: Sink | None = None,
    ) -> None:
        super().__init__(name)
        self._suspects = suspects
        self.metrics, self.layout = gradient.metrics, gradient.flat.layout
        self._gradient, self._training, self._publication = gradient, training, publication
        gradient.objective = training
        self.leads = self.stateful = gradient.leads
        self._total_steps = math.inf if publication is None else gradient.settings.total_steps
        self._begun = publication is None
        """Whether the first weights were published."""
        self._under_way: Generator[Waitable | None, None, None] | None = None
        self._before: Nest = None
        """The state before the present batch, if its training is interruptible."""
        self._skipped = 0
        """Batches in a row that were skipped, and that no client is to blame for."""
        self._counted = False
        """Whether the steps of the present batch are counted already."""

    @property
    def busy(self) -> bool:
        """Whether a batch is under way, of which learners that share updates make one in several steps."""
        return self._under_way is not None

    @property
    def steps(self) -> int:
        """Env steps that were learned from, by all learners that share updates."""
        return self._gradient.steps

    @property
    def updates(self) -> int:
        """Updates so far: the version of the weights."""
        return self._gradient.updates

    def step(self) -> Waitable | None:
        """Train on one batch or continue with it, or return the port that it waits for."""
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
            return next(self._under_way, None)

    def _take(self) -> Waitable | None:
        channel, port = self._gradient.channel, None
        if channel is not None:  # a gradient needs weights, and room
            port = channel if channel.version() < 0 else channel.full()
        return self._training.take() if port is None else port

    def _train(self) -> Generator[Waitable | None, None, None]:
        """A batch is given back when its weights are published: a role that waits for its memory finds the newest."""
        self._gradient.keep_moments()
        try:
            trained = yield from self._training.train()
            self._skipped = 0
        except NonFiniteError as error:
            trained = self._skip(error)
        self._advance(trained)
        self._counted = True
        if self._publication is not None:
            while self._publication.lacks(self.updates):
                self.wake_at = time.perf_counter() + POLL_SECONDS
                yield self._publication
            self.wake_at = None
        self._training.release()
        self._under_way, self._counted = None, False

    def _skip(self, error: NonFiniteError) -> Trained:
        """Continue with the same weights under a new version, since actors may wait for one. All learners that share
        updates skip the same batches."""
        if not self._gradient.settings.skips_non_finite:
            raise error
        text = f"{error}; the batch is skipped"
        blamed = [] if self._suspects is None else self._training.blamed()
        if self._suspects is not None and blamed:
            accuse(self._suspects, blamed)
            text += f", and {len(blamed)} client{'s are' if len(blamed) > 1 else ' is'} to blame"
        elif blamed is not None or self._gradient.others is None:
            self._skipped += 1
        if self._skipped >= MOST_SKIPPED:
            raise NonFiniteError(f"{error}; it was the {MOST_SKIPPED}th batch in a row") from None
        self._gradient.forget_moments()
        self.metrics.count("batches_skipped")
        self.drop(self._training.give_up(blamed or []))
        self.metrics.event(text)
        return Trained(0, 0, 0 if self._publication is None else 1)

    def _advance(self, trained: Trained) -> None:
        self._gradient.steps += trained.steps_of_all
        self._gradient.updates += trained.updates
        if not self._training.replays:
            self.account.words[TRAINED] += trained.steps
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
        return (self.steps, self.updates) if self.leads else None

    def save(self) -> Nest:
        if self._under_way is not None and self._training.interruptible:
            return self._before
        if self._publication is not None and not self.leads:
            return None  # it has the state of the learner that leads
        return {**self._gradient.save(), **self._training.save(), "skipped": self._skipped}

    def load(self, state: Nest) -> None:
        with self._gradient.on_device():
            self._gradient.load(state)
            self._training.load(state)
            self._skipped = state.get("skipped", 0)
            self.finished = self.leads and self.steps >= self._total_steps
            self._publish()

    def close(self) -> None:
        """Count the steps that are left in the queue as dropped."""
        with self._gradient.on_device():
            if self._counted:
                self._training.release()
            self.drop(self._training.left())
            self._training.close()
