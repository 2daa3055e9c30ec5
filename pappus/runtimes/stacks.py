"""Where a process is, in words: what faulthandler writes of its threads, read from the innermost call outwards."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

OURS = Path(__file__).parents[1]
LIBRARIES = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
DRIVER, DRIVERS = "runtimes/role_process.py", ("runtimes/role_process.py", "runtimes/inline.py")
"""Whose `drive` steps a role; the other threads of a process serve connections."""
WAITS = ("runtimes/waiting.py", "polling.py")
"""Where a role waits for a port, or its process for commands."""


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str

    @property
    def ours(self) -> bool:
        return Path(self.file).is_relative_to(OURS)

    @property
    def strange(self) -> bool:
        """Whether it is neither of this package, nor of Python or an installed library: it is the user's."""
        return not self.ours and not self.file.startswith(("<", *LIBRARIES))

    def __str__(self) -> str:
        """`step (my_env.py:31)`."""
        path, here = Path(self.file), Path.cwd()
        shown = path.relative_to(OURS.parent) if self.ours else path.relative_to(here) if (
            self.strange and path.is_relative_to(here)) else Path(path.name)
        return f"{self.function} ({shown}:{self.line})"


def threads(text: str) -> list[list[Frame]]:
    """The threads of a dump, each from its innermost call outwards."""
    found: list[list[Frame]] = []
    for line in text.splitlines():
        frame = FRAME.match(line)
        if frame is not None and found:
            found[-1].append(Frame(frame["file"], int(frame["line"]), frame["function"]))
        elif "hread 0x" in line:
            found.append([])
    return [thread for thread in found if thread]


def at_work(text: str) -> list[Frame]:
    """The thread of a dump that steps a role and does not wait for a port; else the one that heard the signal."""
    known = threads(text)
    steps = [thread for thread in known if any(_is(frame, DRIVER) and frame.function == "drive" for frame in thread)]
    working = [thread for thread in steps if not any(_is(frame, *WAITS) for frame in thread)]
    return next(iter([*working, *steps, *reversed(known)]), [])


def _is(frame: Frame, *files: str) -> bool:
    return frame.ours and Path(frame.file).relative_to(OURS).as_posix() in files


def frames_of(innermost: FrameType | None) -> list[Frame]:
    """The stack of a thread of this process."""
    found = []
    while innermost is not None:
        code = innermost.f_code
        found.append(Frame(code.co_filename, innermost.f_lineno, code.co_name))
        innermost = innermost.f_back
    return found


def dump(frames: Sequence[Frame]) -> str:
    """A stack as faulthandler writes it."""
    return "\n".join(f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in frames)


def of_role(frames: Sequence[Frame]) -> list[Frame]:
    """The part of a stack that a role is in: without what drives it."""
    drivers = [i for i, frame in enumerate(frames) if _is(frame, *DRIVERS)]
    return list(frames[: drivers[0]] if drivers else frames)


def place(frames: Sequence[Frame]) -> str:
    """`step (my_env.py:31), called from step (pappus/envs/gym_vector.py:120)`: the innermost call, and who called it
    that a reader knows: the user's own code if there is any, this package's otherwise. Empty without frames."""
    if not frames:
        return ""
    inner, *outer = frames
    callers = [frame for frame in outer if frame.strange] if not inner.strange else []
    callers = callers or [frame for frame in outer if frame.ours]
    return f"{inner}, called from {callers[0]}" if callers else str(inner)
