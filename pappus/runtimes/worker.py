"""What runs in a worker process: the roles of one group, driven until told to stop."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from pappus.core import Waitable
from pappus.errors import PappusError
from pappus.roles.role import Role
from pappus.runtimes.wiring import Wiring
from pappus.telemetry.checkpoint import load_state, save_state
from pappus.telemetry.processes import set_title
from pappus.topologies.program import Edge, Node
from pappus.topologies.run import derive_seed
from pappus.transports.memory import SharedBlock

REPORT_SECONDS = 0.25
COMMAND_SECONDS = 0.05
"""A role that never waits looks for commands this often."""


@dataclass(frozen=True)
class Assignment:
    """What a worker is told: its nodes, the edges they touch, and where the state to go on from lies."""

    group: str
    nodes: list[Node]
    edges: list[Edge]
    block_sizes: dict[str, int]
    block_descriptors: dict[str, list[int]]
    """Positions in the list of descriptors that came along."""
    incarnation: int
    seed: int
    checkpoint: Path | None
    threads: int


def preload() -> None:
    """Import what every worker needs, in the process that workers are forked from."""
    import pappus.topologies.impala
    import pappus.topologies.seed  # noqa: F401


def pack(assignment: Assignment) -> bytes:
    """Classes and functions of the user's own script travel by value, so the script is not run again."""
    payload: bytes = cloudpickle.dumps((sys.path, os.getcwd(), cloudpickle.dumps(assignment)))
    return payload


def main(payload: bytes, descriptors: Sequence[int]) -> int:
    """Build the roles, drive them, and say what went wrong. Descriptors: commands, fault log, then blocks."""
    sys.path[:], directory, rest = cloudpickle.loads(payload)
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    commands = Commands(socket.socket(fileno=descriptors[0]))
    faulthandler.enable(open(descriptors[1], "wb", buffering=0))  # noqa: SIM115  (lives as long as the process)
    try:
        assignment: Assignment = cloudpickle.loads(rest)
        set_title(assignment.group)
        torch.set_num_threads(assignment.threads)
        drive(_build(assignment, descriptors), commands)
        return 0
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the main process is gone
    except BaseException as error:
        sentence = {"error": str(error), "kind": type(error).__name__} if isinstance(error, PappusError) else {}
        commands.send({"died": traceback.format_exc(), **sentence})
        return 1


def _build(assignment: Assignment, descriptors: Sequence[int]) -> list[Role]:
    blocks = {
        name: SharedBlock(size, [descriptors[i] for i in assignment.block_descriptors[name]])
        for name, size in assignment.block_sizes.items()
    }
    _seed_libraries(assignment)
    wiring = Wiring(assignment.edges, blocks)
    roles = [wiring.build(node, assignment.incarnation) for node in assignment.nodes]
    for node, role in zip(assignment.nodes, roles, strict=True):
        if assignment.checkpoint is not None and node.essential:
            role.load(load_state(assignment.checkpoint, role.name))
    return roles


def _seed_libraries(assignment: Assignment) -> None:
    """Workers are forked from one process; without this, envs that use global random states would be twins."""
    seed, _ = derive_seed(assignment.seed, "libraries", assignment.group, assignment.incarnation)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Commands:
    """The worker's end of its line to the main process; one JSON object per packet."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.fileno = line.fileno

    def send(self, message: dict[str, Any]) -> None:
        """Tell the main process something."""
        self._line.send(json.dumps(message).encode())

    def receive(self) -> list[dict[str, Any]]:
        """All commands that have arrived."""
        commands: list[dict[str, Any]] = []
        while select.select([self._line], [], [], 0)[0]:
            packet = self._line.recv(65536)
            if not packet:
                raise ConnectionResetError("the main process is gone")
            commands.append(json.loads(packet))
        return commands


def drive(roles: Sequence[Role], commands: Commands) -> None:
    """Step the roles in turn; sleep only when all of them wait, until a port or a command wakes them."""
    next_report = next_look = 0.0  # report at once after the first progress: it shows that this life works
    finished: set[str] = set()
    while True:
        waiting = [port for role in roles if (port := role.step()) is not None]
        now = time.perf_counter()
        if len(waiting) == len(roles):
            wake_at = min((role.wake_at for role in roles if role.wake_at is not None), default=next_report)
            if _sleep(roles, waiting, commands, max(0.0, min(wake_at, next_report) - now)):
                next_look = 0.0
            now = time.perf_counter()
        if now >= next_report:
            next_report = now + REPORT_SECONDS
            for role in roles:
                commands.send({"report": role.metrics.drain()})
        for role in roles:
            if role.finished and role.name not in finished:
                finished.add(role.name)
                commands.send({"report": role.metrics.drain()})
                commands.send({"finished": role.name})
        if now >= next_look:
            next_look = now + COMMAND_SECONDS
            if not all(_obey(command, roles, commands) for command in commands.receive()):
                for role in roles:
                    role.close()
                return


def _sleep(roles: Sequence[Role], waiting: Sequence[Waitable], commands: Commands, seconds: float) -> bool:
    """Until a port or a command wakes the roles; whether it was a command."""
    ports = {fd: port for port in waiting if (fd := port.fileno()) >= 0}
    for role, port in zip(roles, waiting, strict=True):
        role.metrics.clock.waiting(port.name)
    ready, _, _ = select.select([commands.fileno(), *ports], [], [], seconds)
    for role in roles:
        role.metrics.clock.busy()
    for fd in ready:
        if fd in ports:
            ports[fd].clear()
    return commands.fileno() in ready


def _obey(command: dict[str, Any], roles: Sequence[Role], commands: Commands) -> bool:
    """Carry one command out; False for `stop`."""
    if "stop" in command:
        return False
    if "save" in command:
        for role in roles:
            commands.send({"report": role.metrics.drain()})  # so that the counters beside the state belong to it
            state = role.save()
            if state is not None:
                save_state(Path(command["save"]), role.name, state)
        commands.send({"saved": command["save"]})
    else:
        for role in roles:
            if role.name == command["role"]:
                role.receive(command["command"], command["argument"])
    return True

