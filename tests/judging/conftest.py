from __future__ import annotations

from collections.abc import Iterator

import pytest

from pappus.accelerator import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As `estimate` does: small networks are slower with more."""
    with one_thread():
        yield
