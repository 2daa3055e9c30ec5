"""What all learners do: a loss becomes a gradient, the gradient new weights, and those are published."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pappus.accelerator import Accelerator, Captured
from pappus.config import OptimizerConfig
from pappus.core import Algorithm, Waitable, WeightsWriter
from pappus.errors import NonFiniteError
from pappus.networks.flat import FlatParameters
from pappus.roles.role import IDLE, Role
from pappus.telemetry.checkpoint import save_state
from pappus.types import Nest, Unroll, map_leaves

DEVICE_KEYS = ("lr", "capturable", "fused")
"""What an optimizer is set to by its device, and not by its past."""
PUBLISH_SECONDS = 0.25
"""How often those who do not share the device get new weights."""


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


class GradientLearner(Role):
    """batch ──▶ loss ──gradient──▶ optimizer ──▶ weights, one new version per update.

    `nearby` are weights for those who share the device: they get every version. Others get one whenever they can have
    read the last, if the device is not theirs: fetching weights from it takes time.

    A kind of learner says where batches come from (`_learn`) and what is reported of them (`_loss`).
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
        self._parameters = self._flat.trainable(getattr(self._network, "part_sizes", ()))
        self._optimizer = self._make_optimizer()
        self._names: list[str] = []
        self._norm = torch.zeros((), device=settings.device)
        self._captured: dict[int, tuple[Captured, Captured]] = {}
        """Gradient and step of every kind of update."""
        self.steps = self.updates = 0
        self._published = False

    def step(self) -> Waitable | None:
        """One update, or the port that has no batch ready."""
        if self.finished:
            return IDLE
        with self._accelerator.on(self._stream):
            if self._published:
                return self._learn()
            self._publish()  # not before a checkpoint could be loaded
            return None

    def _learn(self) -> Waitable | None:
        """Take a batch and `_update` with it; or the port that has none."""
        raise NotImplementedError

    def _loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of the batch, and named scalars to report, in the order in which they were computed."""
        raise NotImplementedError

    def _batch_to_keep(self) -> Nest:
        """The batch, to be looked at after a crash."""
        raise NotImplementedError

    def _make_optimizer(self) -> Any:
        """What steps the parameters."""
        return make_optimizer(self._settings.optimizer, self._parameters)

    def _update(self) -> dict[str, float]:
        """Learn from the batch; what is known of it."""
        backward, apply = self._work(self._kind_of_update())
        numbers = backward().tolist()
        named = dict(zip(["loss", "gradient_norm", *self._names], numbers, strict=True))
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

    def _work(self, kind: int) -> tuple[Captured, Captured]:
        if kind not in self._captured:
            work = (self._compute_gradient, self._apply_gradient)
            backward, apply = (Captured(self._accelerator, one, self.metrics.event) for one in work)
            self._captured[kind] = backward, apply
        return self._captured[kind]

    def _observe(self, batch: Unroll) -> None:
        """Let a network that keeps moments of what it sees count a batch in, once it has learnt from it."""
        if hasattr(self._network, "observe"):
            observation = map_leaves(lambda leaf: leaf[:-1], batch.observation)
            self._network.observe(observation, batch.first[:-1], batch.state)

    def _advance(self, steps: int, updates: int = 1) -> None:
        """Updates are done, and so many more steps were made use of."""
        self.steps += steps
        self.updates += updates
        self.metrics.count("env_steps", steps)
        self.metrics.count("updates", updates)
        self.finished = self.steps >= self._settings.total_steps
        self._publish()

    def _compute_gradient(self) -> torch.Tensor:
        """What is reported of the batch, in one tensor: one look at it waits for the device once."""
        with self._autocast():
            loss, scalars = self._loss()
        self._flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._norm.copy_(self._flat.gradient.norm())  # always the same tensor: another graph reads it
        self._names = list(scalars)
        reported = [loss.detach(), self._norm, *scalars.values()]
        return torch.stack(reported)

    def _apply_gradient(self) -> None:
        self._flat.gradient.mul_(torch.clamp(self._settings.optimizer.clip_norm / (self._norm + 1e-6), max=1.0))
        self._optimizer.step()

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
        if self._nearby is not None:
            self._nearby.publish(self._flat.values.detach(), self.updates)
            now = time.perf_counter()
            if now < self._next_publication and not self.finished:
                return
            self._next_publication = now + PUBLISH_SECONDS
        self._weights.publish(self._flat.values.detach().cpu().numpy(), self.updates)

    def progress(self) -> tuple[int, int]:
        """Steps made use of, and updates."""
        return self.steps, self.updates

    def save(self) -> Nest:
        """Weights, optimizer, counters and random state."""
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
        for saved, own in zip(state["optimizer"]["param_groups"], self._optimizer.param_groups, strict=True):
            saved.update({key: own[key] for key in DEVICE_KEYS if key in own})
        with self._accelerator.on(self._stream):
            with torch.no_grad():
                self._flat.values.copy_(state["weights"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.steps, self.updates = state["steps"], state["updates"]
            torch.set_rng_state(state["random"])
            self.finished = self.steps >= self._settings.total_steps
            self._publish()


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
    return torch.optim.Adam(
        parameters, rate, betas=betas, eps=config.epsilon, fused=True, capturable=capturable
    )
