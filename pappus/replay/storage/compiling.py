"""Loops that are compiled where numba is installed; where it is not, something in NumPy stands for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Loops = TypeVar("Loops", bound=tuple[Callable[..., None], ...])
"""A named tuple of functions."""


def fastest(loops: Loops, with_numpy: Loops) -> Loops:
    """The loops, compiled if that is possible."""
    return compiled(loops) if importlib.util.find_spec("numba") is not None else with_numpy


def compiled(loops: Loops) -> Loops:
    """The same as machine code, which is kept on disk: only the very first call waits for the compiler."""
    make: Any = type(loops)
    found: Loops = make(*map(_compiled, loops))
    return found


@cache
def _compiled(loop: Callable[..., None]) -> Callable[..., None]:
    import numba

    found: Callable[..., None] = numba.njit(cache=True, nogil=True)(loop)
    return found
