"""What all learners do: a loss becomes a gradient, the gradient new weights, and those are published.

Several learners may share every update: their gradients meet (`synced_gradient`), and all take the same step. The first
of them publishes, saves and counts updates for all.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from pappus.accelerator import Accelerator, CapturedGraph
from pappus.config import OptimizerConfig
from pappus.core import Algorithm, AllReduce, Waitable, WeightsReader, WeightsWriter
from pappus.errors import NonFiniteError
from pappus.networks.flat import FlatParameters
from pappus.networks.moments import RunningMoments, merged
from pappus.ops.numpy_ops import MOST_WEIGHTS, SmallAdam
from pappus.roles.role import IDLE, Idle, Trainer
from pappus.roles.synced_gradient import SyncedGradient, numbers_beside
from pappus.telemetry.checkpoint import save_state
from pappus.types import Nest, Unroll, map_leaves

DEVICE_KEYS = ("lr", "capturable", "fused")
"""What an optimizer is set to by its device, and not by its past."""
PUBLISH_SECONDS = 0.25
"""How often those who do not share the device get new weights."""
LOOK_SECONDS = 1e-4
"""How often to look whether another learner has published: it is about to do so."""
Known: TypeAlias = dict[str, float]
"""What is known of a batch, by name."""
Seen: TypeAlias = list[tuple[RunningMoments, torch.Tensor]]
"""Running moments, and what they are to count in."""


class Publication(Idle):
    """What a learner waits for whose actors need weights that another publishes."""

    name = "publication"

    def explain(self) -> str:
        return "the first learner has not published yet"


class NoWeights:
    """For a learner that publishes none."""

    def publish(self, flat: object, version: int) -> None: ...


@dataclass(frozen=True)
class LearnerSettings:
    """What a learner needs to know of the run."""

    optimizer: OptimizerConfig
    total_steps: int
    seed: int
    device: str = "cpu"
    precision: str = "float32"
    crash_dir: Path | None = None
    """Where a batch that made the loss non-finite is kept."""
    all_reduce: AllReduce | None = None
    """Where its gradients meet those of other learners."""
    published: WeightsReader | None = None
    """What the first learner publishes, for others whose actors must act with the newest weights."""


PUBLICATION = Publication()


class GradientLearner(Trainer):
    """batch ──▶ loss ──gradient──▶ optimizer ──▶ weights, one new version per update.

    `nearby` are weights for those who share the device: they get every version. Others get one whenever they can have
    read the last, if the device is not theirs: fetching weights from it takes time.

    A kind of learner says where batches come from (`_learn`) and what is reported of them (`_loss`). Work that has to
    wait in the middle is a generator (`_under_way`): it yields the port that it waits for, or None when it can go on.
    """

    def __init__(
        self, name: str, algorithm: Algorithm, weights: WeightsWriter, settings: LearnerSettings,
        nearby: WeightsWriter | None = None,
    ) -> None:
        super().__init__(name)
        self._weights, self._settings = weights, settings
        self._nearby, self._next_publication = nearby, 0.0
        self._accelerator = Accelerator(settings.device)
        self._stream = self._accelerator.stream()
        torch.manual_seed(settings.seed)
        self._network: Any = algorithm.build_network()
        self._flat = FlatParameters(self._network, device=settings.device)
        all_reduce = settings.all_reduce
        self.leads = self.stateful = all_reduce is None or all_reduce.member == 0
        numbers = 0 if all_reduce is None else numbers_beside(all_reduce.members)
        self._parameters = self._flat.trainable(getattr(self._network, "part_sizes", ()), numbers)
        loss_is_mean = getattr(algorithm, "reduction", "mean") == "mean"
        self._common = None if all_reduce is None else SyncedGradient(self._flat, all_reduce, loss_is_mean)
        self._optimizer = self._make_optimizer()
        self._names: list[str] = []
        self._names_of: dict[int, list[str]] = {}
        """What updates of each kind report: a captured graph does not say so again."""
        self._norm = torch.zeros((), device=settings.device)
        self._captured: dict[int, tuple[CapturedGraph, CapturedGraph]] = {}
        """Gradient and step of every kind of update."""
        self.steps = self.updates = 0
        self._published = False
        self._under_way: Generator[Waitable | None, None, None] | None = None

    def step(self) -> Waitable | None:
        """One update or a part of it, or the port that stands in the way."""
        if self.finished or self.steps >= self._settings.total_steps:
            return IDLE
        with self._accelerator.on(self._stream):
            if self._under_way is not None:
                return self._go_on()
            if self._published:
                return self._learn()
            self._publish()  # not before a checkpoint could be loaded
            return None

    def receive(self, command: str, argument: int) -> None:
        """`finish`: the weights stay as they are, and everybody can have them."""
        super().receive(command, argument)
        with self._accelerator.on(self._stream):
            self._publish()

    def _go_on(self) -> Waitable | None:
        """The next part of what is under way."""
        assert self._under_way is not None
        try:
            return next(self._under_way)
        except StopIteration:
            self._under_way = None
            return None

    def _learn(self) -> Waitable | None:
        """Take a batch and `_update` with it; or the port that has none."""
        raise NotImplementedError

    def _loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of the batch, and named scalars to report, in the order in which they were computed.

        A learner that meets others has `steps` among them, the valid steps that its loss is a mean or a sum of.
        """
        raise NotImplementedError

    def _batch_to_keep(self) -> Nest:
        """The batch, to be looked at after a crash."""
        raise NotImplementedError

    def _make_optimizer(self) -> Any:
        """What steps the parameters."""
        return make_optimizer(self._settings.optimizer, self._parameters)

    def _update(self) -> Known:
        """Learn from the batch, alone; what is known of it."""
        assert self._common is None, "who meets others has to wait for them"
        return self._take_step(self._own_gradient())

    def _update_together(self) -> Generator[Waitable | None, None, Known]:
        """Learn from the batch and from those of all other learners; what is known of it, `steps_of_all` included."""
        known = self._own_gradient()
        if self._common is None:
            return self._take_step({**known, "steps_of_all": known["steps"]})
        self._refuse_non_finite(known)  # by the name of what went first, which others cannot know
        steps = yield from self._common.meet(self.updates)
        self._norm.copy_(self._flat.gradient.norm())
        return self._take_step({**known, "gradient_norm": self._norm.item(), "steps_of_all": steps})

    def _own_gradient(self) -> Known:
        kind = self._kind_of_update()
        backward, _ = self._work(kind)
        numbers = backward().tolist()
        self._names = self._names_of[kind]
        return dict(zip(["loss", "gradient_norm", *self._names], numbers, strict=True))

    def _take_step(self, named: Known) -> Known:
        """The gradient becomes a step, if it is finite."""
        _, apply = self._work(self._kind_of_update())
        self._refuse_non_finite(named)
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self.learning_rate())
            else:
                group["lr"] = self.learning_rate()
        apply()
        self.metrics.mean("learner/gradient_norm", named["gradient_norm"])
        return named

    def _kind_of_update(self) -> int:
        """Updates of different kinds do different work: on a device each kind has a graph of its own."""
        return 0

    def _work(self, kind: int) -> tuple[CapturedGraph, CapturedGraph]:
        if kind not in self._captured:
            work = (self._compute_gradient, self._apply_gradient)
            backward, apply = (CapturedGraph(self._accelerator, one, self.metrics.event) for one in work)
            self._captured[kind] = backward, apply
        return self._captured[kind]

    def _observe(self, batch: Unroll, seen_by_all: Seen | None = None) -> None:
        """Let a network that keeps moments of what it sees count a batch in, once it has learnt from it; with those of
        all other learners, if there are some."""
        if seen_by_all is not None:
            for moments, seen in seen_by_all:
                moments.count_in(seen)
        elif hasattr(self._network, "observe"):
            self._network.observe(*_shown(batch))

    def _seen_by_all(self, batch: Unroll) -> Generator[Waitable | None, None, Seen | None]:
        """What `_observe` counts in when the step is done: nothing may have to wait between that and its publication,
        or a checkpoint could fall in between."""
        if self._common is None or not hasattr(self._network, "shown"):
            return None
        seen: Seen = []
        for moments, rows in self._network.shown(*_shown(batch)):
            everybodys = yield from self._common.gather(moments.of(rows))
            seen.append((moments, merged(everybodys)))
        return seen

    def _advance(self, steps: int, updates: int = 1, of_all: int | None = None) -> None:
        """Updates are done, and so many more steps were made use of: here, and by all learners together."""
        self.steps += steps if of_all is None else of_all
        self.updates += updates
        self.metrics.count("env_steps", steps)
        if self.leads:
            self.metrics.count("updates", updates)
            self.finished = self.steps >= self._settings.total_steps
        self._publish()

    def _until_published(self) -> Generator[Waitable | None, None, None]:
        """Until the newest weights are there for all: whoever gets a slot back after that finds them."""
        reader = self._settings.published
        while reader is not None and reader.version() < self.updates:
            self.wake_at = time.perf_counter() + LOOK_SECONDS
            yield PUBLICATION
        self.wake_at = None

    def _compute_gradient(self) -> torch.Tensor:
        """What is reported of the batch, in one tensor: one look at it waits for the device once."""
        with self._autocast():
            loss, scalars = self._loss()
        self._flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._common is None:
            self._norm.copy_(self._flat.gradient.norm())  # always the same tensor: another graph reads it
        else:  # the norm is that of the common gradient, and follows
            self._common.prepare(scalars["steps"])
        self._names_of[self._kind_of_update()] = list(scalars)
        reported = [loss.detach(), self._norm, *scalars.values()]
        return torch.stack(reported)

    def _apply_gradient(self) -> None:
        self._clip()
        self._optimizer.step()

    def _clip(self) -> None:
        """Scale the gradient down to the largest norm that it may have; on a device without looking at it."""
        largest = self._settings.optimizer.clip_norm
        if self._accelerator.real:
            self._flat.gradient.mul_(torch.clamp(largest / (self._norm + 1e-6), max=1.0))
        elif (scale := largest / (self._norm.item() + 1e-6)) < 1:
            self._flat.gradient.mul_(scale)

    def learning_rate(self) -> float:
        """The step size now."""
        return learning_rate_at(self._settings.optimizer, self.steps, self._settings.total_steps)

    def _autocast(self) -> Any:
        if self._settings.precision == "float32":
            return nullcontext()
        kind = self._accelerator.device.type  # a captured graph must cast weights anew each time, as they change
        return torch.autocast(kind, torch.bfloat16, cache_enabled=not self._accelerator.real)

    def _refuse_non_finite(self, named: dict[str, float]) -> None:
        """Stop before a broken gradient reaches the weights."""
        if math.isfinite(named["gradient_norm"]) and math.isfinite(named["loss"]):
            return
        inputs_first = [*self._names, "loss", "gradient_norm"]
        culprit = next(name for name in inputs_first if not math.isfinite(named[name]))
        kept = ""
        if self._settings.crash_dir is not None:
            batch = map_leaves(lambda leaf: leaf.cpu(), self._batch_to_keep())
            save_state(self._settings.crash_dir, "non_finite_batch", batch)
            kept = f"; the batch is kept in {self._settings.crash_dir / 'non_finite_batch.safetensors'}"
        raise NonFiniteError(
            f"{culprit}={named[culprit]} at update {self.updates + 1} ({self.steps} steps) is not finite; "
            f"lower --optimizer.learning-rate or check the env's rewards and observations{kept}"
        )

    def _publish(self) -> None:
        self._published = True
        if not self.leads:
            return
        if self._nearby is not None:
            self._nearby.publish(self._flat.values.detach(), self.updates)
            now = time.perf_counter()
            if now < self._next_publication and not self.finished:
                return
            self._next_publication = now + PUBLISH_SECONDS
        self._weights.publish(self._flat.values.detach().cpu().numpy(), self.updates)

    def progress(self) -> tuple[int, int] | None:
        """Steps made use of, and updates, if this is the learner that counts them."""
        return (self.steps, self.updates) if self.leads else None

    def save(self) -> Nest:
        """Weights, optimizer, counters and random state; learners that share updates save them once."""
        if not self.leads:
            return None
        with self._accelerator.on(self._stream):
            self._accelerator.wait()
            optimizer: Any = map_leaves(_plain, copy.deepcopy(self._optimizer.state_dict()))
            weights = self._flat.values.detach().cpu().clone()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        return {
            "weights": weights, "optimizer": optimizer, "steps": self.steps, "updates": self.updates,
            "random": torch.get_rng_state(),
        }

    def load(self, state: Nest) -> None:
        """Go on from a checkpoint, which may come from another device."""
        optimizer = copy.deepcopy(state["optimizer"])  # it would write into what was saved, which others may load, too
        for saved, own in zip(optimizer["param_groups"], self._optimizer.param_groups, strict=True):
            saved.update({key: own[key] for key in DEVICE_KEYS if key in own})
        with self._accelerator.on(self._stream):
            with torch.no_grad():
                self._flat.values.copy_(state["weights"])
            self._optimizer.load_state_dict(optimizer)
            self.steps, self.updates = state["steps"], state["updates"]
            torch.set_rng_state(state["random"])
            self.finished = self.leads and self.steps >= self._settings.total_steps
            if self._common is not None:
                self._common.begin_anew()
            self._publish()


def _shown(batch: Unroll) -> tuple[Nest, torch.Tensor, Nest]:
    """The observations that were acted on, as networks take them."""
    return map_leaves(lambda leaf: leaf[:-1], batch.observation), batch.first[:-1], batch.state


def _plain(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def learning_rate_at(config: OptimizerConfig, steps: int, total_steps: int) -> float:
    """The step size after so many steps of the run."""
    left = max(0.0, 1.0 - steps / total_steps) if config.anneal else 1.0
    return config.learning_rate * left


def make_optimizer(config: OptimizerConfig, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The configured optimizer over flat parameters; on an accelerator such that a graph can hold its step."""
    device = parameters[0].device
    capturable = device.type == "cuda"
    rate: Any = torch.tensor(config.learning_rate, device=device) if capturable else config.learning_rate
    if config.name == "rmsprop":
        return torch.optim.RMSprop(
            parameters, rate, alpha=config.decay, eps=config.epsilon, momentum=config.momentum,
            centered=config.centered, capturable=capturable,
        )
    if config.name == "adagrad":
        return torch.optim.Adagrad(parameters, rate, eps=config.epsilon)
    betas = (config.momentum, config.decay)
    if device.type == "cpu" and len(parameters) == 1 and parameters[0].numel() <= MOST_WEIGHTS:
        return SmallAdam(parameters[0], config.learning_rate, betas, config.epsilon)
    return torch.optim.Adam(
        parameters, rate, betas=betas, eps=config.epsilon, fused=True, capturable=capturable
    )
