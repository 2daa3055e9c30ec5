"""What runs in a process of a run: the roles of one group, driven until a stop command."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from pappus.edges.edge import Edge
from pappus.errors import PappusError, StorageError
from pappus.polling import readable
from pappus.roles.role import Role
from pappus.runtimes.connections import Connection, PacketConnection
from pappus.runtimes.heartbeats import REPORT_SECONDS
from pappus.runtimes.waiting import Waiter
from pappus.runtimes.wiring import Trace, Wiring
from pappus.telemetry.accounts import Ledger
from pappus.telemetry.checkpoint import load_state, run_directory, save_state
from pappus.telemetry.metrics import CHECKPOINT
from pappus.telemetry.processes import not_for_me, set_title
from pappus.telemetry.usage import RoleUsage
from pappus.topologies.program import RoleSpec, derive_seed
from pappus.transports.memory import ABSENT, EventNotifier, SharedBlock

STACK_SIGNAL = signal.SIGUSR2
"""Has a process write the stacks of its threads to its fault log, whatever they do."""
SWITCH_SECONDS = 2e-4
"""How long a thread that is ready waits for one that computes in Python; the default of 5 ms is longer than a batch."""
COMMAND_SECONDS = 0.05
"""A role that never waits looks for commands this often."""


@dataclass(frozen=True)
class Assignment:
    """What a process runs: its roles, the edges that they use, and the checkpoint that they begin with."""

    group: str
    specs: list[RoleSpec]
    edges: list[Edge]
    blocks: dict[str, tuple[int, list[int]]]
    """By edge: bytes, and positions in the list of descriptors that came along, -1 for those that the process does not
    use. Empty where a node agent has them."""
    incarnation: int
    seed: int
    checkpoint: Path | None
    threads: int
    spin: float
    """Seconds to look for an answer before going to sleep."""
    rhythm: float
    """Seconds between two reports."""
    niceness: int = 0
    """Of a process that gives way to others on cores that are not enough for all."""
    trace: Path | None = None
    """Where what the roles meet is written down (`pappus.trace`)."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By role: its row of the run's account, whose memory comes third. Empty on a cluster, where none is kept."""


def main(payload: bytes, descriptors: Sequence[int]) -> int:
    """Build the roles, drive them, and report an error. Descriptors: commands, fault log, account, then blocks."""
    sys.path[:], directory, rest = cloudpickle.loads(payload)
    os.chdir(directory)
    not_for_me()
    commands = PacketConnection(socket.socket(fileno=descriptors[0]))
    fault_log = open(descriptors[1], "wb", buffering=0)  # noqa: SIM115  (lives as long as the process)
    faulthandler.enable(fault_log)
    faulthandler.register(STACK_SIGNAL, fault_log)
    try:
        assignment: Assignment = cloudpickle.loads(rest)
        set_title(assignment.group)
        set_threads(assignment.threads)
        blocks = {
            name: SharedBlock(size, [ABSENT if i == ABSENT else descriptors[i] for i in places])
            for name, (size, places) in assignment.blocks.items()
        }
        accounts = SharedBlock(os.fstat(descriptors[2]).st_size, descriptors[2:3])
        with _tracing(assignment.trace) as trace:
            wiring = Wiring(assignment.edges, blocks, trace=trace, ledger=Ledger(assignment.rows, accounts.memory))
            roles = build_roles(assignment, wiring)
            os.nice(assignment.niceness)  # not before: others would keep it from starting
            drive_all(roles, commands, assignment.spin, assignment.rhythm)
        return 0
    except (BrokenPipeError, ConnectionResetError):
        return 1  # the main process is gone
    except BaseException as error:
        commands.send(failure_message(error))
        return 1


@contextlib.contextmanager
def _tracing(folder: Path | None) -> Iterator[Trace | None]:
    """Write a trace into `folder`, if there is one; its last entries only when all roles have ended as asked."""
    if folder is None:
        yield None
        return
    from pappus.trace.recorded import RecordedTrace  # with all edges: an actor without a network needs few of them

    trace = RecordedTrace(folder)
    yield trace
    trace.close()


def failure_message(error: BaseException) -> dict[str, Any]:
    """What a process reports about the error that ends it; called while that is being handled."""
    sentence = {"error": str(error), "kind": type(error).__name__} if isinstance(error, PappusError) else {}
    return {"died": traceback.format_exc(), **sentence}


def _seed_torch(seed: int) -> bool:
    """Seed torch, if something has imported it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    return torch is not None


def set_threads(count: int) -> None:
    """Threads of torch's operations, imported or not yet."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


def build_roles(assignment: Assignment, wiring: Wiring) -> list[Role]:
    seed, _ = derive_seed(assignment.seed, "libraries", assignment.group, assignment.incarnation)
    random.seed(seed)  # all are forked from one process: envs that use global random states would be identical
    np.random.seed(seed)
    seeded = _seed_torch(seed)
    roles = [wiring.build(spec, assignment.incarnation) for spec in assignment.specs]
    if not seeded:  # a role that needs no torch may have an env that does
        _seed_torch(seed)
    for spec, role in zip(assignment.specs, roles, strict=True):
        role.stateful = role.stateful and spec.saved  # one that shares the process of a saved role starts afresh
        if assignment.checkpoint is not None and spec.begins_with:
            role.stored_in(run_directory(assignment.checkpoint))
            role.load(load_state(assignment.checkpoint, spec.begins_with))
    return roles


def save_role(role: Role, directory: Path) -> str:
    """Write a role's state, if it has any; what kept it from being written. The role goes on in either case."""
    role.stored_in(run_directory(directory))
    try:
        state = role.save() if role.stateful else None
        if state is not None:
            save_state(directory, role.name, state, role.layout)
    except (StorageError, OSError) as error:
        return f"{role.name}: {error}"
    return ""


class SharedLine:
    """The process's connection, to which the threads of several roles send: `saved` only when all have answered."""

    def __init__(self, line: Connection, threads: int) -> None:
        self._line, self._threads, self._lock = line, threads, threading.Lock()
        self._answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """By checkpoint: what the roles said that were asked to save."""
        self.failed: deque[BaseException] = deque()

    def send(self, message: dict[str, Any]) -> None:
        if "saved" in message:
            with self._lock:
                known = self._answers[message["saved"]]
                known.append(message)
                if len(known) < self._threads:
                    return
                del self._answers[message["saved"]]
                message = {
                    "saved": message["saved"],
                    "progress": next((one["progress"] for one in reversed(known) if one["progress"]), None),
                    "problem": "; ".join(one["problem"] for one in known if one["problem"]),
                }
        self._line.send(message)


class RoleThread(threading.Thread):
    """Drives one of several roles of a process, to which it is the connection."""

    def __init__(self, role: Role, line: SharedLine, rhythm: float) -> None:
        super().__init__(name=role.name, daemon=True)
        self._role, self._shared, self._rhythm, self.send = role, line, rhythm, line.send
        self._inbox: deque[dict[str, Any]] = deque()
        self._notifier = EventNotifier(*EventNotifier.descriptors())
        self.fileno = self._notifier.fileno

    def run(self) -> None:
        try:
            spin = 0.0  # a thread that spins keeps the interpreter from the others
            drive(self._role, self, spin, self._rhythm, alone=False)
        except BaseException as error:
            self._shared.failed.append(error)

    def post(self, command: dict[str, Any]) -> None:
        """Called by the thread that reads the connection."""
        self._inbox.append(command)
        self._notifier.notify()

    def receive(self) -> list[dict[str, Any]]:
        self._notifier.clear()
        return [self._inbox.popleft() for _ in range(len(self._inbox))]


def drive_all(roles: Sequence[Role], line: Connection, spin: float, rhythm: float = REPORT_SECONDS) -> None:
    """Drive one role in this thread, or each of several in a thread of its own, until a stop command."""
    if len(roles) == 1:
        return drive(roles[0], line, spin, rhythm)
    sys.setswitchinterval(SWITCH_SECONDS)
    shared = SharedLine(line, len(roles))
    threads = [RoleThread(role, shared, rhythm) for role in roles]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        readable([line.fileno()], COMMAND_SECONDS)
        if shared.failed:
            raise shared.failed[0]
        for command in line.receive():
            for thread in threads:
                thread.post(command)
                if "stop" in command:  # in the order of the data flow: what one drops when it stops, the next can count
                    thread.join()
    if shared.failed:
        raise shared.failed[0]


def drive(role: Role, line: Connection, spin: float, rhythm: float, alone: bool = True) -> None:
    """Step a role; sleep only when it waits, until its port or a command wakes it. Report every `rhythm` seconds.
    `alone`: no other role is in this process."""
    next_report = next_look = 0.0  # report at once after the first progress: it shows that this incarnation works
    reported, waiter = False, Waiter(spin)
    role.metrics.usage = RoleUsage(alone, lambda: waiter.polled)
    while True:
        port = role.step()
        now = time.perf_counter()
        if port is not None:
            wake_at = next_report if role.wake_at is None else min(role.wake_at, next_report)
            role.metrics.clock.waiting(port.name)
            if waiter.wait(port, line.fileno(), max(0.0, wake_at - now)):
                next_look = 0.0
            role.metrics.clock.busy()
            now = time.perf_counter()
        if now >= next_report:
            next_report = now + rhythm
            line.send({"report": role.metrics.drain()})
        if role.finished and not reported:
            reported = True
            line.send({"report": role.metrics.drain()})
            line.send({"finished": role.name})
        if now >= next_look:
            next_look = now + COMMAND_SECONDS
            if not all(_obey(command, role, line) for command in line.receive()):
                role.close()
                role.account.close()
                line.send({"report": role.metrics.drain()})
                return


def _obey(command: dict[str, Any], role: Role, line: Connection) -> bool:
    """Carry one command out; False for `stop`."""
    if "stop" in command:
        role.over = command["stop"]
        return False
    if "save" in command:
        line.send({"report": role.metrics.drain()})  # so that the counters beside the state belong to it
        role.metrics.clock.waiting(CHECKPOINT)
        problem = save_role(role, Path(command["save"]))
        role.metrics.clock.busy()
        line.send({"saved": command["save"], "progress": role.progress(), "problem": problem})
    elif "committed" in command:
        role.committed()
    elif role.name == command["role"]:
        role.receive(command["command"], command["argument"])
    return True
