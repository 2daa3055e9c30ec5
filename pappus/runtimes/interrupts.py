"""How a run hears that it has to end, and what makes sure that it does.

    signal ──▶ save ──────────▶ stop the roles ──▶ KeyboardInterrupt ──▶ exit, whatever hangs
    0 s        until 7 s        until 12 s         13 s                  15 s = --supervision.grace-seconds
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pappus.config import SupervisionConfig
from pappus.runtimes.controller import Controller
from pappus.telemetry.processes import ENDING, on_ending

EXIT_CODE = 130
"""Of a command that was asked to end, by whatever signal."""
WORDS = {signal.SIGINT: "interrupted", signal.SIGHUP: "SIGHUP: the terminal was closed"}
LAST_SECONDS = 2.0
"""At the end of the grace, for what is left to do when the run was broken off."""
LOOK_SECONDS = 1.0
"""How often to look whether the run should have ended by itself."""


@contextmanager
def interrupts(
    controller: Controller, supervision: SupervisionConfig, look: Callable[[], None] | None = None
) -> Iterator[None]:
    """First Ctrl-C, SIGTERM, SIGHUP or SIGUSR1: save and stop within the grace. A second Ctrl-C: stop at once.
    `look` is called every second beside this thread, which may hang."""

    def hear(number: signal.Signals) -> None:
        controller.interrupt()
        controller.event(
            f"{WORDS.get(number, number.name)}: saving a checkpoint, then stopping, within "
            f"{supervision.grace_seconds:g} s; interrupt again to stop at once"
        )

    def overdue() -> bool:
        if look is not None:
            look()
        return controller.overdue()

    with on_ending(hear), _watched(supervision.grace_seconds, overdue):
        yield


@contextmanager
def _watched(seconds: float, overdue: Callable[[], bool]) -> Iterator[None]:
    """Have a watchdog hear the signals of this process, if this is the thread that gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watchdog = Watchdog(seconds, overdue)
    before = signal.set_wakeup_fd(watchdog.wakeup_fd, warn_on_full_buffer=False)
    _watchdogs.append(watchdog)
    watchdog.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        _watchdogs.remove(watchdog)
        watchdog.stop()


class Watchdog(threading.Thread):
    """Breaks this process off when its grace is over: a main thread that hangs looks at no clock, and in native code it
    does not even hear signals. Python's own handler, in C, writes their numbers to `wakeup_fd`.

    `KeyboardInterrupt` reaches what runs or sleeps in Python. For what hangs in native code only the exit of the
    process is left; a console or a notebook is not taken away from its user. `overdue` says that the run should have
    ended by itself: then it is interrupted."""

    def __init__(
        self, seconds: float, overdue: Callable[[], bool], interrupt: Callable[[], None] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._seconds, self._overdue = seconds, overdue
        self._interrupt, self._leave = interrupt or _interrupt_main, leave or _leave
        self._interrupt_at = self._leave_at = math.inf
        self._heard_fd, self.wakeup_fd = os.pipe()
        os.set_blocking(self.wakeup_fd, False)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._heard_fd, select.POLLIN)
        while True:
            until = min(self._interrupt_at, self._leave_at, time.monotonic() + LOOK_SECONDS)
            numbers = os.read(self._heard_fd, 64) if poll.poll(1000 * max(0.0, until - time.monotonic())) else None
            if numbers == b"":
                return os.close(self._heard_fd)
            now = time.monotonic()
            for number in numbers or b"":
                self._hear(number, now)
            self._act(now)

    def stop(self) -> None:
        os.close(self.wakeup_fd)
        self.wakeup_fd = -1
        self.join()

    def forget(self) -> None:
        """In a process that was forked from this one, such as an env's: Ctrl-C reaches both, but counts once."""
        if self.wakeup_fd >= 0:
            signal.set_wakeup_fd(-1)

    def _hear(self, number: int, now: float) -> None:
        if number not in ENDING:
            return
        if self._leave_at == math.inf:
            self._interrupt_at = now + max(0.5 * self._seconds, self._seconds - LAST_SECONDS)
            self._leave_at = now + self._seconds
        elif number == signal.SIGINT:
            self._leave_at = min(self._leave_at, now + LAST_SECONDS)

    def _act(self, now: float) -> None:
        if self._leave_at == math.inf and self._overdue():
            self._interrupt()
        if now >= self._interrupt_at:
            self._interrupt_at = math.inf
            self._interrupt()
        if now >= self._leave_at:
            self._leave_at = math.inf
            self._leave()


_watchdogs: list[Watchdog] = []
"""Those of the runs of this process that go on now."""


def _forget_watchdogs() -> None:
    for watchdog in _watchdogs:
        watchdog.forget()


os.register_at_fork(after_in_child=_forget_watchdogs)  # once: a hook cannot be taken back


def _interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _leave() -> None:
    if hasattr(sys, "ps1"):
        return
    with suppress(OSError):
        os.write(2, b"pappus: it hangs and did not end within its grace; it leaves without saving\n")
    os._exit(EXIT_CODE)
