"""Envs in other processes that join over the network: here only a file with their spec is known.

    observation: {shape: [4], dtype: float32}       or one such entry per key of a nested observation
    action: {discrete: 2}                           or {multi_discrete: [3, 2]}, or {continuous: [2]}
    frame_stack: 1                                  newest frames that the network sees together (optional)

    observation: {shape: [2], low: [-1, 0], high: [1, .inf]}    bounds, one for all entries or one for each (optional)

A category is written `{shape: [], dtype: int64, values: [10]}`; `values` is the number of values of each entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from pappus.errors import UserError
from pappus.types import (
    ActionSpec,
    ArraySpec,
    Bounds,
    ContinuousAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
    Nest,
)

PREFIX = "spec:"
DATA_PREFIX = "data:"
"""The env of a run that has only data: its folder follows."""
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def is_external(env: str | Callable[..., Any]) -> bool:
    """Whether an env is stepped in another process: `spec:FILE`."""
    return isinstance(env, str) and env.startswith(PREFIX)


def has_no_env(env: str | Callable[..., Any]) -> bool:
    """Whether there is no env that could be stepped here: only a spec in a file, or that of a data set."""
    return isinstance(env, str) and env.startswith((PREFIX, DATA_PREFIX))


def external_spec(env: str) -> EnvSpec:
    """The spec in the file behind `spec:FILE`."""
    path = Path(env.removeprefix(PREFIX))
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"env spec {str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not {"observation", "action"} <= set(content):
        raise UserError(f"env spec {str(path)!r} must define 'observation' and 'action'; see pappus serve --help")
    unknown = set(content) - {"observation", "action", "frame_stack"}
    if unknown:
        raise UserError(f"env spec {str(path)!r} has unknown entries: {', '.join(map(str, unknown))}")
    stack = content.get("frame_stack", 1)
    if not _is_size(stack):
        raise UserError(f"env spec {str(path)!r}: frame_stack={stack!r} must be a whole number of at least 1")
    return EnvSpec(_observation(content["observation"], "observation"), _action(content["action"]), stack)


def _observation(entry: Any, name: str) -> Nest:
    if isinstance(entry, dict) and "shape" in entry:
        return _array(entry, name)
    if isinstance(entry, dict) and entry:
        return {str(key): _observation(part, f"{name}/{key}") for key, part in entry.items()}
    raise UserError(f"{name}={entry!r} is no array; write {{shape: [4], dtype: float32}}")


def _array(entry: dict[str, Any], name: str) -> ArraySpec:
    unknown = set(entry) - {"shape", "dtype", "values", "low", "high"}
    shape, dtype = entry["shape"], entry.get("dtype", "float32")
    if unknown or dtype not in DTYPES:
        what = f"has unknown entries {sorted(map(str, unknown))}" if unknown else f"has dtype {dtype!r}"
        raise UserError(
            f"{name} {what}; give shape, dtype ({', '.join(DTYPES)}), for categories values, and low and high where "
            "there are bounds"
        )
    values = entry.get("values")
    if not _sizes(shape) or not (values is None or _sizes(values)):
        raise UserError(f"{name}={entry!r}: shape and values must be lists of positive whole numbers")
    if values is not None and "int" not in dtype:
        raise UserError(f"{name} has values and dtype {dtype}; categories are whole numbers, such as int64")
    if values is not None and len(values) != math.prod(shape):
        raise UserError(f"{name} has {math.prod(shape)} entries and values for {len(values)}; give one number for each")
    return ArraySpec(
        tuple(shape), dtype, None if values is None else tuple(values), _bounds(entry, math.prod(shape), name)
    )


def _bounds(entry: dict[str, Any], entries: int, name: str) -> Bounds | None:
    if "low" not in entry and "high" not in entry:
        return None
    low, high = _numbers(entry.get("low", -math.inf)), _numbers(entry.get("high", math.inf))
    if low is None or high is None or not {len(low), len(high)} <= {1, entries}:
        raise UserError(f"{name}={entry!r}: low and high must be one number each, or one for each of {entries} entries")
    longest = max(len(low), len(high))
    low, high = (one * longest if len(one) == 1 else one for one in (low, high))
    if "values" in entry or not all(least <= most for least, most in zip(low, high, strict=True)):
        rule = "categories count from 0 to values - 1" if "values" in entry else "low may not be above high"
        raise UserError(f"{name}={entry!r}: {rule}; correct low and high")
    return low, high


def _numbers(value: Any) -> tuple[float, ...] | None:
    """A number or a list of them, none of which is NaN."""
    several = value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, int | float) or math.isnan(one) for one in several):
        return None
    return tuple(map(float, several))


def _action(entry: Any) -> ActionSpec:
    match entry:
        case {"discrete": n} if _is_size(n) and len(entry) == 1:
            return DiscreteAction(n)
        case {"multi_discrete": list(nvec)} if nvec and _sizes(nvec) and len(entry) == 1:
            return MultiDiscreteAction(tuple(nvec))
        case {"continuous": list(shape)} if _sizes(shape) and len(entry) == 1:
            return ContinuousAction(tuple(shape))
    raise UserError(f"action={entry!r} is none of {{discrete: 2}}, {{multi_discrete: [3, 2]}}, {{continuous: [2]}}")


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_size, value))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
