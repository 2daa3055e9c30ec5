"""In which settings runs differ that were made to be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pappus.settings import WITHOUT_INFLUENCE

OF_ONE_RUN = ("system", "env", "seed", "trace", *WITHOUT_INFLUENCE)
"""Settings that make no group of their own."""


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return found


def different(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Names of the settings that are not the same in all runs on one env; each run is its env and its settings by
    dotted name."""
    names = dict.fromkeys(name for _, settings in runs for name in settings)
    by_env: dict[str, list[Mapping[str, Any]]] = {}
    for env, settings in runs:
        by_env.setdefault(env, []).append(settings)
    return [
        name for name in names
        if name.partition(".")[0] not in OF_ONE_RUN
        and any(len({shown(settings.get(name)) for settings in some}) > 1 for some in by_env.values())
    ]


def shown(value: object) -> str:
    """A setting as text."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
