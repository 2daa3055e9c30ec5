"""Loops that are compiled if numba is installed, with NumPy versions for when it is not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Loops = TypeVar("Loops", bound=tuple[Callable[..., None], ...])
"""A named tuple of functions."""


def fastest(loops: Loops, with_numpy: Loops) -> Loops:
    """The compiled loops if numba is installed, otherwise the NumPy versions."""
    return compiled(loops) if importlib.util.find_spec("numba") is not None else with_numpy


def compiled(loops: Loops) -> Loops:
    """The loops as machine code. It is cached on disk, so only the first call ever waits for the compiler."""
    make: Any = type(loops)
    found: Loops = make(*map(_compiled, loops))
    return found


@cache
def _compiled(loop: Callable[..., None]) -> Callable[..., None]:
    import numba

    found: Callable[..., None] = numba.njit(cache=True, nogil=True)(loop)
    return found
