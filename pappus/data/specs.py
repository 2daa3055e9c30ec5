"""The env of a run that learns from data: one that can be stepped, or only the spec of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pappus.config import EnvOptions, RunConfig
from pappus.data.checks import check_dataset, notes
from pappus.data.dataset import Dataset, completed, open_dataset
from pappus.data.metadata import kwargs_of
from pappus.envs.external import DATA_PREFIX, has_no_env
from pappus.envs.spaces import Space
from pappus.envs.vector import LAST_ACTION, env_spec, make_env, spec_with_last_inputs
from pappus.telemetry.files import jsonable
from pappus.trust import check_trust, env_asked
from pappus.types import ContinuousAction, EnvSpec

NO_ENV = "none"
"""`--env none`: do not use the data's env."""


def env_of_data(data: str, env: str) -> str:
    """The env that was asked for, or that of the data; `data:DIR` where there is none. An env that only the data names
    must not run code (`trust.py`)."""
    if env and env != NO_ENV:
        return env
    dataset = open_dataset(data)
    if env == NO_ENV or not dataset.env:
        return f"{DATA_PREFIX}{dataset.path}"
    remedy = f"give it yourself with --env {dataset.env}; --env {NO_ENV} does without"
    check_trust(f"data set {str(dataset.path)!r}", env_asked(dataset.env), remedy)
    return dataset.env


def folder_of_data(data: str) -> str:
    """Where a data set is, from whatever folder it is looked for."""
    return str(completed(data))


def spec_of(env: str | Callable[..., Any], options: EnvOptions) -> EnvSpec:
    """What one env shows and accepts, or what the data says of it."""
    if isinstance(env, str) and env.startswith(DATA_PREFIX):
        return shown_spec(Dataset(Path(env.removeprefix(DATA_PREFIX))), options)
    return env_spec(env, options)


def shown_spec(dataset: Dataset, options: EnvOptions) -> EnvSpec:
    """What the network is shown of a data set."""
    has_them = isinstance(dataset.spec.observation, dict) and LAST_ACTION in dataset.spec.observation
    return spec_with_last_inputs(dataset.spec) if options.last_inputs and not has_them else dataset.spec


def check_spec(dataset: Dataset, env: str | Callable[..., Any], spec: EnvSpec, options: EnvOptions) -> None:
    """Raise `UserError` unless the data can be learned from and is of an env with this spec."""
    check_dataset(dataset, spec, shown_spec(dataset, options), _action_space(env, spec, options))


def _action_space(env: str | Callable[..., Any], spec: EnvSpec, options: EnvOptions) -> Space | None:
    """The space of real actions, whose bounds no spec has; None where it is not known."""
    if has_no_env(env) or not isinstance(spec.action, ContinuousAction):
        return None
    with closing(make_env(env, 1, 0, options)) as made:
        space: Space | None = getattr(getattr(made, "env", None), "single_action_space", None)
    return space


def data_notes(config: RunConfig) -> list[str]:
    """What is worth a word when a run begins to learn from a data set."""
    if not config.data:
        return []
    dataset = open_dataset(config.data)
    return [f"data: {note}" for note in (*notes(dataset), *_other_envs(dataset, config))]


def _other_envs(dataset: Dataset, config: RunConfig) -> Iterator[str]:
    """Envs that agree in their spaces may still be others."""
    if has_no_env(config.env):
        return
    if dataset.env and dataset.env != config.env:
        yield f"it is of {dataset.env}, and the run plays {config.env}"
    kwargs, mine = kwargs_of(dataset.metadata), jsonable(config.env_options.kwargs)
    if kwargs is not None and kwargs != mine:
        yield f"its env was made with the kwargs {kwargs}, and that of the run with {mine}; see --env-options.kwargs"
