"""Adds the last action and the last reward to observations, as R2D2's networks take them.

    o_t   →   {"observation": o_t, "last_action": a_{t−1}, "last_reward": r_{t−1}}

Both are zeros at the start of an episode. An observation that is a dict keeps its own keys and gets the two more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pappus.errors import UserError
from pappus.types import Array, ArraySpec, EnvSpec, Nest, Timestep

if TYPE_CHECKING:
    from pappus.envs.vector import VectorEnv

ACTION, REWARD = "last_action", "last_reward"


class WithLastInputs:
    """A `VectorEnv` whose observations hold the last action and reward."""

    def __init__(self, env: VectorEnv) -> None:
        self._env, self.num_envs = env, env.num_envs
        self.spec: EnvSpec = with_last_inputs(env.spec)
        self._action, self._reward = self._zeros()

    def reset(self) -> Timestep:
        self._action, self._reward = self._zeros()
        return self._shown(self._env.reset())

    def step(self, action: Array) -> Timestep:
        timestep = self._env.step(action)
        keep = ~timestep.first
        self._reward = np.where(keep, timestep.reward, np.float32(0))
        self._action = np.where(keep.reshape(-1, *[1] * (action.ndim - 1)), action, 0).astype(action.dtype)
        return self._shown(timestep)

    def note(self, action: Array, reward: Array) -> None:
        """Set the last action and reward where another env was stepped."""
        self._action, self._reward = action, reward

    def render(self) -> object:
        return self._env.render()

    def to_nest(self, batch: Nest) -> Nest:
        return self._extended(self._env.to_nest(batch))

    def to_action(self, action: Array) -> Array:
        return self._env.to_action(action)

    def close(self) -> None:
        self._env.close()

    def snapshot(self) -> Nest | None:
        inner = self._env.snapshot()
        return None if inner is None else {"env": inner, ACTION: self._action.copy(), REWARD: self._reward.copy()}

    def restore(self, snapshot: Nest) -> None:
        self._env.restore(snapshot["env"])
        self._action, self._reward = np.array(snapshot[ACTION]), np.array(snapshot[REWARD], np.float32)

    def _zeros(self) -> tuple[Array, Array]:
        spec = self._env.spec.action.array
        return np.zeros((self.num_envs, *spec.shape), spec.dtype), np.zeros(self.num_envs, np.float32)

    def _shown(self, timestep: Timestep) -> Timestep:
        return timestep._replace(observation=self._extended(timestep.observation))

    def _extended(self, observation: Nest) -> Nest:
        return {**_as_dict(observation), ACTION: self._action, REWARD: self._reward}


def with_last_inputs(spec: EnvSpec) -> EnvSpec:
    """The spec of one env with the last action, as categories where it is one of several, and the last reward."""
    own = _as_dict(spec.observation)
    for name in (ACTION, REWARD):
        if name in own:
            raise UserError(f"the env's observation already has a key {name!r}; turn env_options.last_inputs off")
    last = replace(spec.action.array, num_values=spec.action.choices or None)
    extended = {**own, ACTION: last, REWARD: ArraySpec((), "float32")}
    return replace(spec, observation=extended)


def _as_dict(observation: Nest) -> dict[str, Nest]:
    return observation if isinstance(observation, dict) else {"observation": observation}
