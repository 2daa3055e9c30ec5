"""A folder for sockets and secrets that only this user can enter, and what killed processes left there."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

from pappus.errors import RunError

LEFT_SECONDS = 60.0
"""Nothing younger is removed: a process may be about to listen."""


def private_socket(purpose: str) -> str:
    """A unix socket for processes of this user only, always the same for the same purpose."""
    return private_path(f"{hashlib.sha256(purpose.encode()).hexdigest()[:24]}.sock")


def private_path(name: str) -> str:
    """Within a folder that only this user can enter; empty if there is none."""
    folder = Path(tempfile.gettempdir()) / f"pappus-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return ""  # somebody else made it: not a place for a socket of ours
    remove_left_behind(folder)
    return str(folder / name)


def private_file(name: str, content: str) -> tuple[str, int]:
    """A new file that only this user can read, and a descriptor that keeps it from being taken for one that was left
    behind. `RunError` if there is no place for it."""
    path = private_path(name)
    if not path:
        raise RunError("there is no folder for files that only this user can enter; set TMPDIR to another")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, content.encode())
    return path, descriptor


@functools.cache
def remove_left_behind(folder: Path) -> None:
    """Remove sockets and files of processes that were killed; once in a process, since every run looks."""
    latest = time.time() - LEFT_SECONDS
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # others remove, too
            status = path.lstat()
            if status.st_mtime < latest and (_is_deaf(path) if stat.S_ISSOCK(status.st_mode) else _is_unheld(path)):
                path.unlink()


def _is_deaf(path: Path) -> bool:
    """Whether nobody listens on a unix socket, of whatever kind it is."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def _is_unheld(path: Path) -> bool:
    """Whether no process has a file open that `private_file` made."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
