"""The gradient step, over one flat buffer of weights: how the gradient of one learner becomes an update.

    alone        gradient ──▶ clip ──▶ optimizer
    all-reduce   gradient ──▶ sum with those of all learners ──▶ clip ──▶ optimizer: the same step on every learner
    channel      gradient ──▶ clip ──▶ parameter servers or shared parameters ──▶ new weights

It owns what a checkpoint of a learner holds: weights, optimizer, counts and random state. On a device, loss and
gradient are one captured graph, and the optimizer's step is another. All that an update reports comes back in one
tensor: the host waits for the device once per update.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pappus.accelerator import Accelerator, CapturedGraph
from pappus.config import OptimizerConfig
from pappus.core import Algorithm, AllReduce, GradientChannel, Waitable
from pappus.errors import NonFiniteError, StorageError
from pappus.networks.flat import FlatParameters
from pappus.networks.many_mlps import multiply_in_half
from pappus.networks.modules import RunningMoments, merged
from pappus.ops.fused_adam import FusedAdam
from pappus.ops.numpy_ops import MOST_WEIGHTS, SmallAdam
from pappus.overrides import stands_for
from pappus.roles.gradient_sync import AllReducedGradient, numbers_beside
from pappus.roles.restore_point import RestorePoint
from pappus.telemetry.checkpoint import save_state
from pappus.telemetry.metrics import Metrics
from pappus.telemetry.weights import stored_weights
from pappus.types import Nest, Unroll, map_leaves

if TYPE_CHECKING:
    from pappus.roles.learner import Training

DEVICE_KEYS = ("lr", "capturable", "fused")
"""Settings of an optimizer that follow from its device; a checkpoint does not change them."""
NO_CONTEXT: AbstractContextManager[Any] = nullcontext()
Seen: TypeAlias = list[tuple[RunningMoments, torch.Tensor]]
"""Running moments of observations, and the moments of a batch to count in."""


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the run that a learner needs."""

    optimizer: OptimizerConfig
    total_steps: int
    seed: int
    device: str = "cpu"
    precision: str = "float32"
    crash_dir: Path | None = None
    """Where a batch with a non-finite loss is saved."""
    first_weights: Path | None = None
    """The checkpoint whose weights come in place of random ones."""
    skips_non_finite: bool = False
    """Whether a learner goes on after a batch whose loss or gradient is not finite."""


class Computed(NamedTuple):
    """The loss of a batch, the norm of its gradient, and named scalars in the order in which they were computed."""

    loss: float
    gradient_norm: float
    scalars: dict[str, float]


class GradientStep:
    """The network of a learner and how its weights change: alone, with other learners (`all_reduce`), or by the
    role that holds them (`channel`). `steps` env steps and `updates` updates led to the present weights."""

    objective: Training
    """Whose `loss` is minimised; the learner that composes both sets it."""

    def __init__(
        self, metrics: Metrics, algorithm: Algorithm, settings: LearnerSettings, all_reduce: AllReduce | None = None,
        channel: GradientChannel | None = None,
    ) -> None:
        self.metrics, self.settings = metrics, settings
        self.accelerator = Accelerator(settings.device)
        self._stream = self.accelerator.stream()
        torch.manual_seed(settings.seed)
        self.network: Any = algorithm.build_network()
        if settings.precision == "mixed":
            multiply_in_half(self.network)
        self.flat = FlatParameters(self.network, device=settings.device)
        if settings.first_weights is not None:
            with torch.no_grad():
                self.flat.values.copy_(torch.from_numpy(stored_weights(settings.first_weights)))
        numbers = 0 if all_reduce is None else numbers_beside(all_reduce.members)
        self.parameters = self.flat.trainable(getattr(self.network, "part_sizes", ()), numbers)
        loss_is_mean = getattr(algorithm, "reduction", "mean") == "mean"
        self.others = None if all_reduce is None else AllReducedGradient(self.flat, all_reduce, loss_is_mean)
        self.channel = channel
        self._optimizer: Any = None
        if channel is None:
            self._optimizer = make_optimizer(settings.optimizer, self.parameters)
        self.leads = channel is None and (all_reduce is None or all_reduce.member == 0)
        """Whether this learner publishes, saves and counts updates: alone, or as the first of all that share them."""
        self.steps = self.updates = 0
        self._norm = torch.zeros((), device=settings.device)  # always the same tensor: graphs write and read it
        self._gradient_array = np.zeros(0) if self.accelerator.real else self.flat.gradient.numpy()
        self._backward: dict[int, Callable[[], torch.Tensor]] = {}
        self._names: dict[int, list[str]] = {}
        """Scalars that each kind of update reports: a captured graph does not name them again."""
        self._step: dict[int, Callable[[], None]] = {}
        self._unread: list[torch.Tensor] = []
        """Losses and norms of updates that nobody has waited for yet."""
        self._before_unread = RestorePoint(self.flat.values, self._optimizer)
        self._moments = self.flat.values[self.flat.num_parameters :].detach()
        """Running moments beside the weights, which trainings count a batch into, some of them before they learn."""
        self._moments_before = self._moments.clone()
        self._batch_is_saved = False

    def on_device(self) -> AbstractContextManager[Any]:
        """Calls within go to the learner's stream."""
        return self.accelerator.on(self._stream) if self.accelerator.real else NO_CONTEXT

    def backward(self, kind: int = 0) -> Computed:
        """Compute the gradient of the objective. Updates of different kinds do different work: each has its graphs."""
        loss, norm, *scalars = self._launched(kind).tolist()
        unread, self._unread = self._unread, []
        for earlier_loss, earlier_norm in torch.stack(unread).tolist() if unread else ():
            self._look_at(Computed(earlier_loss, earlier_norm, {}), applied=True)
        return Computed(loss, norm, dict(zip(self._names[kind], scalars, strict=True)))

    def backward_and_apply(self, kind: int = 0) -> None:
        """An update of which nothing is reported. The host does not wait for it: the next `backward` looks whether its
        loss was finite, which must come before these weights are published."""
        if self.settings.skips_non_finite and not self._unread:
            self._before_unread.keep()
        self._unread.append(self._launched(kind)[:2].clone())
        self._take_step(kind, ())

    def _launched(self, kind: int) -> torch.Tensor:
        if kind not in self._backward:
            self._backward[kind] = self._captured(lambda: self._compute(kind))
        return self._backward[kind]()

    def computed(self, loss: float, scalars: dict[str, float]) -> Computed:
        """The same for a gradient that was computed on arrays, and is in `flat.gradient` already."""
        norm = math.sqrt(self._gradient_array @ self._gradient_array)
        self._norm.fill_(norm)
        return Computed(loss, norm, scalars)

    def combined(self, own: Computed) -> Generator[Waitable | None, None, tuple[Computed, int]]:
        """Replace the gradient by that of all learners; what was computed, and the valid steps of all."""
        if self.others is None:
            return own, int(own.scalars["steps"])
        self._mark_non_finite(own)
        steps = yield from self.others.reduce(self.updates)
        self._norm.copy_(self.flat.gradient.norm())
        return own._replace(gradient_norm=self._norm.item()), int(steps)

    def apply(self, computed: Computed, kind: int = 0, resting: Sequence[torch.nn.Parameter] = ()) -> None:
        """Change the weights by the gradient, if it is finite. Parameters that rest keep their optimizer state, too."""
        self._look_at(computed)
        if self.channel is not None:
            self._clip()
            self._send(self.channel, computed.loss)
        else:
            self._take_step(kind, resting)

    def _mark_non_finite(self, own: Computed) -> None:
        """Stop before a sum in which nobody knows whose part was not finite; or see that all learners skip it."""
        if not self.settings.skips_non_finite:
            self._refuse_non_finite(own)
        elif not math.isfinite(own.loss):
            self.flat.gradient.fill_(math.nan)

    def _look_at(self, computed: Computed, applied: bool = False) -> None:
        """Refuse what is not finite; if it was `applied` already, go back to the weights before it."""
        try:
            self._refuse_non_finite(computed)
        except NonFiniteError:
            if applied and self.settings.skips_non_finite:
                self._before_unread.go_back()
            raise
        self.metrics.mean("learner/gradient_norm", computed.gradient_norm)

    def keep_moments(self) -> None:
        """Called before a batch, which may have to be forgotten."""
        if self.settings.skips_non_finite and len(self._moments):
            self._moments_before.copy_(self._moments)

    def forget_moments(self) -> None:
        """Take running moments back to what they were before the batch."""
        self._moments.copy_(self._moments_before)

    def is_finite(self, loss: Callable[[], torch.Tensor]) -> bool:
        """Whether a loss and its gradient are finite with the present weights. Nothing is learned from it; the gradient
        that was there is gone."""
        self.forget_moments()
        with torch.random.fork_rng([self.accelerator.device] if self.accelerator.real else []):
            with self._autocast():
                value = loss()
            self.flat.gradient.zero_()
            value.backward()  # type: ignore[no-untyped-call]
        return math.isfinite(value.item()) and math.isfinite(self.flat.gradient.norm().item())

    def _take_step(self, kind: int, resting: Sequence[torch.nn.Parameter]) -> None:
        if kind not in self._step:
            self._step[kind] = self._captured(lambda: self._clip_and_step(resting))
        rate = self.learning_rate()
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._step[kind]()

    def _send(self, channel: GradientChannel, loss: float) -> None:
        staleness = channel.send(self._gradient_array, loss)
        if staleness is not None:
            self.metrics.mean("staleness", staleness)
            self.metrics.maximum("staleness_max", staleness)

    def _captured(self, work: Callable[[], Any]) -> Callable[[], Any]:
        return CapturedGraph(self.accelerator, work, self.metrics.event) if self.accelerator.real else work

    def _compute(self, kind: int) -> torch.Tensor:
        with self._autocast():
            loss, scalars = self.objective.loss()
        self.flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.others is None:
            self._norm.copy_(self.flat.gradient.norm())
        else:  # the norm is that of the sum, which follows
            self.others.prepare(scalars["steps"])
        self._names[kind] = list(scalars)
        return torch.stack([loss.detach(), self._norm, *scalars.values()])

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.settings.precision != "bfloat16":
            return NO_CONTEXT
        kind = self.accelerator.device.type  # a captured graph must cast weights anew each time, as they change
        return torch.autocast(kind, torch.bfloat16, cache_enabled=not self.accelerator.real)

    def _clip_and_step(self, resting: Sequence[torch.nn.Parameter]) -> None:
        gradients = [parameter.grad for parameter in resting]
        for parameter in resting:
            parameter.grad = None
        self._clip()
        self._optimizer.step()
        for parameter, gradient in zip(resting, gradients, strict=True):
            parameter.grad = gradient

    def _clip(self) -> None:
        """Scale the gradient down to the largest norm that it may have; on a device without a look at it."""
        largest = self.settings.optimizer.clip_norm
        if self.accelerator.real:
            self.flat.gradient.mul_(torch.clamp(largest / (self._norm + 1e-6), max=1.0))
        elif (scale := largest / (self._norm.item() + 1e-6)) < 1:
            self.flat.gradient.mul_(scale)

    def learning_rate(self) -> float:
        return learning_rate_at(self.settings.optimizer, self.steps, self.settings.total_steps)

    def _refuse_non_finite(self, computed: Computed) -> None:
        """Raise before a broken gradient reaches the weights."""
        if math.isfinite(computed.gradient_norm) and math.isfinite(computed.loss):
            return
        inputs_first = {**computed.scalars, "loss": computed.loss, "gradient_norm": computed.gradient_norm}
        culprit = next(name for name, value in inputs_first.items() if not math.isfinite(value))
        raise NonFiniteError(
            f"{culprit}={inputs_first[culprit]} at update {self.updates + 1} ({self.steps} steps) is not finite; "
            f"lower --optimizer.learning-rate or check the env's rewards and observations{self._save_batch()}"
        )

    def _save_batch(self) -> str:
        """Keep the first broken batch; where it is, in words. A run that skips such batches would fill the disk."""
        directory = self.settings.crash_dir
        if directory is None or self._batch_is_saved:
            return ""
        batch = map_leaves(lambda leaf: leaf.cpu(), self.objective.batch())
        try:
            save_state(directory, "non_finite_batch", batch)
        except StorageError as error:
            return f"; the batch is not kept: {error}"
        self._batch_is_saved = True
        return f"; the batch is kept in {directory / 'non_finite_batch.safetensors'}"

    def gather_moments(self, batch: Unroll) -> Generator[Waitable | None, None, Seen | None]:
        """Moments of the observations of all learners' batches, for `observe`; None for one learner. Gathered before
        the update: nothing may wait between the optimizer's step and the publication of its weights, or a checkpoint
        could fall in between."""
        if self.others is None or not hasattr(self.network, "shown"):
            return None
        seen: Seen = []
        for moments, rows in self.network.shown(*_acted_on(batch)):
            parts = yield from self.others.gather(moments.of(rows))
            seen.append((moments, merged(parts)))
        return seen

    def observe(self, batch: Unroll, gathered: Seen | None) -> None:
        """Count the observations of a batch into the network's running moments, once it was learned from."""
        if gathered is not None:
            for moments, seen in gathered:
                moments.count_in(seen)
        elif hasattr(self.network, "observe"):
            self.network.observe(*_acted_on(batch))

    def array_loss(self, algorithm: Any, *networks: Any) -> Any:
        """The algorithm's `on_arrays(*networks)`, where it gives what its `loss` gives: on a CPU, in full precision,
        unless a subclass has a loss of its own. None elsewhere."""
        if self.accelerator.real or self.settings.precision == "bfloat16":
            return None
        return algorithm.on_arrays(*networks) if stands_for(type(algorithm), "on_arrays", "loss") else None

    def save(self) -> dict[str, Nest]:
        with self.on_device():
            self.accelerator.wait()
            weights = self.flat.values.detach().cpu().clone()
            own = {"optimizer": self._saved_optimizer()} if self.channel is None else {"channel": self.channel.save()}
        return {
            "weights": weights, **own, "steps": self.steps, "updates": self.updates, "random": torch.get_rng_state(),
        }

    def _saved_optimizer(self) -> Nest:
        optimizer: Any = map_leaves(_plain, copy.deepcopy(self._optimizer.state_dict()))
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        return optimizer

    def load(self, state: Nest) -> None:
        """Continue from a checkpoint, which may come from another device."""
        with torch.no_grad():
            self.flat.values.copy_(state["weights"])
        if self.channel is None:
            self._load_optimizer(state["optimizer"])
        else:
            self.channel.load(state["channel"])
        self.steps, self.updates = state["steps"], state["updates"]
        torch.set_rng_state(state["random"])
        if self.others is not None:
            self.others.compared = False

    def _load_optimizer(self, state: Nest) -> None:
        optimizer = copy.deepcopy(state)  # torch would write into the state, which others may load, too
        for saved, own in zip(optimizer["param_groups"], self._optimizer.param_groups, strict=True):
            saved.update({key: own[key] for key in DEVICE_KEYS if key in own})
        self._optimizer.load_state_dict(optimizer)


def _acted_on(batch: Unroll) -> tuple[Nest, torch.Tensor, Nest]:
    """The observations that were acted on, as networks take them."""
    return map_leaves(lambda leaf: leaf[:-1], batch.observation), batch.first[:-1], batch.state


def _plain(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def learning_rate_at(config: OptimizerConfig, steps: int, total_steps: int) -> float:
    """The step size after `steps` steps of the run."""
    left = max(0.0, 1.0 - steps / total_steps) if config.anneal else 1.0
    return config.learning_rate * left


def make_optimizer(
    config: OptimizerConfig, parameters: Sequence[torch.nn.Parameter]
) -> torch.optim.Optimizer | SmallAdam | FusedAdam:
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
    if config.name == "radam":
        return torch.optim.RAdam(parameters, rate, betas=betas, eps=config.epsilon, capturable=capturable)
    if device.type == "cpu" and len(parameters) == 1 and parameters[0].numel() <= MOST_WEIGHTS:
        return SmallAdam(parameters[0], config.learning_rate, betas, config.epsilon)
    if device.type == "cpu":
        return FusedAdam(parameters, config.learning_rate, betas, config.epsilon)
    return torch.optim.Adam(
        parameters, rate, betas=betas, eps=config.epsilon, fused=True, capturable=capturable
    )
