"""The memory that chunks need, and the memory that is available on this machine and within its containers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pappus.errors import UserError
from pappus.replay.storage.chunks import Layout

FILES = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
"""Files with the limit and the use of a control group, and the prefix of its statistics: version 2, and version 1."""


def refuse_too_large(layout: Layout, root: str = "/") -> None:
    """Raise `UserError` if the chunks need more memory than there is; `root` is where /proc and /sys are."""
    available = available_memory(root)
    if available is not None and layout.nbytes > available:
        raise UserError(
            f"{projected(layout)}, and {available / 2**30:.1f} GiB are left on this machine or in its container; "
            "lower max_steps"
        )


def projected(layout: Layout) -> str:
    return f"{layout.rows:,} steps of {layout.step_bytes:,} bytes take {layout.nbytes / 2**30:.2f} GiB"


def available_memory(root: str = "/") -> int | None:
    """Bytes that can still be allocated; None if unknown."""
    found = [_of_machine(Path(root)), *(_left_in(group) for group in control_groups(Path(root), "memory"))]
    return min((left for left in found if left is not None), default=None)


def total_memory(root: str = "/") -> int:
    """Bytes of this machine, or of its container where that has a limit; it is the same every time."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group in control_groups(Path(root), "memory"):
        for name, *_ in FILES:
            with contextlib.suppress(OSError, ValueError):  # "max" is none
                limits.append(int((group / name).read_text()))
    return min(limits)


def _of_machine(root: Path) -> int | None:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The control groups of this process and their parents; the limit of each applies."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup" / (controller if controller in controllers.split(",") else "")
        if number == "0" or top.name == controller:
            own = top / path.lstrip("/")
            yield from (group for group in (own, *own.parents) if group.is_relative_to(top))


def _left_in(group: Path) -> int | None:
    """Bytes left in a control group with a limit; cached files count as free."""
    for limit, used, prefix in FILES:
        try:
            most = int((group / limit).read_text())  # "max" is none
            words = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cached = sum(int(words.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            return max(0, most - int((group / used).read_text()) + cached)
        except (OSError, ValueError):
            continue
    return None
