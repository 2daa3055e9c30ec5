"""Fast paths give way to what a user overrides."""

from __future__ import annotations


def stands_for(cls: type, fast: str, *slow: str) -> bool:
    """Whether method `fast` of `cls` may be called in place of its methods `slow`.

    True if the class that defines `fast` is, or derives from, the class that defines each of `slow`: a subclass that
    overrides only a slow method gets the slow path.
    """
    owner = _owner(cls, fast)
    return owner is not None and all(issubclass(owner, _owner(cls, name) or object) for name in slow)


def _owner(cls: type, name: str) -> type | None:
    return next((base for base in cls.__mro__ if name in vars(base)), None)
