"""How a run ended, as `summary.json` records it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pappus.telemetry.versions import git_hash, versions


@dataclass(frozen=True)
class Summary:
    """One run's outcome. Unknown numbers are None, never NaN."""

    system: str
    env: str
    seed: int
    steps: int
    updates: int
    wall_seconds: float
    """From the command to the end."""
    train_seconds: float
    """From the first update to the last."""
    steps_per_second: float
    episodic_return: float | None
    eval_return: float | None
    solved_at_step: int | None
    exit_reason: str
    extras: dict[str, Any] = field(default_factory=dict)
    """Further keys of the file, such as `precision`."""

    def to_dict(self) -> dict[str, Any]:
        """The content of `summary.json`: every field, the extras, versions and commit."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name != "extras"}
        return fields | {"versions": versions(), "git_hash": git_hash()} | self.extras
