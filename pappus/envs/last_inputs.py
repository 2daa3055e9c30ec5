"""Shows a policy what it did last and what came of it, as R2D2's networks want it.

    o_t   →   {"observation": o_t, "last_action": a_{t−1}, "last_reward": r_{t−1}}

Both are zeros at the start of an episode.
An observation that is a dict keeps its own keys and gets the two more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pappus.errors import UserError
from pappus.types import ActionSpec, Array, ArraySpec, ContinuousAction, EnvSpec, Nest, Timestep

if TYPE_CHECKING:
    from pappus.envs.vector import VectorEnv

ACTION, REWARD = "last_action", "last_reward"


class WithLastInputs:
    """A vector env whose observations say what was done last."""

    def __init__(self, env: VectorEnv) -> None:
        self._env, self._spec = env, with_last_inputs(env.spec)
        self._action = self._zeros()
        self._reward = np.zeros(env.num_envs, np.float32)

    @property
    def spec(self) -> EnvSpec:
        """What one env shows and accepts."""
        return self._spec

    @property
    def num_envs(self) -> int:
        """How many envs are stepped at once."""
        return self._env.num_envs

    def reset(self) -> Timestep:
        """Start all envs anew."""
        self._action, self._reward = self._zeros(), np.zeros(self.num_envs, np.float32)
        return self._shown(self._env.reset())

    def step(self, action: Array) -> Timestep:
        """Take one action per env."""
        timestep = self._env.step(action)
        keep = ~timestep.first
        self._reward = np.where(keep, timestep.reward, np.float32(0))
        self._action = np.where(keep.reshape(-1, *[1] * (action.ndim - 1)), action, 0).astype(action.dtype)
        return self._shown(timestep)

    def note(self, action: Array, reward: Array) -> None:
        """What was done last, and what came of it, where it was not `step` that did it."""
        self._action, self._reward = action, reward

    def render(self) -> object:
        """As the env does."""
        return self._env.render()  # type: ignore[attr-defined]

    def to_nest(self, batch: Nest) -> Nest:
        """A batch of observations of the env's own make, with what was done last."""
        return self._extended(self._env.to_nest(batch))

    def to_action(self, action: Array) -> Array:
        """A batch of actions in the env's own units."""
        return self._env.to_action(action)

    def close(self) -> None:
        """Release what the envs hold."""
        self._env.close()

    def snapshot(self) -> Nest | None:
        """Everything needed to go on, or None."""
        inner = self._env.snapshot()
        return None if inner is None else {"env": inner, ACTION: self._action.copy(), REWARD: self._reward.copy()}

    def restore(self, snapshot: Nest) -> None:
        """Go on from a snapshot."""
        self._env.restore(snapshot["env"])
        self._action, self._reward = np.array(snapshot[ACTION]), np.array(snapshot[REWARD], np.float32)

    def _zeros(self) -> Array:
        spec = self._env.spec.action.array
        return np.zeros((self.num_envs, *spec.shape), spec.dtype)

    def _shown(self, timestep: Timestep) -> Timestep:
        return timestep._replace(observation=self._extended(timestep.observation))

    def _extended(self, observation: Nest) -> Nest:
        own = observation if isinstance(observation, dict) else {"observation": observation}
        return {**own, ACTION: self._action, REWARD: self._reward}


def with_last_inputs(spec: EnvSpec) -> EnvSpec:
    """What one env shows then."""
    own = spec.observation if isinstance(spec.observation, dict) else {"observation": spec.observation}
    for name in (ACTION, REWARD):
        if name in own:
            raise UserError(f"the env shows a key {name!r} of its own; leave env_options.last_inputs out")
    extended = {**own, ACTION: _action_spec(spec.action), REWARD: ArraySpec((), "float32")}
    return EnvSpec(extended, spec.action, spec.frame_stack)


def _action_spec(action: ActionSpec) -> ArraySpec:
    """Categories where the action is one of several, so that networks see it one-hot."""
    if isinstance(action, ContinuousAction):
        return action.array
    return ArraySpec(action.array.shape, action.array.dtype, action.choices)
