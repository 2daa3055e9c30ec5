"""Files of a run directory that anybody may have written: regular files of a bounded size, and JSON of a known shape.

What is missing, too large, no file, or of another shape is None: a page shows what there is.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

MOST_BYTES = 8 << 20
"""Of a file that is read as a whole."""
MOST_VALUES, DEEPEST, LONGEST = 100_000, 16, 20_000
"""Values of a file of any shape, their levels, and letters of a text."""
T = TypeVar("T")
Stamp: TypeAlias = tuple[int, int, int]
"""What changes when a file is written anew."""


class Odd(ValueError):
    """Content that is not of the shape that was asked for."""


def opened(path: Path) -> int | None:
    """A descriptor of a regular file that is in its folder itself; None for links, pipes, folders and what is not
    there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def stamp(path: Path) -> Stamp | None:
    """None where there is no regular file."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def content(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """All of a file; None for one that is larger than `most`, too."""
    descriptor = opened(path)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            found = file.read(most + 1)
        except OSError:
            return None
    return found if len(found) <= most else None


def json_of(path: Path) -> Any:
    """A file of JSON; None where it cannot be read."""
    found = content(path)
    try:
        return None if found is None else json.loads(found)
    except (ValueError, RecursionError):
        return None


def mapping_of(path: Path) -> dict[str, Any] | None:
    """A file that holds one JSON object, whatever is in it."""
    found = plain(json_of(path))
    return found if isinstance(found, dict) else None


def plain(value: Any) -> Any:
    """The same as JSON that can be shown: finite numbers, texts and levels within bounds, no more than so many values;
    anything else as text."""
    left = MOST_VALUES

    def walk(one: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > DEEPEST or left < 0:
            return "…"
        if isinstance(one, Mapping):
            return {shortened(name): walk(inner, depth + 1) for name, inner in list(one.items())[: max(left, 0)]}
        if isinstance(one, list | tuple):
            return [walk(inner, depth + 1) for inner in one[: max(left, 0)]]
        if one is None or isinstance(one, bool):
            return one
        number = finite(one)
        return number if isinstance(one, int | float) else shortened(one)

    return walk(value, 0)


def finite(value: object) -> float | int | None:
    """A number that JSON and a browser can say; None for others, and for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 and math.isfinite(value) else None


def shortened(value: object, most: int = LONGEST) -> str:
    """Text that can be encoded, cut to a length."""
    text = value if isinstance(value, str) else str(value)[: most + 1] if not isinstance(value, int) else "a number"
    return text[:most].encode("utf-8", "replace").decode()


def shaped(value: Any, shape: type[T]) -> T | None:
    """`value`, if it has the shape of a TypedDict (or of a list of such); None otherwise. Numbers that are not finite
    are None where that is allowed, and keys that the shape has not are left out."""
    try:
        found: T = _fitted(value, shape)
    except Odd:
        return None
    return found


@cache
def _hints(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape)


def _fitted(value: Any, shape: Any) -> Any:
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any:
        return plain(value)
    if is_typeddict(shape):
        if not isinstance(value, dict):
            raise Odd
        return {name: _fitted(value.get(name), hint) for name, hint in _hints(shape).items()}
    if origin is list:
        if not isinstance(value, list) or len(value) > MOST_VALUES:
            raise Odd
        return [_fitted(one, inner[0]) for one in value]
    if origin is dict:
        if not isinstance(value, dict) or len(value) > MOST_VALUES:
            raise Odd
        return {shortened(name): _fitted(one, inner[1]) for name, one in value.items()}
    if origin in (Union, UnionType):
        return _one_of(value, inner)
    if origin is Literal:
        if value not in inner:
            raise Odd
        return value
    return _single(value, shape)


def _one_of(value: Any, shapes: tuple[Any, ...]) -> Any:
    for shape in shapes:
        try:
            return _fitted(value, shape)
        except Odd:
            continue
    if NoneType in shapes and isinstance(value, float):  # NaN
        return None
    raise Odd


def _single(value: Any, shape: Any) -> Any:
    if shape is NoneType and value is None:
        return None
    if shape is str and isinstance(value, str):
        return shortened(value)
    if shape is bool and isinstance(value, bool):
        return value
    number = finite(value)
    if number is not None and (shape is float or (shape is int and isinstance(number, int))):
        return number
    raise Odd
