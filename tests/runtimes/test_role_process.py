"""Several roles in one process, each in a thread of its own."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pappus.core import Waitable
from pappus.errors import StorageError
from pappus.roles.role import IDLE, Role
from pappus.runtimes.connections import PacketConnection
from pappus.runtimes.role_process import drive_all

SECONDS = 10.0


class Busy(Role):
    """Works all the time, and notes when it was closed."""

    def __init__(self, name: str, closed: list[str], fails: bool = False) -> None:
        super().__init__(name)
        self._closed, self._fails = closed, fails

    def step(self) -> Waitable | None:
        if self._fails:
            raise ValueError(f"{self.name} is broken")
        return None

    def save(self) -> dict[str, Any]:
        return {"name": self.name}

    def close(self) -> None:
        self._closed.append(self.name)


class Waiting(Busy):
    """Waits for commands."""

    def step(self) -> Waitable | None:
        return IDLE


def heard(line: socket.socket) -> list[dict[str, Any]]:
    """Everything that was said until the line was closed."""
    messages = []
    while packet := line.recv(1 << 20):
        messages.append(json.loads(packet))
    return messages


def test_roles_save_together_and_close_in_the_order_of_the_data(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    closed: list[str] = []
    roles = [Busy("first", closed), Waiting("second", closed), Busy("third", closed)]
    worker = threading.Thread(target=drive_all, args=(roles, PacketConnection(theirs), 0.0), daemon=True)
    worker.start()
    ours.settimeout(SECONDS)
    ours.send(json.dumps({"save": str(tmp_path)}).encode())
    while "saved" not in (message := json.loads(ours.recv(1 << 20))):
        assert "died" not in message
    assert {path.stem for path in tmp_path.glob("*.safetensors")} == {"first", "second", "third"}
    ours.send(json.dumps({"stop": True}).encode())
    worker.join(SECONDS)
    theirs.close()
    assert not worker.is_alive() and closed == ["first", "second", "third"]
    assert not any("saved" in message for message in heard(ours)), "it is said once"


class Poor(Waiting):
    """Cannot write its state."""

    def save(self) -> dict[str, Any]:
        raise StorageError("No space left on device")


def test_one_of_several_roles_that_cannot_save_is_reported_and_all_go_on(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    roles = [Waiting("rich", []), Poor("poor", [])]
    worker = threading.Thread(target=drive_all, args=(roles, PacketConnection(theirs), 0.0), daemon=True)
    worker.start()
    ours.settimeout(SECONDS)
    for attempt in ("one", "two"):
        (tmp_path / attempt).mkdir()
        ours.send(json.dumps({"save": str(tmp_path / attempt)}).encode())
        while "saved" not in (message := json.loads(ours.recv(1 << 20))):
            assert "died" not in message
        assert (message["saved"], message["problem"]) == (str(tmp_path / attempt), "poor: No space left on device")
    ours.send(json.dumps({"stop": True}).encode())
    worker.join(SECONDS)
    assert not worker.is_alive()


def test_a_thread_that_fails_ends_the_others_with_its_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    roles = [Waiting("idle", []), Busy("broken", [], fails=True)]
    with ours, pytest.raises(ValueError, match="broken is broken"):
        drive_all(roles, PacketConnection(theirs), 0.0)
