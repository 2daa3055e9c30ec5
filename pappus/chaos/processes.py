"""Processes as the kernel shows them: who descends from whom, and by which title."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import NamedTuple

ZOMBIE = "Z"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Seen(NamedTuple):
    """A process."""

    parent: int
    state: str
    title: str


def adopt_orphans() -> None:
    """From now on, processes whose parent dies become children of this one: what a killed run leaves is seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """This process is asked to end when its parent dies, however that dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def all_processes() -> dict[int, Seen]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(entry.name)] = Seen(int(parent), state, title)
    return found


def descendants(pid: int) -> dict[int, Seen]:
    """All processes below one, itself not included; zombies count."""
    known = all_processes()
    found: dict[int, Seen] = {}
    frontier = {pid}
    while frontier:
        frontier = {child for child, seen in known.items() if seen.parent in frontier}
        found |= {child: known[child] for child in frontier}
    return found


def bury(*keep: int) -> None:
    """Reap orphans that have ended, but not those in `keep`, for whose exit codes somebody waits."""
    for pid, seen in descendants(os.getpid()).items():
        if seen.state == ZOMBIE and seen.parent == os.getpid() and pid not in keep:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
