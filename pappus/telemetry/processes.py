"""What the operating system shows of a role's process, and what it sends to it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType


def set_title(name: str) -> None:
    """Show this process as `pappus NAME` in ps and top."""
    with contextlib.suppress(ImportError):  # a convenience that is no reason to fail
        import setproctitle

        setproctitle.setproctitle(f"pappus {name}")


def resident_bytes(pid: int) -> int | None:
    """Memory that a process holds (shared pages included), or None where it cannot be known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") or None  # a zombie holds nothing


def cpu_seconds(pid: int) -> float | None:
    """Time that the threads of a process have computed, in user and kernel mode, or None where it cannot be known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


STOPPED = "T"
"""State of a process that a signal has stopped."""


def process_state(pid: int) -> str:
    """A letter, as ps shows it; empty where it cannot be known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that ask a run to save and end: Ctrl-C, a scheduler or cloud that wants the machine back (SIGTERM, or SIGUSR1
some time before), a terminal that closes."""


@contextlib.contextmanager
def kept_signals() -> Iterator[bool]:
    """Restores the handlers of `ENDING` at the end; whether this thread may set others meanwhile."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield main
    finally:
        for number, handler in before.items() if main else ():
            signal.signal(number, handler)


@contextlib.contextmanager
def on_ending(act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """`act` hears the first signal that asks this process to end. After it Ctrl-C raises `KeyboardInterrupt`, and the
    others mean nothing new: a shell that closes sends SIGHUP twice, and so does `timeout` with its SIGTERM."""
    heard: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not heard:
            heard.append(number)
            act(signal.Signals(number))

    with kept_signals() as main:
        for number in ENDING if main else ():
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: closing it is no end
                signal.signal(number, handler)
        yield


def not_for_me() -> None:
    """Signals of `ENDING` do nothing to this process: whoever started it hears them, too, and ends it in order.

    Schedulers send them to every process of a job. Programs and processes that this one starts (those of an env) have
    the default handlers again: they must not outlive a `terminate`."""
    for number in ENDING:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_default_handlers)


def _default_handlers() -> None:
    for number in ENDING:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
