"""A group of colocated roles as a Ray actor: what `runtimes.role_process` is for a process of this machine.

Ray starts it on a node with free resources, and again when it dies; the driver then sends it the roles of its next
incarnation. It gets commands over a connection to the driver, and shares memory with the other roles of its node.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import ray

from pappus.data.recorder import PARTS
from pappus.errors import RunError
from pappus.polling import readable
from pappus.runtimes.connections import StreamConnection
from pappus.runtimes.file_transfer import FileTransfer, PartTransfer
from pappus.runtimes.role_process import Assignment, build_roles, drive_all, failure_message, set_threads
from pappus.runtimes.wiring import Wiring
from pappus.telemetry.files import versions
from pappus.telemetry.process_tree import PacedMemory, ProcessTree
from pappus.topologies.program import RoleSpec
from pappus.transports.fd_server import fetch_blocks
from pappus.transports.private_folder import private_file
from pappus.transports.tls import Tls

REGISTRY_SECONDS = 120.0
"""For the registry's answer, which may have to wait for a node agent."""
FIND_SECONDS = 0.5
"""How long an address that was found is cached."""


@dataclass(frozen=True)
class Driver:
    """How a host reaches the driver."""

    address: tuple[str, int]
    token: str
    registry: Any
    marker: str
    """A file in the run's directory: a node that does not see it has to be sent files."""
    path: list[str]
    """Where the driver imports from."""
    directory: str
    """Where the driver was started."""
    tls: Tls | None = None


class Host:
    """The Ray actor."""

    def __init__(self, group: str) -> None:
        self._group = group  # and no more: what Ray needs for a restart must not be in the object store

    def run(self, driver: Driver, payload: bytes, incarnation: int) -> None:
        """Drive one incarnation of the roles until a stop command. An error ends the process: Ray starts another."""
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        show_as(self._group)
        for path in (driver.directory, *driver.path):
            if path not in sys.path and os.path.isdir(path):
                sys.path.append(path)
        where = Cluster(driver)
        line = StreamConnection.connect(driver.address, {
            "token": driver.token, "group": self._group, "incarnation": incarnation, "pid": os.getpid(),
            "node": where.node, "ip": where.ip, "versions": versions(),
        }, driver.tls)
        try:
            self._live(driver, cloudpickle.loads(payload), line, where)
        except BaseException as error:
            if not isinstance(error, BrokenPipeError | ConnectionResetError):  # the driver is gone, or the node agent
                with contextlib.suppress(OSError):
                    line.send(failure_message(error))
            where.close()
            os._exit(1)
        line.close()
        where.close()

    def _live(self, driver: Driver, assignment: Assignment, line: StreamConnection, where: Cluster) -> None:
        path = ray.get(driver.registry.settle.remote(self._group, where.node, where.ip), timeout=REGISTRY_SECONDS)
        node_agent, blocks = fetch_blocks(path, [edge.name for edge in assignment.edges])
        names = [name for spec in assignment.specs for name in {spec.name, spec.begins_with} if name]
        edges = {edge.name: edge for edge in assignment.edges}
        tables = any(edges[ref.edge].reserves(ref) for spec in assignment.specs for ref in spec.ends())
        file_transfer = FileTransfer(where.ask, Path(driver.marker), names, tables)
        if assignment.checkpoint is not None:
            file_transfer.fetch(assignment.checkpoint)
        set_threads(assignment.threads)
        roles = build_roles(assignment, Wiring(assignment.edges, blocks, where))
        parts = PartTransfer(where.ask, recorded_parts(assignment.specs), names)
        drive_all(roles, ProcessConnection(line, node_agent, file_transfer, parts), assignment.spin, assignment.rhythm)
        parts.end()


def recorded_parts(specs: Sequence[RoleSpec]) -> Path | None:
    """Where the roles of a run record; None where they do not."""
    runs = [spec.arguments["run"] for spec in specs if "run" in spec.arguments]
    return next((Path(run.config.record) / PARTS for run in runs if run.config.record), None)


class ProcessConnection:
    """The connection to the driver; it also ends when the node agent does, without which roles reach no other node."""

    def __init__(
        self, line: StreamConnection, node_agent: socket.socket, file_transfer: FileTransfer, parts: PartTransfer
    ) -> None:
        self._line, self._node_agent, self._file_transfer, self._parts = line, node_agent, file_transfer, parts
        self._lock, self._tree = threading.Lock(), ProcessTree(whole=True)
        self._memory = PacedMemory(self._tree)
        self.fileno = line.fileno

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the driver, with a report also the memory and CPU time of the process and its children."""
        if "report" in message:
            self._parts.send()
            message = {**message, "process": [self._memory.read(), self._tree.cpu_seconds()]}
        if "saved" in message and not message["problem"]:
            message = {**message, "problem": self._transferred(Path(message["saved"]))}
        with self._lock:
            self._line.send(message)

    def _transferred(self, checkpoint: Path) -> str:
        """Send what was written for a checkpoint; what kept the driver's node from taking it."""
        try:
            self._file_transfer.send(checkpoint)
        except OSError as error:  # also one that Ray brings from there
            return f"the driver's node cannot write it: {error}"
        return ""

    def receive(self) -> list[dict[str, Any]]:
        if readable([self._node_agent.fileno()], 0.0) and not self._node_agent.recv(1):
            raise ConnectionResetError("the node agent of this node is gone")
        commands = self._line.receive()
        for command in commands:
            if "save" in command:
                with contextlib.suppress(OSError):  # the roles meet it again when they write, and say so
                    self._file_transfer.prepare(Path(command["save"]))
        return commands


class Cluster:
    """`recording.shared.ServiceDirectory` over the registry."""

    def __init__(self, driver: Driver) -> None:
        self._registry = driver.registry
        self.node = ray.get_runtime_context().get_node_id()
        self.ip, self.tls = ray.util.get_node_ip_address(), driver.tls
        self.token_file, self._held = private_file(f"{os.getpid()}-{secrets.token_hex(8)}.token", driver.token)
        self._found: dict[str, tuple[float, tuple[str, str]]] = {}

    def ask(self, method: str, *arguments: Any) -> Any:
        return ray.get(getattr(self._registry, method).remote(*arguments), timeout=REGISTRY_SECONDS)

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.token_file)
            os.close(self._held)

    def announce(self, name: str, address: str) -> None:
        self.ask("announce", name, self.node, address)

    def find(self, name: str) -> tuple[str, str]:
        asked, found = self._found.get(name, (0.0, ("", "")))
        if time.monotonic() - asked > FIND_SECONDS:
            found = self.ask("find", name) or ("", "")
            self._found[name] = (time.monotonic(), found)
        if not found[0]:
            raise RunError(f"no process serves {name} yet")
        return found


def show_as(name: str) -> None:
    """`pappus NAME` in ps and top. Ray has a title for every process, and overwrites one that it does not know of."""
    with contextlib.suppress(AttributeError):
        ray._raylet.setproctitle(f"pappus {name}")
