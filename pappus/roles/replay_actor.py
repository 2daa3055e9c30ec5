"""The actor of Ape-X: steps its envs with its own copy of the policy, and records every step for replay."""

from __future__ import annotations

import numpy as np

from pappus.core import ItemSink, Policy, StepCounter, Waitable
from pappus.envs.vector import VectorEnv
from pappus.roles.role import Role
from pappus.types import Nest, map_leaves


class ReplayActor(Role):
    """env ⇄ policy ──steps──▶ recorder ──items──▶ replay. The policy gets new weights every `refresh_every` steps."""

    def __init__(
        self, name: str, env: VectorEnv, policy: Policy, sink: ItemSink, counter: StepCounter, refresh_every: int
    ) -> None:
        super().__init__(name)
        self._env, self._policy, self._sink, self._counter = env, policy, sink, counter
        self._refresh_every = max(1, refresh_every // env.num_envs)
        self._until_refresh = 0
        self._timestep = env.reset()

    def step(self) -> Waitable | None:
        """Step every env once, or return the port that it waits for."""
        if not self._sink.ready():
            self._count_lost()
            return self._sink
        if self._until_refresh == 0:
            if not self._policy.refresh():
                return self._policy
            self._until_refresh = self._refresh_every
        self._until_refresh -= 1
        seen, state = self._timestep, self._policy.state
        seen = seen._replace(observation=map_leaves(np.copy, seen.observation))  # the env may overwrite it
        action, behaviour = self._policy.act(seen)
        self._timestep = then = self._env.step(action)
        self._sink.record(seen, state, action, behaviour, then)
        steps = int(np.count_nonzero(then.valid))
        self._counter.add(steps)
        self.metrics.count("env_steps", steps)
        if then.episodes is not None:
            self.metrics.episodes(then.episodes.returns, then.episodes.lengths)
        return None

    def _count_lost(self) -> None:
        if self._sink.lost:
            self.metrics.count("items_lost", self._sink.lost)
            self.metrics.event(f"lost the replay service; {self._sink.lost} unconfirmed items may be lost")
            self._sink.lost = 0

    def save(self) -> Nest | None:
        return None

    def close(self) -> None:
        self._sink.close()
        self._env.close()
