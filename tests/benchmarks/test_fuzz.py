"""Thousands of mutated messages: no listener crashes or hangs, and a good client is served afterwards."""

from __future__ import annotations

import pytest

from benchmarks.fuzz import TARGETS, fuzz


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listener", TARGETS)
@pytest.mark.parametrize("seed", [11, 12])
def test_mutated_messages_are_borne(listener: str, seed: int) -> None:
    target = TARGETS[listener]()
    try:
        seconds, early, late = fuzz(target, 5_000, seed)
        assert seconds > 0 and late - early < 64 << 20, "memory does not grow with what was said"
    finally:
        target.close()
