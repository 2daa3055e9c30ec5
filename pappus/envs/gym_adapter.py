"""Any Gymnasium env, natively vectorised or one by one, in our time convention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
from gymnasium.vector import AutoresetMode

from pappus.config import EnvOptions
from pappus.envs.autoreset import NextStepStream, SameStepStream, Stream
from pappus.envs.gym_source import GymVector, make_gym_vector
from pappus.envs.masks import InfoMasks, flat_rows
from pappus.envs.seeds import first_env_seed
from pappus.envs.snapshot import capture, restore
from pappus.envs.spaces import action_converter, observation_converter
from pappus.errors import UserError
from pappus.types import ACTION_MASK, Array, EnvSpec, Nest, Timestep


def make_gym(env: str | Callable[..., Any], num_envs: int, seed: int, options: EnvOptions) -> GymVectorEnv:
    """N envs of a Gymnasium id, a `module:function` or a factory."""
    return GymVectorEnv(make_gym_vector(env, num_envs, options.kwargs), first_env_seed(seed, num_envs))


def autoreset_mode(env: GymVector) -> AutoresetMode:
    """What the env does when an episode ends; an env that does not say is refused, because guessing corrupts data."""
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise UserError(
            f"{type(env).__name__} has metadata['autoreset_mode']={mode!r}; "
            "set the gymnasium.vector.AutoresetMode that its step() follows"
        ) from None


class GymVectorEnv:
    """A Gymnasium vector env in our time convention; `first_seed` is None if it is seeded already."""

    def __init__(self, env: GymVector, first_seed: int | None) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._autoreset = autoreset_mode(env)
        next_step = self._autoreset is AutoresetMode.NEXT_STEP
        self._stream: Stream = NextStepStream(env.num_envs) if next_step else SameStepStream(env.num_envs)
        action, self._convert_action = action_converter(env.single_action_space)
        observation, self._convert = observation_converter(env.single_observation_space, action)
        # Envs say whether they give masks only when they are reset; the first reset() hands out this start.
        self._start: tuple[Nest, dict[str, Any]] | None = env.reset(seed=first_seed)
        self._masks: InfoMasks | None = None
        if ACTION_MASK in self._start[1] and not (isinstance(observation, dict) and ACTION_MASK in observation):
            self._masks = InfoMasks(env.num_envs, action)
            observation = {"observation": observation, ACTION_MASK: self._masks.spec}
        self.spec = EnvSpec(observation, action, env.metadata.get("frame_stack", 1))

    def reset(self) -> Timestep:
        """Start all envs anew; the first call starts from the seed."""
        observation, info = self._start or self.env.reset()
        self._start = None
        masks = None if self._masks is None else self._masks.read(info)
        return Timestep(self._shown(observation, masks), *self._stream.reset())

    def step(self, action: Array) -> Timestep:
        """Take one action per env."""
        observation, reward, terminated, truncated, info = self.env.step(self._convert_action(action))
        transition = self._stream.step(reward, terminated, truncated)
        masks = None if self._masks is None else self._masks.read(info)
        if transition.episodes is not None and self._autoreset is AutoresetMode.DISABLED:
            observation, masks = self._reset_ended(transition.first, observation, masks)
        return Timestep(self._shown(observation, masks), *transition)

    def to_nest(self, batch: Nest) -> Nest:
        """Observations of the env's own make; with masks by info as `{"observation": …, "action_mask": …}`."""
        if self._masks is None:
            return self._convert(batch)
        return self._shown(batch["observation"], flat_rows(batch[ACTION_MASK]))

    def to_action(self, action: Array) -> Array:
        """A batch of actions in the env's units."""
        return self._convert_action(action)

    def render(self) -> Any:
        """A picture of env 0, if the env was made with a render mode that gives one."""
        pictures = self.env.render()
        return pictures[0] if pictures else None

    def close(self) -> None:
        """Release what the envs hold."""
        self.env.close()

    def snapshot(self) -> Nest | None:
        """The envs' attributes and the running episodes; None when an attribute is of an unknown mutable type."""
        envs = capture(self.env)
        return None if envs is None else {"envs": envs, "stream": self._stream.snapshot()}

    def restore(self, snapshot: Nest) -> None:
        """Go on from a snapshot."""
        restore(self.env, snapshot["envs"])
        self._stream.restore(snapshot["stream"])
        self._start = None

    def _shown(self, observation: Nest, masks: Array | None) -> Nest:
        nest = self._convert(observation)
        return nest if masks is None else {"observation": nest, ACTION_MASK: masks}

    def _reset_ended(self, ended: Array, observation: Nest, masks: Array | None) -> tuple[Nest, Array | None]:
        """Reset the envs that ended and show their first observation beside the others' newest one."""
        fresh, info = self.env.reset(options={"reset_mask": ended.copy()})
        if masks is not None and self._masks is not None:
            masks[ended] = 1
            masks = self._masks.read(info, masks)

        def merge(old: Array, new: Array) -> Array:
            rows = ended.reshape(-1, *[1] * (np.ndim(old) - 1))
            return np.where(rows, new, old)

        return optree.tree_map(merge, observation, fresh), masks
