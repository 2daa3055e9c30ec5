"""A worker process as its supervisor sees it: its line, its lives and its deaths."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import tempfile
import time
from typing import Any

from pappus import errors
from pappus.errors import NonFiniteError, PappusError, RoleDied
from pappus.telemetry.metrics import Report
from pappus.topologies.program import Node

MAX_PACKET = 1 << 20
LONG_LIFE = 60.0
"""Seconds after which a death is no longer one of a row."""
FIRST_DELAY = 0.1
"""Seconds before the second restart in a row; each further one waits twice as long."""


class Worker:
    """One group of roles, through all its incarnations."""

    def __init__(self, group: str, nodes: list[Node]) -> None:
        self.group, self.nodes = group, nodes
        self.essential = any(node.essential for node in nodes)
        self.saved = any(node.saved for node in nodes)
        self.incarnation = 0
        self.pid: int | None = None
        self.line: socket.socket | None = None
        self.restart_at: float | None = None
        self.deaths_in_a_row = 0
        self.first_notice = ""
        self.last_words: dict[str, str] = {}
        self._fault_log: int | None = None
        self._born = 0.0

    def open(self) -> tuple[int, int]:
        """A fresh line and fault log for the next incarnation: the descriptors to hand over."""
        self.close()
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET)
        with tempfile.TemporaryFile() as file:  # written by the kernel's last messenger when a worker crashes
            self._fault_log = os.dup(file.fileno())
        self.last_words = {}
        self._born = time.monotonic()
        return theirs.detach(), self._fault_log

    def close(self) -> None:
        """Close what belongs to the present incarnation."""
        if self.line is not None:
            self.line.close()
            self.line = None
        if self._fault_log is not None:
            os.close(self._fault_log)
            self._fault_log = None

    def send(self, message: dict[str, Any]) -> None:
        """Tell the worker something; it is lost when the worker is dead."""
        if self.line is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.line.send(json.dumps(message).encode())

    def receive(self) -> list[dict[str, Any]]:
        """All messages that have arrived."""
        messages: list[dict[str, Any]] = []
        while self.line is not None and select.select([self.line], [], [], 0)[0]:
            try:
                packet = self.line.recv(MAX_PACKET)
            except ConnectionResetError:
                packet = b""
            if not packet:
                self.line.close()
                self.line = None
                break
            messages.append(json.loads(packet))
        return messages

    def note_progress(self, report: Report) -> None:
        """A life in which something was done ends the row of deaths."""
        if report["counts"]:
            self.deaths_in_a_row = 0

    @property
    def beyond_help(self) -> bool:
        """Whether it died of numbers that are not finite: its successor would meet the same ones."""
        return self.last_words.get("kind") == NonFiniteError.__name__

    def bury(self, notice: str) -> float:
        """Count a death; the seconds to wait before the next life."""
        if time.monotonic() - self._born >= LONG_LIFE:
            self.deaths_in_a_row = 0
        if self.deaths_in_a_row == 0:
            self.first_notice = notice
        self.deaths_in_a_row += 1
        self.pid = None
        return 0.0 if self.deaths_in_a_row == 1 else FIRST_DELAY * 2.0 ** (self.deaths_in_a_row - 2)

    def fault_text(self) -> str:
        """What faulthandler wrote when the process crashed."""
        if self._fault_log is None:
            return ""
        return os.pread(self._fault_log, MAX_PACKET, 0).decode(errors="replace").strip()


def death_notice(worker: Worker, status: int) -> str:
    """What is known of a death: a line, then the traceback."""
    name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    details = worker.last_words.get("died", "") or worker.fault_text()
    return f"{worker.group} died ({name})" + (f"\n{details}" if details else "")


def essential_death(worker: Worker, notice: str) -> PappusError:
    """The error that ends the run: the role's own sentence if it had one, its traceback otherwise."""
    sentence, kind = worker.last_words.get("error", ""), worker.last_words.get("kind", "")
    error = getattr(errors, kind, None) if sentence else None
    if error is not None:
        return error(sentence)  # type: ignore[no-any-return]
    row = f" {worker.deaths_in_a_row} times in a row" if worker.deaths_in_a_row > 1 else ""
    return RoleDied(f"{worker.group} died{row}; the first time:\n{notice}" if row else notice)
