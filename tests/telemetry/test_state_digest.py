"""Hashes of state depend on values alone, and a difference has a name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.telemetry.state_digest import difference, digest

STATE: dict[str, Any] = {
    "weights": torch.arange(4.0), "random": {"used": 3, "generator": np.arange(3, dtype=np.uint8)}, "held": [(1, 2.5)],
}


def test_the_order_of_names_and_the_layout_of_memory_do_not_matter() -> None:
    other = {name: STATE[name] for name in reversed(STATE)}
    assert digest(other) == digest(STATE) and difference(STATE, other) == ""
    square = np.arange(6.0).reshape(2, 3)
    assert digest({"a": np.asfortranarray(square)}) == digest({"a": square})


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"weights": torch.tensor([0.0, 1.0, 2.0, 3.5])}, "weights"),
        ({"weights": torch.arange(4.0, dtype=torch.float64)}, "weights"),
        ({"weights": torch.arange(4.0).reshape(2, 2)}, "weights"),
        ({"random": {"used": 4, "generator": np.arange(3, dtype=np.uint8)}}, "random.used"),
        ({"random": {"used": 3}}, "random.generator"),
        ({"held": [(1, 2.5), (2, 2.5)]}, "held.1.0"),
        ({"held": []}, "held"),
    ],
)
def test_any_change_is_seen_and_named(changed: dict[str, Any], name: str) -> None:
    assert digest({**STATE, **changed}) != digest(STATE)
    assert difference(STATE, {**STATE, **changed}) == name


def test_a_value_that_is_not_a_number_equals_itself() -> None:
    assert difference({"a": np.array([np.nan])}, {"a": np.array([np.nan])}) == ""


def test_names_of_files_beside_a_checkpoint_do_not_count() -> None:
    one, two = ({"folder": name, "sha256": "f00"} for name in ("replay-1", "replay-2"))
    assert digest(one) == digest(two) and difference(one, two) == ""
