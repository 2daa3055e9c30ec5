"""What killed processes left in the folder for sockets and secrets goes when the next one looks, and nothing else."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pappus.transports.private_folder import LEFT_SECONDS, private_file, private_path, remove_left_behind


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this user's sockets are, which no process has looked at yet."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    private_path("nothing")
    remove_left_behind.cache_clear()
    yield tmp_path / f"pappus-{os.getuid()}"
    remove_left_behind.cache_clear()


def make_old(*paths: Path) -> None:
    then = time.time() - 2 * LEFT_SECONDS
    for path in paths:
        os.utime(path, (then, then))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_socket_without_a_listener_is_removed(folder: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as listener, socket.socket(socket.AF_UNIX, kind) as dead:
        for name, one in (("dead.sock", dead), ("alive.sock", listener)):
            one.bind(str(folder / name))
        listener.listen()
        dead.close()
        with socket.socket(socket.AF_UNIX, kind) as young:
            young.bind(str(folder / "young.sock"))
        make_old(folder / "dead.sock", folder / "alive.sock")
        private_path("another.sock")
        assert sorted(path.name for path in folder.iterdir()) == ["alive.sock", "young.sock"]


def test_the_token_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(folder: Path) -> None:
    words = "import sys; from pappus.transports.private_folder import private_file as f; f(sys.argv[1], 'secret')"
    child = [sys.executable, "-c", f"{words}; import os; os.kill(os.getpid(), 9)", "dead.token"]
    subprocess.run(child, check=False, env={**os.environ, "TMPDIR": str(folder.parent)})
    path, descriptor = private_file("mine.token", "secret")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and Path(path).read_text() == "secret"
    assert (folder / "dead.token").read_text() == "secret"
    make_old(folder / "dead.token", Path(path))
    remove_left_behind.cache_clear()
    private_path("another")
    assert [path.name for path in folder.iterdir()] == ["mine.token"]
    os.close(descriptor)
