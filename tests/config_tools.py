"""Configs as a laptop of two cores has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pappus.api import configure
from pappus.config import RunConfig
from pappus.machine import Machine, fit
from pappus.systems import find_system
from pappus.validation import validate


def fitted(system: str, env: str, settings: Mapping[str, Any]) -> RunConfig:
    """With everything chosen that is `auto`."""
    return fit(configure(system, env, settings), env, find_system(system), Machine(2))[0]


def check(system: str, env: str, settings: Mapping[str, Any]) -> None:
    """Raise `UserError` for a rule that the config breaks."""
    validate(fitted(system, env, settings))
