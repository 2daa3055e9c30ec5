"""What the operating system shows of a role's process, and what it sends to it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path


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


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def kept_signals() -> Iterator[bool]:
    """Restores the handlers of Ctrl-C and SIGTERM at the end; whether this thread may set others meanwhile."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield main
    finally:
        for number, handler in before.items() if main else ():
            signal.signal(number, handler)
