"""An env backend of your own: N envs stepped as one NumPy array, without Gymnasium.

Every env is a point on a line that must reach 0: action 0 moves it left, 1 right. An episode terminates at |x| < 0.05
with reward 1 and is truncated after 50 steps; every other step costs 0.05.

    python examples/own_backend.py
    pappus check-env line --backend examples.own_backend:LineEnvs
    pappus train ppo --env line --env-options.backend examples.own_backend:LineEnvs
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pappus
from pappus.config import EnvOptions
from pappus.envs.gym_vector import NextStepStream
from pappus.envs.vector import VectorEnv
from pappus.types import Array, ArraySpec, DiscreteAction, EnvSpec, Nest, Timestep

LIMIT = 50


class LineEnvs(VectorEnv):
    """A backend is called with these four arguments; `env` is what the user wrote behind `--env`."""

    def __init__(self, env: Any, num_envs: int, seed: int, options: EnvOptions) -> None:
        self.spec, self.num_envs = EnvSpec(ArraySpec((1,), "float32"), DiscreteAction(2)), num_envs
        self._rng = np.random.default_rng(seed)
        self._stream = NextStepStream(num_envs)  # marks pseudo-transitions, sums returns
        self._x, self._time = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def reset(self) -> Timestep:
        self._begin(np.ones(self.num_envs, np.bool_))
        return Timestep(self._observation(), *self._stream.reset())

    def step(self, action: Array) -> Timestep:
        over = (np.abs(self._x) < 0.05) | (self._time >= LIMIT)  # these ignore the action and start a new episode
        self._x += np.where(action == 1, 0.1, -0.1) + self._rng.normal(0, 0.01, self.num_envs)
        self._time += 1
        self._begin(over)
        terminated = ~over & (np.abs(self._x) < 0.05)
        reward = np.where(terminated, 1.0, -0.05)
        return Timestep(self._observation(), *self._stream.step(reward, terminated, self._time >= LIMIT))

    def snapshot(self) -> Nest:
        """Optional: with it a resumed run continues bit for bit."""
        state = {"x": self._x.copy(), "time": self._time.copy(), "rng": self._rng.bit_generator.state}
        return {**state, "stream": self._stream.snapshot()}

    def restore(self, snapshot: Nest) -> None:
        self._x, self._time = snapshot["x"].copy(), snapshot["time"].copy()
        self._rng.bit_generator.state = snapshot["rng"]
        self._stream.restore(snapshot["stream"])

    def _begin(self, envs: Array) -> None:
        start = self._rng.choice([-1.0, 1.0], self.num_envs) * self._rng.uniform(0.2, 1.0, self.num_envs)
        self._x, self._time = np.where(envs, start, self._x), np.where(envs, 0, self._time)

    def _observation(self) -> Array:
        return self._x[:, None].astype(np.float32)


if __name__ == "__main__":
    backend = {"env_options.backend": "examples.own_backend:LineEnvs"}
    pappus.train("ppo", "line", steps=300_000, **backend)
