"""What a user may allow beyond what leaves learning as it is."""

from __future__ import annotations

from typing import Literal, TypeAlias

Allowed: TypeAlias = Literal["batch", "updates", "lag"]
ALLOWED: dict[Allowed, str] = {
    "batch": "batches of up to four times the size, with as many updates per batch",
    "updates": "with replay, down to a quarter of the updates per step",
    "lag": "policies that lag behind by up to four times as many updates as usual",
}
