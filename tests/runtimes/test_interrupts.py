"""Signals end a run in order; what hangs is broken off."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, cast

import pytest

from pappus.config import SupervisionConfig
from pappus.runtimes.interrupts import Watchdog, _watchdogs, interrupts
from pappus.telemetry.processes import ENDING, kept_signals, on_ending


class Notes:
    """A controller that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def interrupt(self) -> None:
        self.told.append("interrupt")

    def event(self, text: str) -> None:
        self.told.append(text)

    def overdue(self) -> bool:
        return False


@pytest.mark.parametrize("number", ENDING)
def test_every_signal_that_ends_a_run_has_it_saved_first(number: signal.Signals) -> None:
    notes: Any = Notes()
    with interrupts(notes, SupervisionConfig(grace_seconds=60)):
        signal.raise_signal(number)
        assert notes.told[0] == "interrupt" and "saving a checkpoint, then stopping, within 60 s" in notes.told[1]


@pytest.mark.parametrize("number", [number for number in ENDING if number != signal.SIGINT])
def test_a_signal_that_comes_twice_does_not_keep_the_run_from_saving(number: signal.Signals) -> None:
    heard: list[int] = []
    with on_ending(heard.append):
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert heard == [number]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    heard: list[int] = []
    with kept_signals():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with on_ending(heard.append):
            signal.raise_signal(signal.SIGHUP)
    assert not heard


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with on_ending(lambda number: None):
        pass
    assert [signal.getsignal(number) for number in ENDING] == before


class Heard:
    """What a watchdog did, in order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.left = threading.Event()

    def watchdog(self, seconds: float, overdue: bool = False) -> Watchdog:
        watchdog = Watchdog(seconds, lambda: overdue and not self.order, self.interrupt, self.leave)
        watchdog.start()
        return watchdog

    def interrupt(self) -> None:
        self.order.append("interrupted")

    def leave(self) -> None:
        self.order.append("left")
        self.left.set()


def test_what_hangs_is_interrupted_and_then_left() -> None:
    heard = Heard()
    watchdog = heard.watchdog(0.02)
    os.write(watchdog.wakeup_fd, bytes([signal.SIGCHLD, signal.SIGTERM]))
    assert heard.left.wait(10) and heard.order == ["interrupted", "left"]
    watchdog.stop()


def test_a_second_ctrl_c_leaves_what_does_not_hear_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pappus.runtimes.interrupts.LAST_SECONDS", 0.02)
    heard = Heard()
    watchdog = heard.watchdog(3600.0)
    os.write(watchdog.wakeup_fd, bytes([signal.SIGINT, signal.SIGINT]))
    assert heard.left.wait(10) and heard.order == ["left"]
    watchdog.stop()


def test_a_run_that_should_have_ended_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pappus.runtimes.interrupts.LOOK_SECONDS", 0.01)
    heard = Heard()
    watchdog = heard.watchdog(3600.0, overdue=True)
    while not heard.order:
        watchdog.join(0.01)
    watchdog.stop()
    assert heard.order == ["interrupted"] and not watchdog.is_alive()


def test_a_run_that_hangs_in_python_ends_with_its_grace() -> None:
    notes: Any = Notes()
    with pytest.raises(KeyboardInterrupt), interrupts(notes, SupervisionConfig(grace_seconds=0.2)):
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(60)


def test_runs_of_one_process_leave_nothing_behind_that_a_fork_would_call(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **given: hooks.append(given))
    for _ in range(2):
        with interrupts(cast(Any, Notes()), SupervisionConfig()):
            assert len(_watchdogs) == 1
    assert not hooks and not _watchdogs


def test_a_process_that_an_env_forked_does_not_ring_the_bell_again() -> None:
    notes: Any = Notes()
    with interrupts(notes, SupervisionConfig()):
        pid = os.fork()
        if pid == 0:
            os._exit(signal.set_wakeup_fd(-1) + 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
