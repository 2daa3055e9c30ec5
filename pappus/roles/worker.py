"""A3C's worker: acts for one unroll, gives away the gradient of it, and takes fresh weights for the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pappus.core import GradientChannel, OnPolicyAlgorithm, StepCounter, Waitable, WeightsReader
from pappus.roles.actor_learner import Bundle
from pappus.roles.gradient_learner import LearnerSettings, NoWeights
from pappus.roles.learner import KNOWN, Learner
from pappus.roles.remote_gradient import RemoteGradient
from pappus.roles.role import IDLE, Role
from pappus.types import Array, Unroll, map_leaves


class UnrollSlot:
    """One unroll, written by the actor and read by the learner of one thread in turns.

    It can be written again when its gradient is taken care of: the weights that the next unroll begins with know of it.
    """

    name = "its last gradient"

    def __init__(self, spec: Unroll, gradient_channel: GradientChannel) -> None:
        self._unroll: Unroll = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
        self._gradient_channel = gradient_channel
        self._port: Waitable = IDLE
        self.filled = False

    def acquire(self) -> Unroll | None:
        """The slot, unless the last gradient is still under way."""
        port = self._gradient_channel.full()
        if port is None:
            return self._unroll
        self._port = port
        return None

    def commit(self) -> None:
        """The learner's turn."""
        self.filled = True

    def take(self, count: int) -> Sequence[Unroll] | None:
        """The slot, if it holds an unroll."""
        return [self._unroll] if self.filled else None

    def release(self) -> None:
        """The actor's turn."""
        self.filled = False

    def depth(self) -> int:
        return int(self.filled)

    def explain(self) -> str:
        return self._port.explain()

    def fileno(self) -> int:
        return self._port.fileno()

    def clear(self) -> None:
        self._port.clear()


class OwnWeights:
    """The weights of a learner, as its actor reads them: new ones come to both at once, whenever the actor looks."""

    def __init__(self, gradient_channel: GradientChannel, flat: Array) -> None:
        self._gradient_channel, self._flat = gradient_channel, flat
        self.name, self.version = gradient_channel.name, gradient_channel.version
        self.explain, self.fileno, self.clear = gradient_channel.explain, gradient_channel.fileno, gradient_channel.clear

    def read(self, into: Array) -> int:
        """Have the newest version, and copy it."""
        version = self._gradient_channel.read(self._flat)
        into[:] = self._flat
        return version


class WorkerLearner(RemoteGradient, Learner):
    """unroll ──▶ loss ──gradient──▶ exchange ──weights──▶ here, whenever the actor begins an unroll."""

    def __init__(
        self, name: str, algorithm: OnPolicyAlgorithm, slot: UnrollSlot, gradient_channel: GradientChannel, counter: StepCounter,
        settings: LearnerSettings,
    ) -> None:
        super().__init__(name, algorithm, slot, NoWeights(), settings, 1)
        self._gradient_channel, self._counter = gradient_channel, counter
        self.weights: WeightsReader = OwnWeights(gradient_channel, self._flat.values.detach().numpy())

    def _report(self, known: dict[str, float], depth: int) -> None:
        for name in self._names[len(KNOWN) :]:
            self.metrics.mean(f"losses/{name}", known[name])

    def _advance(self, steps: int, updates: int = 1, of_all: int | None = None) -> None:
        super()._advance(steps, updates, of_all)
        self._counter.add(steps)

    def close(self) -> None: ...


class Worker(Bundle):
    """Actor and learner take turns: whose it is, the slot between them says."""

    def __init__(self, name: str, actor: Role, learner: WorkerLearner, slot: UnrollSlot) -> None:
        super().__init__(name, actor, learner)
        self._slot = slot

    def step(self) -> Waitable | None:
        """One step of every env or, when the unroll is full, one gradient."""
        return self._learner.step() if self._slot.filled else self._actor.step()
