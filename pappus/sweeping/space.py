"""What a sweep varies: options with the values that they may have, from a YAML file. It needs neither torch nor Optuna.

    optimizer.learning-rate: {low: 1e-4, high: 1e-2, log: true}
    unroll-length: {low: 32, high: 256, step: 32}
    algorithm.epochs: {low: 1, high: 8}
    network.activation: [relu, tanh]
    network.hidden-sizes: [[64, 64], [128, 128]]
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from pappus.config import RunConfig
from pappus.errors import UserError, closest
from pappus.settings import ALIASES, WITHOUT_INFLUENCE, load_entries, option_names, parse

KEYS = ("low", "high", "log", "step")
OF_THE_SWEEP = ("seed", "env", "system", "steps", "data", "init-from", "trace", "runtime", *WITHOUT_INFLUENCE)
"""Options that a sweep does not vary: what is learnt, for how long, or where, would not be the same in all trials."""
Value: TypeAlias = float | int | str


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`."""

    name: str
    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def plain(self, value: Value) -> Any:
        """As a file of settings has it."""
        return value

    def words(self, value: Value) -> list[str]:
        """The option on a command line."""
        return [f"--{self.name}", str(value)]

    def default(self, config: RunConfig) -> Value | None:
        """The config's own value, if it is one of these."""
        value = _setting(config, self.name)
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return None
        if self.step is not None and not math.isclose(remainder := (value - self.low) / self.step, round(remainder)):
            return None
        return value


@dataclass(frozen=True)
class Choice:
    """A few values, each as the words behind the option."""

    name: str
    values: tuple[tuple[str, ...], ...]
    written: tuple[Any, ...]
    """The same as a file has them."""

    def plain(self, value: Value) -> Any:
        """As a file of settings has it."""
        return self.written[self.labels.index(str(value))]

    @property
    def labels(self) -> list[str]:
        return [" ".join(words) for words in self.values]

    def words(self, value: Value) -> list[str]:
        """The option on a command line."""
        return [f"--{self.name}", *self.values[self.labels.index(str(value))]]

    def default(self, config: RunConfig) -> Value | None:
        """The config's own value, if it is one of these."""
        mine = _setting(config, self.name)
        for label in self.labels:
            if _setting(parse(config, self.words(label)), self.name) == mine:
                return label
        return None


Parameter: TypeAlias = Range | Choice


def read_space(path: Path) -> list[tuple[int, Parameter]]:
    """The parameters of a file with their lines; `UserError` for what makes no sense of any system."""
    entries = load_entries(path)
    if not entries:
        example = "optimizer.learning-rate: {low: 1e-4, high: 1e-2}"
        raise UserError(f"space {str(path)!r} is empty; write for example {example}")
    return [
        (line, _parameter(name.replace("_", "-").removeprefix("--"), value, f"{path}:{line}: {name}"))
        for name, (line, value) in entries.items()
    ]


def checked(parameters: Sequence[tuple[int, Parameter]], path: Path, config: RunConfig) -> list[Parameter]:
    """The parameters as the system's options take them; `UserError` with the line for one that it does not take."""
    found = [_checked(parameter, f"{path}:{line}: {parameter.name}", config) for line, parameter in parameters]
    names = [_full(parameter.name) for parameter in found]
    for (line, parameter), name in zip(parameters, names, strict=True):
        if names.count(name) > 1:
            raise UserError(f"{path}:{line}: {parameter.name} is in the file under two names; give it once")
    return found


def _parameter(name: str, value: Any, where: str) -> Parameter:
    if name.partition(".")[0].replace("-", "_") in [one.replace("-", "_") for one in OF_THE_SWEEP]:
        raise UserError(f"{where} is the same in all trials; give it to the command as --{name}")
    if isinstance(value, dict):
        return _range(name, value, where)
    if isinstance(value, list):
        labels = tuple(_words(one, where) for one in value)
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise UserError(f"{where} must be two choices or more, each once, not {value}")
        return Choice(name, labels, tuple(value))
    raise UserError(f"{where}: {value!r} must be a range such as {{low: 1, high: 8}} or a list of choices")


def _range(name: str, value: dict[str, Any], where: str) -> Range:
    for key in value:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key {key!r}{closest(str(key), list(KEYS))}; there are {', '.join(KEYS)}")
    low: Any
    high: Any
    low, high, log, step = (value.get(key) for key in KEYS)
    for key, number in (("low", low), ("high", high), *((("step", step),) if step is not None else ())):
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(number):
            raise UserError(f"{where}: {key} must be a number, not {number!r}")
    if log not in (None, True, False):
        raise UserError(f"{where}: log={log!r} must be true or false")
    if low >= high:
        raise UserError(f"{where}: low={low:g} must be below high={high:g}")
    if log and low <= 0:
        raise UserError(f"{where}: low={low:g} must be positive where log is true")
    if log and step is not None:
        raise UserError(f"{where}: log and step exclude each other; leave one out")
    if step is not None and not 0 < step <= high - low:
        raise UserError(f"{where}: step={step:g} must be positive and at most high - low = {high - low:g}")
    return Range(name, low, high, bool(log), step)


def _words(value: Any, where: str) -> tuple[str, ...]:
    """A choice as the words behind an option."""
    if isinstance(value, list):
        return tuple(word for one in value for word in _words(one, where))
    if isinstance(value, bool):
        return (str(value).lower(),)
    if isinstance(value, int | float | str) and str(value) != "":
        return (str(value),)
    raise UserError(f"{where}: {value!r} is no choice; give numbers, texts, true, false, or lists of them")


def _checked(parameter: Parameter, where: str, config: RunConfig) -> Parameter:
    name = _full(parameter.name)
    if name not in option_names(config):
        raise UserError(f"{where} is no option of {config.system_name}{closest(name, option_names(config))}")
    try:
        if isinstance(parameter, Choice):
            for label in parameter.labels:
                parse(config, parameter.words(label))
            return parameter
        return _typed(parameter, _kind(config, name), where, config)
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith(where) else f"{where}: {text}") from None


def _typed(parameter: Range, kind: Any, where: str, config: RunConfig) -> Range:
    """A range whose numbers are those of the option: whole ones, or any."""
    if kind not in (int, float):
        raise UserError(f"{where} is not numeric; give a list of choices")
    if kind is float:
        return parameter
    numbers = [number for number in (parameter.low, parameter.high, parameter.step) if number is not None]
    for number in numbers:
        if number != int(number):
            raise UserError(f"{where} takes whole numbers, not {number:g}")
    low, high, *step = map(int, numbers)
    for number in (low, high):
        parse(config, [f"--{parameter.name}", str(number)])
    return dataclasses.replace(parameter, low=low, high=high, step=step[0] if step else None, whole=True)


def _kind(config: RunConfig, name: str) -> Any:
    """The type of an option: int, float, or something else."""
    *groups, last = name.replace("-", "_").split(".")
    inner: Any = config
    for group in groups:
        inner = getattr(inner, group)
    hint = typing.get_type_hints(type(inner))[last]
    plain = [one for one in typing.get_args(hint) if one is not type(None)]
    return plain[0] if plain and typing.get_origin(hint) is not typing.Literal and len(plain) == 1 else hint


def _setting(config: RunConfig, name: str) -> Any:
    value: Any = config
    for part in _full(name).replace("-", "_").split("."):
        value = getattr(value, part)
    return value


def _full(name: str) -> str:
    """An option by its dotted name."""
    return ALIASES.get(name.replace("-", "_"), name).replace("_", "-")


def refuse_repeated(parameters: Sequence[Parameter], words: Sequence[str]) -> None:
    """Raise `UserError` where an option is varied and given, too."""
    given = {_full(word[2:].partition("=")[0].replace("_", "-")) for word in words if word.startswith("--")}
    for parameter in parameters:
        if _full(parameter.name) in given:
            _refuse(parameter.name)


def _refuse(name: str) -> NoReturn:
    raise UserError(f"--{name} is given, and varied by the space; leave it out of one of them")
