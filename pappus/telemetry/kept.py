"""What is costly to find out, and good for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """A value that is found anew when it is asked for after `seconds`. Threads may ask at a time: each gets a whole
    value, and now and then two of them find it."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._found: tuple[float, T] | None = None

    def get(self, find: Callable[[], T]) -> T:
        """The value, of now or a moment ago."""
        now, found = self._clock(), self._found
        if found is None or now - found[0] >= self._seconds:
            found = self._found = now, find()
        return found[1]
