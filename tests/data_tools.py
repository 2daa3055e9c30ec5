"""Small data sets for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optree

from pappus.config import EnvOptions
from pappus.data.dataset import DatasetWriter
from pappus.data.episode import Episode
from pappus.envs.gym_backend import make_gym_vector
from pappus.envs.spaces import action_converter
from pappus.envs.vector import make_env
from pappus.types import ACTION_MASK, Array, ArraySpec, ContinuousAction, EnvSpec, Timestep, map_leaves


def random_episodes(spec: EnvSpec, count: int, seed: int = 0, longest: int = 12) -> list[Episode]:
    """Episodes of 1 … `longest` steps of noise: half of them terminate, the others are truncated or cut off."""
    rng = np.random.default_rng(seed)

    def one() -> Episode:
        length, ending = int(rng.integers(1, longest + 1)), rng.random()

        def shown(leaf: ArraySpec) -> Array:
            return (rng.normal(size=(length + 1, *leaf.shape)) * 50).astype(leaf.dtype)

        if isinstance(spec.action, ContinuousAction):
            action = rng.uniform(-1, 1, (length, *spec.action.shape)).astype(np.float32)
        else:
            action = rng.integers(0, spec.action.choices[0], length)
        observation = optree.tree_map(shown, spec.observation)
        return Episode(observation, action, rng.normal(size=length).astype(np.float32), ending < 0.5, ending > 0.7)

    return [one() for _ in range(count)]


def record(directory: Path, env: str, steps: int, seed: int = 0, num_envs: int = 8, **kwargs: Any) -> Path:
    """A data set of an env with random actions that its masks allow: about `steps` steps, whole episodes."""
    envs = make_env(env, num_envs, seed, EnvOptions(kwargs=kwargs))
    spaces = make_gym_vector(env, 1, kwargs)
    writer = DatasetWriter(directory, envs.spec, spaces.single_observation_space, spaces.single_action_space, env)
    rng = np.random.default_rng(seed)
    timestep = envs.reset()
    streams: list[list[tuple[Any, Any, float, float]]] = [[] for _ in range(num_envs)]
    done: list[Episode] = []
    while sum(episode.length for episode in done) < steps:
        seen = map_leaves(np.copy, timestep.observation)
        action = _any_action(envs.spec, timestep, rng)
        timestep = envs.step(action)
        for env_number, stream in enumerate(streams):
            here = map_leaves(lambda leaf, i=env_number: leaf[i], seen)
            stream.append((here, action[env_number], timestep.reward[env_number], timestep.discount[env_number]))
            if not timestep.valid[env_number]:
                done.append(_episode(stream))
                stream.clear()
    writer.add(done, action_converter(spaces.single_action_space)[1])
    return directory


def _any_action(spec: EnvSpec, timestep: Timestep, rng: np.random.Generator) -> Array:
    count = len(timestep.first)
    if isinstance(spec.action, ContinuousAction):
        return rng.uniform(-1, 1, (count, *spec.action.shape)).astype(np.float32)
    dice = rng.random((count, spec.action.choices[0]))
    if spec.masked:
        dice *= timestep.observation[ACTION_MASK]
    return dice.argmax(1)


def _episode(stream: list[tuple[Any, Any, float, float]]) -> Episode:
    """Of the rows of one episode; the last is that of its final observation."""
    shown, actions, rewards, discounts = (list(column) for column in zip(*stream, strict=True))
    observation = map_leaves(lambda *leaves: np.stack(leaves), *shown)
    terminated = discounts[-2] == 0
    return Episode(
        observation, np.array(actions[:-1]), np.array(rewards[:-1], np.float32), terminated, not terminated
    )
