"""What a setting names as `module:name`: your own systems, env backends, networks and replay selectors.

Modules of Python and of installed packages come first. The working directory is looked at last, and only for a module
that is named so: it may be full of a stranger's files, and other imports must not find them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from pappus.errors import UserError


def imported(text: str, what: str) -> Any:
    """The value that `module:name` names; `what` says which setting it is, such as `network.factory=`."""
    module, _, name = text.partition(":")
    if not module or module.startswith(".") or not name:
        raise UserError(f"{what}{text!r} must be module:name, such as my_module:my_name")
    found = imported_module(module, f"{what}{text!r}")
    if not hasattr(found, name):
        place = getattr(found, "__file__", None) or "built in"
        raise UserError(f"{what}{text!r}: module {module!r} ({place}) has no {name!r}")
    return getattr(found, name)


def check_there(text: str, what: str) -> None:
    """Raise `UserError` where nothing is found for the module of `module:name`; no code of it runs."""
    module = text.partition(":")[0]
    package = module.partition(".")[0]
    there = package in sys.modules or (package and importlib.util.find_spec(package) is not None)
    if package and not there and not _is_here(package):
        raise _missing(module, f"{what}{text!r}")


def imported_module(module: str, what: str) -> ModuleType:
    """A module by its name; what is wrong with it is a sentence that begins with `what`."""
    try:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not _is_missing(module, error) or not _found_here(module):
                raise
            return importlib.import_module(module)
    except Exception as error:  # whatever the module does when it is imported
        if isinstance(error, ModuleNotFoundError) and _is_missing(module, error):
            raise _missing(module, what) from None
        raise UserError(f"{what}: module {module!r} cannot be imported: {told(error)}") from error


def _missing(module: str, what: str) -> UserError:
    return UserError(
        f"{what}: there is no module {module!r} here; run this in the folder that holds it, or add that folder to "
        "PYTHONPATH"
    )


def told(error: Exception) -> str:
    """What an exception of a user's code says, in one line, and where it was raised."""
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, ImportError) and text else f"{type(error).__name__}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{kind}{text or 'no words'}{place}"


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether the module itself, or a package that it is in, was not found."""
    return f"{module}.".startswith(f"{error.name}.")


def _found_here(module: str) -> bool:
    """Whether the working directory holds a module; then it is looked at from now on, after everything else."""
    here = os.getcwd()
    if here in sys.path or not _is_here(module.partition(".")[0]):
        return False
    sys.path.append(here)
    importlib.invalidate_caches()
    return True


def _is_here(package: str) -> bool:
    return PathFinder.find_spec(package, [os.getcwd()]) is not None


def imported_callable(text: str, what: str, entry: EntryPoint | None = None, takes: Sequence[str] = ()) -> Any:
    """The same, or what an installed package registers as `entry`, where a function or a class is expected. Where it
    `takes` arguments, one that cannot is refused."""
    found = imported(text if entry is None else entry.value, what)
    if not callable(found):
        raise UserError(f"{what}{text!r} is {found!r:.60}; name a function or a class")
    try:
        if takes:
            inspect.signature(found).bind(*takes)
    except TypeError as error:
        raise UserError(f"{what}{text!r} must take ({', '.join(takes)}): {error}; name another, or change it") from None
    except ValueError:
        pass  # some built-in functions do not say what they take
    return found
