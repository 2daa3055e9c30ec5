"""What stands for the env of a run that has only data: its policy can act, but nothing can be stepped."""

from __future__ import annotations

from pathlib import Path

from pappus.config import EnvOptions
from pappus.data.dataset import Dataset
from pappus.envs.external import DATA_PREFIX
from pappus.envs.spaces import action_converter, observation_converter
from pappus.envs.vector import EnvSource, VectorEnv, WithLastInputs, make_env
from pappus.types import Array, Nest, Timestep


class NoEnv(VectorEnv):
    """Converts observations and actions as an env of the data would."""

    num_envs = 1

    def __init__(self, dataset: Dataset) -> None:
        self.spec = dataset.spec
        action, self._to_action = action_converter(dataset.action_space)
        _, self._to_nest = observation_converter(dataset.observation_space, action)

    def reset(self) -> Timestep:
        raise NotImplementedError("there is no env")

    def step(self, action: Array) -> Timestep:
        raise NotImplementedError("there is no env")

    def to_nest(self, batch: Nest) -> Nest:
        return self._to_nest(batch)

    def to_action(self, action: Array) -> Array:
        return self._to_action(action)


def env_to_act_in(env: EnvSource, options: EnvOptions) -> VectorEnv:
    """One env whose observations a policy is given: a real one where there is one."""
    if not (isinstance(env, str) and env.startswith(DATA_PREFIX)):
        return make_env(env, 1, 0, options)
    known = NoEnv(Dataset(Path(env.removeprefix(DATA_PREFIX))))
    return WithLastInputs(known) if options.last_inputs else known
