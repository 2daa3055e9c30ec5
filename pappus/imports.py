"""What a setting names as `module:name`: your own systems, env backends, networks and replay selectors."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint
from typing import Any

from pappus.errors import UserError


def imported(text: str, what: str) -> Any:
    """The value that `module:name` names; `what` says which setting it is, such as `network.factory=`."""
    module, _, name = text.partition(":")
    if not module or module.startswith(".") or not name:
        raise UserError(f"{what}{text!r} must be module:name, such as my_module:my_name")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"{what}{text!r}: there is no module {module!r} here; run this in the folder that holds it, or add "
                "that folder to PYTHONPATH"
            ) from None
        raise UserError(f"{what}{text!r}: module {module!r} cannot be imported: {error}") from error
    if not hasattr(found, name):
        place = getattr(found, "__file__", None) or "built in"
        raise UserError(f"{what}{text!r}: module {module!r} ({place}) has no {name!r}")
    return getattr(found, name)


def imported_callable(text: str, what: str, entry: EntryPoint | None = None) -> Any:
    """The same, or what an installed package registers as `entry`, where a function or a class is expected."""
    found = imported(text if entry is None else entry.value, what)
    if not callable(found):
        raise UserError(f"{what}{text!r} is {found!r:.60}; name a function or a class")
    return found
