"""What the operating system shows of a role's process."""

from __future__ import annotations

import contextlib
import os
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
