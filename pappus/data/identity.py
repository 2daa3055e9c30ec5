"""What tells data from other data: by it a resumed run knows whether its data is still what it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pappus.types import Array

if TYPE_CHECKING:
    from pappus.data.facts import Facts


def identity_of(facts: Facts, items: int) -> dict[str, Any]:
    """Of the episodes that are read: how many they are, of how many steps, how many items they make, and a hash of the
    length, the return and the ending of each. Sets that agree in all of these are taken for the same."""
    columns: tuple[Array, ...] = (facts.lengths, facts.returns, facts.terminated)
    found = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
    return {"episodes": len(facts.lengths), "steps": int(facts.lengths.sum()), "items": items, "sha256": found}


def what_changed(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """How data differs from that of a checkpoint; empty where it is the same."""
    if before is None:  # older checkpoints do not say
        return "the checkpoint does not say which data it is of"
    if dict(before) == dict(now):
        return ""
    was, here = _size(before), _size(now)
    return f"data changed: {was} before, {here} now" if was != here else f"data changed: other episodes, {here} again"


def _size(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{data[name]:,} {name}" for name in ("episodes", "steps", "items"))
