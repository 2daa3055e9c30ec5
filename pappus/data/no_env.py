"""What stands for the env of a run that has none here: its policy can act, but nothing can be stepped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pappus.config import EnvOptions
from pappus.data.dataset import Dataset
from pappus.envs.external import DATA_PREFIX, external_spec, is_external
from pappus.envs.spaces import Space, ToAction, ToNest, action_converter, observation_converter
from pappus.envs.vector import EnvSource, VectorEnv, WithLastInputs, make_env
from pappus.types import Array, ArraySpec, EnvSpec, Nest, Timestep, map_leaves

SPEC_FILE = "env-spec.yaml"
"""The run directory's own copy of the file that describes envs elsewhere."""


class NoEnv(VectorEnv):
    """Converts observations and actions as an env with these spaces would. Without spaces, envs elsewhere speak as
    policies do: observations as the spec says, continuous actions in −1 … 1."""

    num_envs = 1

    def __init__(
        self, spec: EnvSpec, observation_space: Space | None = None, action_space: Space | None = None
    ) -> None:
        self.spec, self.observation_space, self.action_space = spec, observation_space, action_space
        self._to_action: ToAction = lambda action: action
        self._to_nest: ToNest = lambda batch: map_leaves(_as_spec, spec.observation, batch)
        if observation_space is not None and action_space is not None:
            action, self._to_action = action_converter(action_space)
            _, self._to_nest = observation_converter(observation_space, action)

    def reset(self) -> Timestep:
        raise NotImplementedError("there is no env")

    def step(self, action: Array) -> Timestep:
        raise NotImplementedError("there is no env")

    def to_nest(self, batch: Nest) -> Nest:
        return self._to_nest(batch)

    def to_action(self, action: Array) -> Array:
        return self._to_action(action)


def _as_spec(leaf: ArraySpec, batch: Any) -> Array:
    return np.asarray(batch, leaf.dtype)


def env_to_act_in(env: EnvSource, options: EnvOptions, run: Path) -> VectorEnv:
    """One env whose observations a policy of this run directory is given: a real one where there is one."""
    if is_external(env):
        own = run / SPEC_FILE
        known = NoEnv(external_spec(f"spec:{own}" if own.is_file() else str(env)))
    elif isinstance(env, str) and env.startswith(DATA_PREFIX):
        dataset = Dataset(Path(env.removeprefix(DATA_PREFIX)))
        known = NoEnv(dataset.spec, dataset.observation_space, dataset.action_space)
    else:
        return make_env(env, 1, 0, options)
    return WithLastInputs(known) if options.last_inputs else known
