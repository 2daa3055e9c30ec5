"""Whether a faster method may be called in place of the methods that it repeats."""

from __future__ import annotations


def stands_for(cls: type, fast: str, *slow: str) -> bool:
    """Whether `cls.fast` may be called in place of each method in `slow`.

    It may if the class that defines `fast` is at least as derived as the class that defines each `slow` one. A subclass
    that overrides a slow method, and not the fast one, must see its method called.
    """
    place = {name: _definition(cls, name) for name in (fast, *slow)}
    return place[fast] < len(cls.__mro__) and all(place[fast] <= place[name] for name in slow)


def _definition(cls: type, name: str) -> int:
    """Where in the method resolution order a name is defined; past the end if nowhere."""
    return next((i for i, base in enumerate(cls.__mro__) if name in vars(base)), len(cls.__mro__))
