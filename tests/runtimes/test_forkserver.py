from __future__ import annotations

import pytest

from pappus.runtimes import forkserver
from pappus.runtimes.forkserver import ForkServer


class Counted(ForkServer):
    """Stands for a server: no process is started."""

    def __init__(self) -> None:
        self.killed = self.closed = 0
        self._process = self  # type: ignore[assignment]

    def kill(self) -> None:
        self.killed += 1

    def close(self, timeout: float) -> None:
        self.closed += 1


def test_a_discarded_server_is_killed_and_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "_prestarted", None)
    Counted.prestart()
    first = forkserver._prestarted
    assert isinstance(first, Counted)
    ForkServer.discard()
    ForkServer.discard()
    assert (first.killed, first.closed) == (1, 1)
    assert Counted.started() is not first
