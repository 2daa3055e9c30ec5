"""The actor: steps its envs with a policy and writes what happens."""

from __future__ import annotations

from pappus.core import Policy, Sink, Waitable
from pappus.envs.vector import VectorEnv
from pappus.recording.unrolls import UnrollWriter
from pappus.roles.role import Role
from pappus.types import Nest, Timestep


class Actor(Role):
    """env ⇄ policy ──steps──▶ writer ──unrolls──▶ sink. Fresh weights are taken once per unroll."""

    def __init__(self, name: str, env: VectorEnv, policy: Policy, sink: Sink, unroll_length: int) -> None:
        super().__init__(name)
        self._env, self._policy, self._sink = env, policy, sink
        self._writer = UnrollWriter(unroll_length)
        self._steps_per_unroll = unroll_length * env.num_envs
        self._timestep = env.reset()

    def step(self) -> Waitable | None:
        """One step of every env, or the port that the next unroll cannot begin without."""
        if self._writer.full:
            slot = self._sink.acquire()
            if slot is None:
                return self._sink
            if not self._policy.refresh():
                return self._policy
            self._writer.begin(slot, self._timestep, self._policy.state)
        action, behaviour = self._policy.act(self._timestep)
        self._timestep = timestep = self._env.step(action)
        self._writer.append(action, behaviour, self._policy.version, timestep)
        if timestep.episodes is not None:
            self.metrics.episodes(timestep.episodes.returns, timestep.episodes.lengths)
        if self._writer.full:
            self._sink.commit()
            self.metrics.count("env_steps", self._steps_per_unroll)
        return None

    def save(self) -> Nest | None:
        """Everything down to the env's state, or None where the env cannot be snapshotted."""
        env = self._env.snapshot()
        if env is None:
            return None
        timestep = list(self._timestep[:5])
        return {"env": env, "policy": self._policy.save(), "timestep": timestep, "time": self._writer.time}

    def load(self, state: Nest) -> None:
        """Go on in the middle of the unroll."""
        self._env.restore(state["env"])
        self._policy.load(state["policy"])
        self._timestep = Timestep(*state["timestep"])
        slot = self._sink.acquire()
        if slot is not None:
            self._writer.resume(slot, state["time"])

    def close(self) -> None:
        self._env.close()
