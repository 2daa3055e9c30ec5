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


def test_runs_one_after_the_other_share_a_server_until_none_is_left_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "_prestarted", None)
    with ForkServer.shared():
        first = Counted.started()
        assert isinstance(first, Counted)
        first.release(idle=True, timeout=1.0)
        ForkServer.discard()  # as a run in one thread does
        assert Counted.started() is first and not first.closed
        first.release(idle=False, timeout=1.0)  # a process may be left
        assert first.closed == 1
        second = Counted.started()
        assert isinstance(second, Counted) and second is not first
        second.release(idle=True, timeout=1.0)
    assert (second.killed, second.closed) == (1, 1)


def test_a_run_alone_ends_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "_prestarted", None)
    server = Counted.started()
    assert isinstance(server, Counted)
    server.release(idle=True, timeout=1.0)
    assert server.closed == 1
