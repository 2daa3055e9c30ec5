"""Signals end a run in order; what hangs is broken off."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from pappus.config import SupervisionConfig
from pappus.runtimes.interrupts import Watchdog, interrupts
from pappus.telemetry.processes import ENDING, kept_signals, on_ending


class Notes:
    """A controller that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def interrupt(self) -> None:
        self.told.append("interrupt")

    def event(self, text: str) -> None:
        self.told.append(text)


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


def test_what_hangs_is_interrupted_and_then_left() -> None:
    order: list[str] = []
    left = threading.Event()
    watchdog = Watchdog(0.02, lambda: order.append("interrupted"), lambda: (order.append("left"), left.set())[0])
    watchdog.start()
    assert left.wait(10) and order == ["interrupted", "left"]


def test_a_run_that_hangs_in_python_ends_with_its_grace() -> None:
    notes: Any = Notes()
    with pytest.raises(KeyboardInterrupt), interrupts(notes, SupervisionConfig(grace_seconds=0.2)):
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(60)
