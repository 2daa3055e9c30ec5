"""What a new run of a system of ours asks for and cannot get, as far as that is known without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium as gym

from pappus.beginnings import with_data
from pappus.config import AUTO, RunConfig
from pappus.envs.external import is_external
from pappus.envs.vector import backend_of, check_backend, env_spec
from pappus.errors import UserError
from pappus.imports import check_there
from pappus.light import NeedsTorch, light_system
from pappus.machine import with_actors
from pappus.presets import presets_for
from pappus.telemetry.processes import usable_cores
from pappus.trust import CODE, FILES, is_name, setting_of, several
from pappus.validation import has_gpu_driver, validate_device, validate_settings


def check_feasible(config: RunConfig) -> None:
    """Raise `UserError` for what cannot be, whatever is chosen where a setting is `auto`."""
    config = with_data(config, config.env)[0]
    _check_names(config)
    _check_record(config.record)
    validate_device(config)
    _check_actions(config)
    refusals = {_refusal(guess) for guess in _guesses(config)}
    if len(refusals) == 1 and (sentence := refusals.pop()):
        raise UserError(sentence)


def _check_names(config: RunConfig) -> None:
    """An env backend that there is not, and a `module:name` whose module is nowhere."""
    if is_name(config.env) and not config.env.startswith(FILES):
        check_there(config.env, "env ")
    for setting in CODE:
        for value in several(setting_of(config, setting)):
            if is_name(value):
                check_there(value, f"{setting}=")
    check_backend(backend_of(config.env, config.env_options))


def _check_record(record: str) -> None:
    there = next(place for place in (Path(record), *Path(record).absolute().parents) if place.exists())
    if record and not there.is_dir():
        raise UserError(f"record={record!r} cannot be written: {str(there)!r} is a file; give another")


def _check_actions(config: RunConfig) -> None:
    """Of Gymnasium's own envs, which are made within milliseconds; others are made once, by the run."""
    env, options = config.env, config.env_options
    spec = None if is_external(env) or is_name(env) else gym.registry.get(env)
    if options.backend != "auto" or spec is None or not str(spec.entry_point).startswith("gymnasium."):
        return
    if reason := light_system(config.system).algorithm.refusal(env_spec(env, options).action):
        raise UserError(f"{config.system} {reason}")


def _guesses(config: RunConfig) -> Iterator[RunConfig]:
    """The config for every device and every cost of an env's step that there may be: what is refused for some of them
    alone is left to the run, which knows. None where a cluster decides, or where presets for a GPU may apply."""
    driver = has_gpu_driver() or config.runtime == "ray"  # a cluster may have GPUs that this machine has not
    system = replace(light_system(config.system), on_gpu=True)
    special = any(preset.on_gpu for preset in presets_for(system, config.env))
    if (config.runtime == "ray" and config.actors == AUTO) or (special and driver and config.device != "cpu"):
        return
    devices = [config.device] if config.device != "auto" else ["cpu", *["cuda"] * driver]
    for device in devices:
        for heavy in (False, True):
            yield with_actors(replace(config, device=device), usable_cores(), heavy)


def _refusal(config: RunConfig) -> str:
    """The sentence that refuses a config; empty where there is none, or where torch must be asked."""
    try:
        validate_settings(config)
    except UserError as error:
        return str(error)
    except NeedsTorch:
        pass
    return ""
