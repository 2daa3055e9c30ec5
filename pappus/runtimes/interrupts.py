"""How a run hears that it has to end, and what makes sure that it does.

    signal ──▶ save ──────────▶ stop the roles ──▶ KeyboardInterrupt ──▶ exit, whatever hangs
    0 s        until 7 s        until 12 s         13 s                  15 s = --supervision.grace-seconds
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pappus.config import SupervisionConfig
from pappus.runtimes.controller import Controller
from pappus.telemetry.processes import on_ending

EXIT_CODE = 130
"""Of a command that was asked to end, by whatever signal."""
WORDS = {signal.SIGINT: "interrupted", signal.SIGHUP: "SIGHUP: the terminal was closed"}
LAST_SECONDS = 2.0
"""At the end of the grace, for what is left to do when the run was broken off."""


@contextmanager
def interrupts(controller: Controller, supervision: SupervisionConfig) -> Iterator[None]:
    """First Ctrl-C, SIGTERM, SIGHUP or SIGUSR1: save and stop within the grace. A second Ctrl-C: stop at once."""
    watchdog = Watchdog(supervision.grace_seconds)

    def hear(number: signal.Signals) -> None:
        watchdog.start()
        controller.interrupt()
        controller.event(
            f"{WORDS.get(number, number.name)}: saving a checkpoint, then stopping, within "
            f"{supervision.grace_seconds:g} s; interrupt again to stop at once"
        )

    with on_ending(hear):
        try:
            yield
        finally:
            watchdog.cancel()


class Watchdog:
    """Breaks this process off when the grace is over: a thread that hangs in an env or a file does not look at clocks.

    `KeyboardInterrupt` reaches what runs or sleeps in Python. For what hangs in native code only the exit of the
    process is left; a console or a notebook is not taken away from its user."""

    def __init__(
        self, seconds: float, kill: Callable[[], None] | None = None, leave: Callable[[], None] | None = None
    ) -> None:
        main = threading.main_thread().ident
        assert main is not None
        kill = kill or (lambda: signal.pthread_kill(main, signal.SIGINT))
        leave = leave or (lambda: None if hasattr(sys, "ps1") else _leave())
        early = max(0.5 * seconds, seconds - LAST_SECONDS)
        self._timers = [threading.Timer(early, kill), threading.Timer(seconds, leave)]

    def start(self) -> None:
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()


def _leave() -> None:
    with suppress(OSError):
        os.write(2, b"pappus: it hangs and did not end within its grace; it leaves without saving\n")
    os._exit(EXIT_CODE)
