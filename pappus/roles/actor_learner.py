"""Gorila's bundle: an actor and a learner that share a thread and a replay memory, and whose gradients go elsewhere."""

from __future__ import annotations

import torch

from pappus.core import GradientChannel, ItemSource, ReplayAlgorithm, StepTotal, Waitable
from pappus.roles.gradient_learner import LearnerSettings, NoWeights
from pappus.roles.remote_gradient import RemoteGradient
from pappus.roles.replay_learner import ReplayLearner
from pappus.roles.role import Role
from pappus.roles.wait_any import WaitAny


class RemoteGradientLearner(RemoteGradient, ReplayLearner):
    """replay ──batch──▶ loss ──gradient──▶ shards ──weights──▶ here; the target network follows their versions."""

    def __init__(
        self, name: str, algorithm: ReplayAlgorithm, source: ItemSource, gradient_channel: GradientChannel, counted: StepTotal,
        settings: LearnerSettings, capacity: int,
    ) -> None:
        super().__init__(name, algorithm, source, NoWeights(), counted, settings, capacity)
        self._gradient_channel = gradient_channel
        self._target_of = -1
        """How often the target network has followed: versions are counted, as everybody sees them."""

    def _learn(self) -> Waitable | None:
        self._pull()
        return super()._learn()

    def _pull(self) -> None:
        """The newest weights, of which the target network takes its share every so many versions.

        Where several times for it passed unseen, they are made up for at once. It begins as the first weights.
        """
        version = self._gradient_channel.read(self._flat.values.detach().numpy())
        updates = self._algorithm.target_updates
        now = version // updates.every
        passed = now - self._target_of
        if passed > 0:
            share = 1.0 if self._target_of < 0 else 1.0 - (1.0 - updates.share) ** passed
            self._target_of = now
            with torch.no_grad():
                self._target_flat.values.lerp_(self._flat.values, share)

    def _follow(self) -> None: ...


class Bundle(Role):
    """Both take turns: the limiter of their replay memory says whose turn it is."""

    def __init__(self, name: str, actor: Role, learner: Role) -> None:
        super().__init__(name)
        self._actor, self._learner = actor, learner
        actor.metrics = learner.metrics = self.metrics

    def step(self) -> Waitable | None:
        """One gradient, or one step of every env; or the ports that keep both from it."""
        if self._learner.step() is None:
            return None
        actor = self._actor.step()
        if actor is None:
            return None
        learner = self._learner.step()  # an actor that must wait may have handed over what the learner waited for
        return None if learner is None else WaitAny(learner, actor)

    def close(self) -> None:
        self._actor.close()
        self._learner.close()
