"""The systems, as far as that needs no torch, which takes seconds to load: enough to see what is wrong with a command.

A module is read (`light_module`), and run without its classes that are no dataclasses and without what it imports from
where torch is needed: calling such a name raises `NeedsTorch`. What is left of `systems.py` has every config with its
defaults, its types and its own rules. Nothing is built from it: what passes is looked at again with everything loaded.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from pappus.config import RunConfig
from pappus.system import System

READ = ("pappus.algorithms", "pappus.topologies", "pappus.systems")
"""Modules that are read instead of imported."""
HEAVY = (
    "torch", "pappus.accelerator", "pappus.data", "pappus.edges", "pappus.networks", "pappus.ops", "pappus.recording",
    "pappus.roles", "pappus.transports",
)
"""Modules that need torch, or are needed only where it is."""
RULES = ("pappus.transports.addresses",)
"""Modules among these with rules of configs; they need no torch."""

FUTURE = __future__.annotations.compiler_flag


class NeedsTorch(Exception):
    """What was called is not here without torch."""


def light_system(name: str) -> System:
    """A system of ours, by its name or pair; `UserError` if there is none."""
    found: System = vars(light_module("pappus.systems"))["find_system"](name)
    return found


def light_config(directory: Path, trust: bool) -> RunConfig:
    """The config of a run directory of a system of ours, as `systems.saved_config` finds it for an evaluation."""
    config: RunConfig = vars(light_module("pappus.systems"))["saved_config"](directory, trust=trust)[1]
    return config


@cache
def light_module(name: str) -> ModuleType:
    """A module of `READ` without what needs torch."""
    found = find_spec(name)
    assert found is not None and found.origin is not None
    module = ModuleType(f"{name} (light)")
    sys.modules[module.__name__] = module  # dataclasses look up annotations there
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    module.__doc__ = ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            vars(module).update(_imported(node))
        elif _is_run(node):
            with suppress(NeedsTorch, NameError, TypeError, AttributeError):  # it uses what is not here
                exec(compile(ast.Module([node], []), found.origin, "exec", FUTURE, dont_inherit=True), vars(module))
    return module


def _imported(node: ast.ImportFrom) -> dict[str, object]:
    origin, names = node.module or "", [(alias.name, alias.asname or alias.name) for alias in node.names]
    if origin == "__future__" or (origin.startswith(HEAVY) and origin not in RULES):
        return {short: _stand_in(short) for _, short in names}
    if origin == "pappus.topologies":
        return {short: light_module(f"{origin}.{name}") for name, short in names}
    module = light_module(origin) if origin.startswith(READ) else importlib.import_module(origin)
    return {short: getattr(module, name, _stand_in(short)) for name, short in names}


def _stand_in(name: str) -> Callable[..., NoReturn]:
    def needs_torch(*_: Any, **__: Any) -> NoReturn:
        raise NeedsTorch(name)

    return needs_torch


def _is_run(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    if isinstance(node, ast.Import):
        return not any(alias.name.startswith(HEAVY) for alias in node.names)
    return not isinstance(node, ast.If)  # TYPE_CHECKING
