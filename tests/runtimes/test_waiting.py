from __future__ import annotations

import os
import time

from pappus.runtimes.waiting import Waiter, spin_for
from pappus.transports.memory import EventNotifier


class Port:
    """A port that is ready when the test says so."""

    name = "port"

    def __init__(self) -> None:
        self.notifier = EventNotifier(*EventNotifier.descriptors())
        self.fileno, self.is_ready, self.looks = self.notifier.fileno, False, 0

    def ready(self) -> bool:
        self.looks += 1
        return self.is_ready

    def clear(self) -> None:
        self.notifier.clear()

    def explain(self) -> str:
        return "nothing"


def test_a_port_that_is_ready_is_seen_without_its_notifier() -> None:
    port, idle = Port(), os.eventfd(0)
    port.is_ready = True
    started = time.perf_counter()
    assert not Waiter(1e-3).wait(port, idle, 60.0)
    assert time.perf_counter() - started < 30.0


def test_a_signal_that_the_first_sleep_took_is_not_waited_for_again() -> None:
    port, idle, waiter = Port(), os.eventfd(0), Waiter(1e-3)
    waiter._usual = 1e-2  # so that it sleeps first, and the time to stay awake is over when it wakes
    port.notifier.notify()
    port.is_ready = True
    waiter._spin = 1e-9
    assert not waiter.wait(port, idle, 60.0) and port.looks == 1


def test_commands_end_a_wait_and_are_told_apart() -> None:
    port, commands = Port(), os.eventfd(1)
    assert Waiter(0.0).wait(port, commands, 60.0) and Waiter(1e-4).wait(port, commands, 60.0)
    assert port.looks > 0


def test_without_a_core_to_spare_nobody_stays_awake() -> None:
    assert spin_for(processes=3, cores=2) == 0.0 < spin_for(processes=2, cores=2)
    port = Port()
    port.notifier.notify()
    assert not Waiter(0.0).wait(port, os.eventfd(0), 60.0) and port.looks == 0
