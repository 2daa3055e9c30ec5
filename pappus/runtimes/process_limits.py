"""Whether this machine lets a run have all its processes, asked before the first is started."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.replay.storage.memory import available_memory, control_groups

PROCESS_BYTES = 8 << 20
"""That a process has for itself at least: most pages are those of the fork server. One of CartPole takes 11 MiB."""
PROCESS_DESCRIPTORS = 3
"""In the main process for each: its connection, its fault log, and what wakes it."""
OWN_DESCRIPTORS, OWN_PROCESSES = 64, 4
"""Of the run itself: its files and its terminal; the main process, the fork server, whoever evaluates, replays or
infers."""
REMEDY = "use fewer --actors with more --envs-per-actor"


def check_limits(config: RunConfig, root: str = "/") -> None:
    """Raise `UserError` for more processes, descriptors or memory than there can be; `root` is where /proc and /sys
    are."""
    processes = config.actors + config.learners + OWN_PROCESSES
    files, most = OWN_DESCRIPTORS + PROCESS_DESCRIPTORS * processes, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and files > most:
        raise UserError(
            f"{processes:,} processes need {files:,} open files in the main process, and it may have {most:,} "
            f"(ulimit -Hn); raise that limit, or {REMEDY}"
        )
    for name, left in _process_limits(Path(root)):
        if processes > left:
            raise UserError(f"the run needs {processes:,} processes, and {name} allows {left:,}; raise it, or {REMEDY}")
    needed, available = processes * PROCESS_BYTES, available_memory(root)
    if available is not None and needed > available:
        raise UserError(
            f"{processes:,} processes take at least {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB are left "
            f"on this machine or in its container; {REMEDY}"
        )


def _process_limits(root: Path) -> Iterator[tuple[str, int]]:
    """The names of limits on processes, and how many more each allows at most."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if os.getuid() and most != resource.RLIM_INFINITY:
        yield "this user's limit (ulimit -Hu)", most
    with contextlib.suppress(OSError, ValueError):
        yield "the system (sysctl kernel.pid_max)", int((root / "proc/sys/kernel/pid_max").read_text())
    for group in control_groups(root, "pids"):
        with contextlib.suppress(OSError, ValueError):  # "max" is none
            left = int((group / "pids.max").read_text()) - int((group / "pids.current").read_text())
            yield f"the container (pids.max of {str(group)!r})", max(0, left)
