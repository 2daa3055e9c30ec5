"""Callbacks and loggers by name, and what is wrong with them, said before anything is started."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pappus.config import RunConfig
from pappus.errors import UserError, closest, install_line
from pappus.hooks.beside import Hook, Hooks
from pappus.hooks.callback import EVENTS, Answers, Callback, CurrentRun, Episode
from pappus.hooks.logger import LoggedRun, Logger
from pappus.imports import imported, imported_callable, told

TENSORBOARD, NONE = "tensorboard", "none"
"""Written by the run itself, with metrics.jsonl; and no logger."""
METHODS = ("begin", "write", "end")


class Known(NamedTuple):
    """A logger of ours: where it is, which package it needs, and how that is installed."""

    place: str
    package: str = ""
    install: str = ""


LOGGERS = {
    "csv": Known("pappus.loggers.csv_file:CsvLogger"),
    "parquet": Known("pappus.loggers.parquet_file:ParquetLogger", "pyarrow", install_line("data")),
    "wandb": Known("pappus.loggers.weights_and_biases:WandbLogger", "wandb", "pip install wandb"),
    "mlflow": Known("pappus.loggers.ml_flow:MlflowLogger", "mlflow", "pip install mlflow"),
    "trackio": Known("pappus.loggers.track_io:TrackioLogger", "trackio", "pip install trackio"),
}


def check_hooks(config: RunConfig) -> None:
    """Raise `UserError` for names that cannot be right and packages that are missing; nothing is imported."""
    for name in config.hooks.callbacks:
        module, colon, attribute = name.partition(":")
        if not (module and colon and attribute):
            raise UserError(f"--callback {name!r} must be module:name, such as my_module:MyCallback")
    loggers = config.hooks.loggers
    for name in loggers:
        if ":" not in name and name not in (TENSORBOARD, NONE):
            _known(name)
    if NONE in loggers and len(loggers) > 1:
        raise UserError(f"--log {' '.join(loggers)}: none excludes the others; leave it out, or give it alone")


def hooks_for(
    config: RunConfig, directory: Path, callbacks: Sequence[Any] = (), resumed_at: int | None = None
) -> Hooks:
    """The callbacks and loggers of a run; its loggers have begun."""
    answers, hooks = Answers(), list[Hook]()
    given = [(_name(one), one) if not isinstance(one, str) else (one, _made(one)) for one in callbacks]
    for name, callback in [*((name, _made(name)) for name in config.hooks.callbacks), *given]:
        number = sum(hook.name.startswith(f"callback {name}") for hook in hooks)
        title = f"callback {name}" + (f" ({number + 1})" if number else "")
        hooks.append(Hook(title, _calls(callback, CurrentRun(directory, config, answers, title), title)))
    run = LoggedRun(directory, json.loads(json.dumps(dataclasses.asdict(config), default=str)), resumed_at)
    hooks += [_logger(name, run) for name in config.hooks.loggers if name not in (TENSORBOARD, NONE)]
    return Hooks(hooks, config.hooks, answers)


def _known(name: str) -> Known:
    if name not in LOGGERS:
        names = [TENSORBOARD, *LOGGERS, NONE]
        hint = closest(name, names) or f"; use {', '.join(names)} or module:name"
        raise UserError(f"--log {name!r} is unknown{hint}")
    known = LOGGERS[name]
    if known.package and importlib.util.find_spec(known.package) is None:
        raise UserError(f"--log {name} needs {known.package}, which is not installed; run {known.install}")
    return known


def _logger(name: str, run: LoggedRun) -> Hook:
    own = ":" in name
    logger: Logger = _called(imported_callable(name if own else _known(name).place, "--log "), f"--log {name}")
    if missing := [method for method in METHODS if not callable(getattr(logger, method, None))]:
        raise UserError(f"--log {name!r} has no method {missing[0]!r}; a logger has begin, write and end")
    try:
        logger.begin(run)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--log {name} cannot begin: {told(error)}; fix that, or leave --log {name} out") from error
    calls: dict[str, Callable[..., None]] = {
        "on_metrics": lambda step, metrics, time: logger.write(step, time, metrics),
        "on_end": lambda step, summary: logger.end(summary),
    }
    return Hook(f"logger {name}", calls, may_stop=False)


def _made(name: str) -> Any:
    """The callback that `module:name` names: an object, or what a class or function makes."""
    found = imported(name, "--callback ")
    makes = inspect.isclass(found) or (callable(found) and not _events_of(found))
    return _called(found, f"--callback {name}") if makes else found


def _called(make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except Exception as error:
        raise UserError(f"{what} cannot be made without arguments: {told(error)}") from error


def _name(callback: Any) -> str:
    return type(callback).__qualname__


def _events_of(callback: Any) -> list[str]:
    return [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]


def _calls(callback: Any, run: CurrentRun, title: str) -> dict[str, Callable[..., None]]:
    """What is called on each event. Events that the base class alone knows are left out: nobody waits for them."""
    if inspect.isclass(callback):
        raise UserError(f"{title}: {callback.__qualname__} is a class; give an object: {callback.__qualname__}()")
    found = _events_of(callback)
    if not found:
        raise UserError(f"{title} has none of {', '.join(EVENTS)}; subclass pappus.Callback")
    for name in found:
        if name not in EVENTS:
            raise UserError(f"{title} has {name}, which is never called{closest(name, list(EVENTS))}; rename it")
    return {
        name: partial(_call, getattr(callback, name), run, name) for name in found
        if getattr(type(callback), name, None) is not getattr(Callback, name)
    }


def _call(method: Callable[..., None], run: CurrentRun, event: str, step: int, *values: Any) -> None:
    run.steps = step
    if event != "on_episode":
        return method(run, *values[:1])
    episodes, role = values
    for total, length in episodes:
        method(run, Episode(total, int(length), role))
