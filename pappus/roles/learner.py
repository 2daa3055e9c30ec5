"""The learner: turns batches of unrolls into weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pappus.config import OptimizerConfig
from pappus.core import Algorithm, Source, Waitable, WeightsWriter
from pappus.errors import NonFiniteError
from pappus.networks.flat import FlatParameters
from pappus.roles.role import IDLE, Role
from pappus.telemetry.checkpoint import save_state
from pappus.types import Nest, Unroll, map_leaves


@dataclass(frozen=True)
class LearnerSettings:
    """What a learner needs to know of the run."""

    optimizer: OptimizerConfig
    total_steps: int
    unrolls_per_batch: int
    seed: int
    device: str = "cpu"
    precision: str = "float32"
    crash_dir: Path | None = None
    """Where a batch that made the loss non-finite is kept."""


class Learner(Role):
    """source ──batch──▶ loss ──gradient──▶ optimizer ──▶ weights, one new version per update."""

    def __init__(
        self, name: str, algorithm: Algorithm, source: Source, weights: WeightsWriter, settings: LearnerSettings
    ) -> None:
        super().__init__(name)
        self._algorithm, self._source, self._weights, self._settings = algorithm, source, weights, settings
        torch.manual_seed(settings.seed)
        self._network: Any = algorithm.build_network()
        self._flat = FlatParameters(self._network, device=settings.device)
        self._parameter = self._flat.trainable()
        self._optimizer = make_optimizer(settings.optimizer, self._parameter)
        self._batches: dict[tuple[int, ...], Unroll] = {}
        self.steps = self.updates = 0
        self._published = False

    def step(self) -> Waitable | None:
        """One update, or the source when it has no batch ready."""
        if self.finished:
            return IDLE
        if not self._published:  # not before a checkpoint could be loaded
            self._publish()
            return None
        slots = self._source.take(self._settings.unrolls_per_batch)
        if slots is None:
            return self._source
        steps = sum(int(np.count_nonzero(slot.valid)) for slot in slots)
        self.metrics.gauge("queue/depth", self._source.depth())
        self._report_lag(slots)
        self._update(self._batch(slots))
        self._source.release()
        self.steps += steps
        self.updates += 1
        self.metrics.count("env_steps", steps)
        self.metrics.count("updates")
        self._publish()
        self.finished = self.steps >= self._settings.total_steps
        return None

    def _batch(self, slots: Sequence[Unroll]) -> Unroll:
        """The slots side by side on the device; a single slot is used where it lies."""
        key = tuple(id(slot) for slot in slots)
        if len(slots) == 1 and self._settings.device == "cpu":
            if key not in self._batches:
                self._batches[key] = map_leaves(torch.from_numpy, slots[0])
            return self._batches[key]
        return concatenate([map_leaves(torch.from_numpy, slot) for slot in slots], self._settings.device)

    def _update(self, batch: Unroll) -> None:
        with self._autocast():
            loss, scalars = self._algorithm.loss(self._network, batch)
        self._flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self._flat.gradient.norm()
        self._refuse_non_finite(loss, norm, scalars, batch)
        self._flat.gradient.mul_(torch.clamp(self._settings.optimizer.clip_norm / (norm + 1e-6), max=1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self._optimizer.step()
        for name, value in scalars.items():
            self.metrics.mean(f"losses/{name}", float(value))
        self.metrics.mean("learner/gradient_norm", float(norm))

    def learning_rate(self) -> float:
        """The step size now."""
        optimizer = self._settings.optimizer
        left = max(0.0, 1.0 - self.steps / self._settings.total_steps) if optimizer.anneal else 1.0
        return optimizer.learning_rate * left

    def _autocast(self) -> Any:
        if self._settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self._settings.device.partition(":")[0], torch.bfloat16)

    def _refuse_non_finite(
        self, loss: torch.Tensor, norm: torch.Tensor, scalars: dict[str, torch.Tensor], batch: Unroll
    ) -> None:
        """Stop before a broken gradient reaches the weights."""
        if math.isfinite(norm.item()) and math.isfinite(loss.item()):
            return
        named = {**scalars, "loss": loss, "gradient_norm": norm}
        culprit = next((name for name, value in named.items() if not math.isfinite(float(value))), "loss")
        kept = ""
        if self._settings.crash_dir is not None:
            save_state(self._settings.crash_dir, "non_finite_batch", batch._asdict())
            kept = f"; the batch is kept in {self._settings.crash_dir / 'non_finite_batch.safetensors'}"
        raise NonFiniteError(
            f"{culprit}={float(named[culprit])} at update {self.updates + 1} ({self.steps} steps) is not finite; "
            f"lower --optimizer.learning-rate or check the env's rewards and observations{kept}"
        )

    def _report_lag(self, slots: Sequence[Unroll]) -> None:
        """Policy lag: updates between the weights that acted and the weights that learn from it."""
        for slot in slots:
            lag = self.updates - int(slot.version[0, 0])
            self.metrics.mean("learner/policy_lag", lag)
            self.metrics.maximum("learner/policy_lag_max", lag)

    def _publish(self) -> None:
        self._weights.publish(self._flat.values.detach().cpu().numpy(), self.updates)
        self._published = True

    def save(self) -> Nest:
        """Weights, optimizer, counters and random state."""
        return {
            "weights": self._flat.values.detach().cpu().clone(),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "steps": self.steps, "updates": self.updates, "random": torch.get_rng_state(),
        }

    def load(self, state: Nest) -> None:
        """Go on from a checkpoint."""
        with torch.no_grad():
            self._flat.values.copy_(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps, self.updates = state["steps"], state["updates"]
        torch.set_rng_state(state["random"])
        self.finished = self.steps >= self._settings.total_steps
        self._publish()


def make_optimizer(config: OptimizerConfig, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    """The configured optimizer over one flat parameter."""
    if config.name == "rmsprop":
        return torch.optim.RMSprop(
            [parameter], config.learning_rate, alpha=config.decay, eps=config.epsilon, momentum=config.momentum
        )
    betas = (config.momentum, config.decay)
    return torch.optim.Adam([parameter], config.learning_rate, betas=betas, eps=config.epsilon, fused=True)


def concatenate(unrolls: Sequence[Unroll], device: str) -> Unroll:
    """Unrolls side by side along the env dimension."""

    def along(dim: int) -> Any:
        return lambda *leaves: torch.cat([leaf.to(device, non_blocking=True) for leaf in leaves], dim)

    states = map_leaves(along(0), *(unroll.state for unroll in unrolls))
    timed = [unroll._replace(state=()) for unroll in unrolls]
    joined: Unroll = map_leaves(along(1), *timed)
    return joined._replace(state=states)
