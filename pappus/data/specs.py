"""The env of a run that learns from data: one that can be stepped, or only the spec of the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pappus.config import EnvOptions
from pappus.data.dataset import Dataset, open_dataset
from pappus.data.metadata import find_dataset
from pappus.envs.external import DATA_PREFIX
from pappus.envs.vector import LAST_ACTION, env_spec, spec_with_last_inputs
from pappus.errors import UserError
from pappus.types import EnvSpec

NO_ENV = "none"
"""`--env none`: do not use the data's env."""


def env_of_data(data: str, env: str) -> str:
    """The env that was asked for, or that of the data; `data:DIR` where there is none."""
    if env and env != NO_ENV:
        return env
    dataset = open_dataset(data)
    return (dataset.env if env != NO_ENV else "") or f"{DATA_PREFIX}{dataset.path}"


def folder_of_data(data: str) -> str:
    """Where a data set is, from whatever folder it is looked for."""
    return str(find_dataset(data))


def spec_of(env: str | Callable[..., Any], options: EnvOptions) -> EnvSpec:
    """What one env shows and accepts, or what the data says of it."""
    if isinstance(env, str) and env.startswith(DATA_PREFIX):
        return shown_spec(Dataset(Path(env.removeprefix(DATA_PREFIX))), options)
    return env_spec(env, options)


def shown_spec(dataset: Dataset, options: EnvOptions) -> EnvSpec:
    """What the network is shown of a data set."""
    has_them = isinstance(dataset.spec.observation, dict) and LAST_ACTION in dataset.spec.observation
    return spec_with_last_inputs(dataset.spec) if options.last_inputs and not has_them else dataset.spec


def check_spec(dataset: Dataset, env: str, spec: EnvSpec, options: EnvOptions) -> None:
    """Raise `UserError` unless the data is of an env with this spec."""
    found = shown_spec(dataset, options)
    for what in ("observation", "action", "frame_stack"):
        one, two = getattr(found, what), getattr(spec, what)
        if one != two:
            raise UserError(
                f"data {str(dataset.path)!r} has {what} {one}, and env {env!r} has {two}; give the env that it was "
                "recorded on, with the same --env-options"
            )


