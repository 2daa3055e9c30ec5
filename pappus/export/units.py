"""Between an env's numbers and a policy's, as torch operations: what `envs.spaces` does to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from pappus.data.no_env import NoEnv
from pappus.envs.gym_vector import GymVectorEnv
from pappus.envs.spaces import Space, affine, to_env_observation
from pappus.envs.vector import VectorEnv, WithLastInputs
from pappus.types import ACTION_MASK, Nest


def spaces_of(env: VectorEnv) -> tuple[Space | None, Space | None]:
    """The spaces of one env; None if the backend has none; then no conversion is needed."""
    inner = env.inner if isinstance(env, WithLastInputs) else env
    if isinstance(inner, GymVectorEnv):
        observation: Space = inner.env.single_observation_space
        by_info = inner.spec.masked and not (isinstance(observation, spaces.Dict) and ACTION_MASK in observation.spaces)
        shown = spaces.Dict({"observation": observation}) if by_info else observation
        return shown, inner.env.single_action_space
    return (inner.observation_space, inner.action_space) if isinstance(inner, NoEnv) else (None, None)


class Units(nn.Module):
    """Actions of a policy `[N, …]` → those of the env: scaled, clipped, rounded, counted from where the env does."""

    def __init__(self, space: Space | None) -> None:
        super().__init__()
        self.space = space
        for name, array in _constants(space).items():
            self.register_buffer(name, torch.from_numpy(np.array(array)), persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        space, given = self.space, dict(self.named_buffers())
        if isinstance(space, spaces.Box):
            scaled = action * given["scale"] + given["offset"]
            wanted = torch.minimum(torch.maximum(scaled, given["low"]), given["high"])
            return wanted.round() if np.dtype(space.dtype).kind in "iu" else wanted
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return action.reshape(action.shape[0], *(space.shape or ())) + given["start"]
        return action


def _constants(space: Space | None) -> dict[str, Any]:
    if isinstance(space, spaces.Box):
        scale, offset = affine(space)
        return {
            "scale": scale, "offset": offset, "low": space.low.astype(np.float32), "high": space.high.astype(np.float32)
        }
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return {"start": np.asarray(space.start, np.int64)}
    return {}


def counted(space: Space | None, observation: Nest, sign: int) -> Nest:
    """Categories of observations `[N, …]`, arrays or tensors, counted from 0 as networks take them (`sign` −1), or from
    0 as the env counts them (1)."""
    if isinstance(space, spaces.Dict):
        ours = {key: counted(space[key], observation[key], sign) for key in space.spaces if key != ACTION_MASK}
        return {**observation, **ours}
    if isinstance(space, spaces.Tuple):
        return tuple(counted(inner, leaf, sign) for inner, leaf in zip(space.spaces, observation, strict=True))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        start = sign * np.asarray(space.start, np.int64)
        return observation + (torch.as_tensor(start) if isinstance(observation, Tensor) else start)
    return observation


def as_env_shows(space: Space | None, observation: Nest) -> Nest:
    """Converted observations `[N, …]` in the env's own format, as `TrainedPolicy.predict` takes them."""
    if space is None:
        return observation
    raw = to_env_observation(space, observation)
    if isinstance(observation, dict) and ACTION_MASK in observation and ACTION_MASK not in raw:
        return {**raw, ACTION_MASK: observation[ACTION_MASK]}  # given by info
    return raw
