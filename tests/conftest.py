"""What all tests share: processes that start fast, and the lane in which each test runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pappus.runtimes.forkserver import ForkServer
from tests.warm_processes import fork_servers_from_the_template


@pytest.fixture(scope="session", autouse=True)
def _warm_fork_servers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "__init__", fork_servers_from_the_template)
        yield
