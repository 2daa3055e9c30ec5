"""What a run begins with: the data that it learns from, the env of that, and the weights of another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import gymnasium.vector

from pappus.config import RunConfig
from pappus.data.specs import env_of_data, folder_of_data
from pappus.errors import UserError
from pappus.telemetry.run_folders import find_checkpoint
from pappus.telemetry.weights import stored_sizes, stored_weights
from pappus.topologies.program import Run

EnvLike: TypeAlias = str | Callable[..., Any]
SAME_NETWORK = "give a run of an algorithm with the same network, and the same --network options"


def name_of(env: EnvLike) -> str:
    """What an env is called in a run's config; `UserError` for what makes none."""
    if isinstance(env, str):
        return env
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        spec = getattr(env, "spec", None)
        one = repr(spec.id) if spec is not None else f"lambda: {type(env.unwrapped).__name__}(…)"
        raise UserError(
            f"env is {type(env.unwrapped).__name__}(…), an env instance, but a run creates many envs; "
            f"give env={one}, or a function that creates one"
        )
    if not callable(env):
        raise UserError(f"env={env!r:.100} is not an env; give a Gymnasium id, or a function that creates one")
    return f"{getattr(env, '__module__', '')}:{getattr(env, '__qualname__', type(env).__name__)}"


def first_weights(run: Run) -> Path:
    """The newest checkpoint of the run that this one begins with; `UserError` if it is of another network."""
    config = run.config
    checkpoint = find_checkpoint(Path(config.init_from), "latest")
    size = stored_weights(checkpoint).size
    if size != run.weights_size:
        raise UserError(
            f"init_from={config.init_from!r} holds {size} weights, but the network of {config.system_name!r} has "
            f"{run.weights_size}; {SAME_NETWORK}"
        )
    theirs, own = stored_sizes(checkpoint), {part.name: part.size for part in run.layout}
    if theirs and theirs != own:  # as many numbers may still be another network
        name = next(name for name in (*own, *theirs) if theirs.get(name) != own.get(name))
        raise UserError(
            f"init_from={config.init_from!r} holds weights of another network: {name!r} has {theirs.get(name, 0)} "
            f"there and {own.get(name, 0)} in that of {config.system_name!r}; {SAME_NETWORK}"
        )
    return checkpoint.resolve()


def with_data(config: RunConfig, env: EnvLike) -> tuple[RunConfig, EnvLike]:
    """The config with where its data is, and the env of the data where none was given. A topology that does without
    training episodes has evaluations before the end, unless the config says when."""
    if config.data:
        name = env_of_data(config.data, config.env)
        config = dataclasses.replace(config, data=folder_of_data(config.data), env=name)
        env = name if isinstance(env, str) else env
    asked, wanted = config.evaluation, config.topology.evaluations
    if wanted and not (asked.every_steps or asked.at_steps or asked.every_seconds):
        asked = dataclasses.replace(asked, every_steps=max(1, config.steps // wanted))
    return dataclasses.replace(config, evaluation=asked), env
