"""The evaluator: plays greedily with the newest weights when asked."""

from __future__ import annotations

import time

import numpy as np
import torch

from pappus.core import Waitable
from pappus.envs.vector import VectorEnv
from pappus.roles.acting import LocalPolicy
from pappus.roles.role import IDLE, Role
from pappus.telemetry.env_timer import EnvTimer
from pappus.telemetry.processes import usable_cores
from pappus.types import Timestep

LOOK_SECONDS = 0.02
"""How often to look for weights that are new enough."""
MAX_ENVS = 32
"""Envs that an evaluation steps at once."""


class Evaluator(Role):
    """`evaluate N` plays N whole episodes with one version of the weights and reports their mean return. Episodes are
    divided among the envs in advance: taking those that end first would favour short ones."""

    stateful = False

    def __init__(self, name: str, env: VectorEnv, policy: LocalPolicy) -> None:
        super().__init__(name)
        self._env, self._policy = env, policy
        self._step_envs = self.metrics.time(EnvTimer(env.step))
        self._timestep: Timestep | None = None
        self._oldest = 0
        self._left = np.zeros(env.num_envs, np.int64)
        self._returns: list[float] = []
        self._lengths: list[float] = []

    def receive(self, command: str, argument: int) -> None:
        """`evaluate` starts an evaluation of `argument` episodes and drops one that still runs; `from_version` sets the
        oldest version of the weights that may play; `use_all_cores` says that training is over, and cores are free."""
        if command == "use_all_cores":
            torch.set_num_threads(usable_cores())
            return
        if command == "from_version":
            self._oldest = argument
            return
        if command != "evaluate":
            return super().receive(command, argument)
        envs = self._env.num_envs
        self._left = np.full(envs, argument // envs) + (np.arange(envs) < argument % envs)
        self._returns, self._lengths = [], []
        self._timestep = None

    def step(self) -> Waitable | None:
        self.wake_at = None
        if not self._left.any():
            return IDLE
        if self._timestep is None:
            if not self._policy.refresh():
                return self._policy
            if self._policy.version < self._oldest:  # a learner on a device publishes now and then
                self.wake_at = time.perf_counter() + LOOK_SECONDS
                return IDLE
            self._timestep = self._env.reset()
            self.metrics.begin()
        action, _ = self._policy.act(self._timestep)
        self._timestep = self._step_envs(action)
        self._collect(self._timestep)
        return None

    def _collect(self, timestep: Timestep) -> None:
        if timestep.episodes is None:
            return
        for episode_return, length, env in zip(*timestep.episodes, strict=True):
            if self._left[env] > 0:
                self._left[env] -= 1
                self._returns.append(float(episode_return))
                self._lengths.append(float(length))
        if not self._left.any():
            self.metrics.episodes(self._returns, self._lengths)
            self.metrics.gauge("eval/episodic_return", float(np.mean(self._returns)))
            self.metrics.gauge("eval/episodic_return_std", float(np.std(self._returns)))
            self.metrics.gauge("eval/version", self._policy.version)

    def close(self) -> None:
        self._env.close()
