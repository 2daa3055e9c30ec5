"""One machine: a process per group of colocated roles, shared memory between them, supervised from here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

from pappus.config import SupervisionConfig
from pappus.edges.edge import Edge
from pappus.errors import RunError
from pappus.polling import allow_many_descriptors, readable
from pappus.runtimes.connections import MAX_PACKET, PacketConnection
from pappus.runtimes.controller import Controller
from pappus.runtimes.forkserver import ForkServer
from pappus.runtimes.process_limits import REMEDY
from pappus.runtimes.role_process import STACK_SIGNAL, Assignment
from pappus.runtimes.supervisor import ManagedProcess, Supervisor
from pappus.runtimes.waiting import spin_for
from pappus.telemetry.accounts import Ledger
from pappus.telemetry.processes import STOPPED, catches, process_state, usable_cores
from pappus.topologies.program import Program
from pappus.transports.memory import ABSENT, SharedBlock, anonymous_file

STACK_SECONDS = 1.0
"""For a process that hangs to write its stack."""
CROWD, GIVES_WAY = 8, 19
"""With so many processes for each core, those that step envs are as nice as can be: hundreds of them would leave hardly
anything to the learner, to the fork server and to whoever has to hear a signal."""
SHARED_PACKAGES = (
    "gymnasium", "numpy.random", "pappus.algorithms", "pappus.edges", "pappus.envs", "pappus.networks", "pappus.ops",
    "pappus.recording", "pappus.replay", "pappus.roles", "pappus.topologies",
)
"""What the main process has loaded of these, the roles need as well. They start no threads, which no fork survives."""


class LocalRuntime(Supervisor):
    """Starts the processes, receives their messages, restarts processes that may die, and cleans up."""

    most_coming = 16  # the fork server makes one at a time, and one that is restarted must not wait for hundreds

    def __init__(
        self, program: Program, controller: Controller, supervision: SupervisionConfig, incarnation: int = 0,
        trace: Path | None = None,
    ) -> None:
        """`trace` is the folder of what the roles meet at their ports, if that is written down."""
        super().__init__(program, controller, supervision, incarnation)
        self._trace = trace
        allow_many_descriptors()
        self._blocks = {name: edge.new_block(SharedBlock.create) for name, edge in program.edges.items()}
        self._rows = {spec.name: i for i, spec in enumerate(program.roles)}
        self._accounts = SharedBlock.create(Ledger.footprint(len(self._rows)), 0)
        self.ledger = Ledger(self._rows, self._accounts.memory)
        self._server = ForkServer.started()
        self._server.prepare([name for name in sys.modules if name.startswith(SHARED_PACKAGES)])
        self._idle = False
        """Whether the fork server has nothing left of this run."""
        self._fault_logs: dict[str, int] = {}
        """Files that faulthandler writes to when a process crashes."""
        self._read: dict[str, int] = {}
        """Bytes of these that were told already."""

    def _start(self, process: ManagedProcess) -> None:
        edges, blocks = self._edges_of(process), self._blocks
        descriptors = {name: self._descriptors(process, edge) for name, edge in edges.items()}
        line, fault_log = self._open_line(process), self._open_fault_log(process)
        ends = [fd for fds in descriptors.values() for fd in fds if fd != ABSENT]
        given = dict.fromkeys([line, fault_log, *self._accounts.descriptors, *ends])
        positions = {fd: i for i, fd in enumerate(given)} | {ABSENT: ABSENT}
        assignment = Assignment(
            group=process.group, specs=process.specs, edges=list(edges.values()),
            blocks={name: (blocks[name].nbytes, [positions[fd] for fd in fds]) for name, fds in descriptors.items()},
            incarnation=self._incarnation + process.incarnation, seed=self._program.seed,
            checkpoint=self._newest_checkpoint(), threads=1, spin=spin_for(len(self._processes), usable_cores()),
            rhythm=process.heartbeats.rhythm, niceness=self._niceness(process), trace=self._trace,
            rows={spec.name: self._rows[spec.name] for spec in process.specs},
        )
        # classes and functions of the user's own script travel by value, so the script is not run again
        payload = cloudpickle.dumps((sys.path, os.getcwd(), cloudpickle.dumps(assignment)))
        self._server.request(process.group, payload, list(given))
        os.close(line)

    def _niceness(self, process: ManagedProcess) -> int:
        crowded = len(self._processes) > CROWD * usable_cores()
        return GIVES_WAY if crowded and process.steps_envs else 0

    def _descriptors(self, process: ManagedProcess, edge: Edge) -> list[int]:
        """Those of an edge's block, without the notifiers that the process does not use."""
        ends = [end for spec in process.specs for end in spec.ends() if end.edge == edge.name]
        return self._blocks[edge.name].descriptors_of({number for end in ends for number in edge.notifiers(end)})

    def _open_line(self, process: ManagedProcess) -> int:
        """A new connection; the process's end is returned."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET)
        self._begin(process, PacketConnection(ours))
        return theirs.detach()

    def _open_fault_log(self, process: ManagedProcess) -> int:
        self._close_fault_log(process)
        self._fault_logs[process.group] = anonymous_file()
        return self._fault_logs[process.group]

    def _close_fault_log(self, process: ManagedProcess) -> None:
        self._read.pop(process.group, None)
        descriptor = self._fault_logs.pop(process.group, None)
        if descriptor is not None:
            os.close(descriptor)

    def _listen(self, seconds: float) -> None:
        lines = {process.line.fileno(): process for process in self._processes.values() if process.line is not None}
        server = self._server.socket.fileno()
        ready = readable([server, *lines], seconds)
        for line in ready:
            if line in lines:
                self._hear(lines[line])
        if server in ready:
            for answer in self._server.answers():
                self._server_says(answer)

    def _server_says(self, answer: dict[str, Any]) -> None:
        if answer.get("closed"):
            raise RunError("the fork server died; nothing can be restarted")
        process = self._processes[answer["id"]]
        if "failed" in answer:
            running = sum(one.pid is not None for one in self._processes.values())
            why = f"{process.group} cannot be started beside {running} processes: {answer['failed']}"
            raise RunError(f"{why}; {REMEDY}")
        if "pid" in answer:
            self._came(process, answer["pid"])
        else:
            self._hear(process)
            status = answer["status"]
            how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            self._died(process, process.notice(how, self._fault_text(process)), process.essential)

    def state(self, process: ManagedProcess) -> str:
        return "" if process.pid is None else process_state(process.pid)

    def ask_for_stack(self, process: ManagedProcess) -> float:
        if process.pid is None or self.state(process) == STOPPED:
            os.write(self._fault_logs[process.group], b"it does not run: a signal has stopped it")
            return 0.0
        if not catches(process.pid, STACK_SIGNAL):  # it has hardly begun: the signal would end it
            return 0.0
        self._send_signal(process, STACK_SIGNAL)
        return STACK_SECONDS

    def stack(self, process: ManagedProcess) -> str:
        text = self._fault_text(process)
        self._read[process.group] = os.fstat(self._fault_logs[process.group]).st_size
        return text

    def _kill(self, process: ManagedProcess) -> None:
        self._send_signal(process, signal.SIGKILL)

    @staticmethod
    def _send_signal(process: ManagedProcess, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it died meanwhile, and the fork server will say so
            if process.pid is not None:
                os.kill(process.pid, number)

    def _fault_text(self, process: ManagedProcess) -> str:
        """What faulthandler has written since the last stack was told."""
        descriptor, told = self._fault_logs.get(process.group), self._read.get(process.group, 0)
        if descriptor is None:
            return ""
        return os.pread(descriptor, MAX_PACKET, told).decode(errors="replace").strip()

    def _stop(self) -> None:
        """Ask all processes to stop and receive last reports. The fork server kills those that miss the deadline."""
        deadline = time.monotonic() + self._supervision.stop_seconds
        for stopped in self._in_order():
            for process in stopped:
                process.send({"stop": self._controller.over})
            if not self._await_end({process.group for process in stopped if process.pid is not None}, deadline):
                return
            for process in stopped:
                self._hear(process)
                if process.failure:
                    details = process.failure.get("died", "").rstrip()
                    self._controller.event(f"{process.group} failed while it stopped\n{details}", process.group)
        self._idle = not self._coming()

    def _await_end(self, running: set[str], deadline: float) -> bool:
        while running and time.monotonic() < deadline:
            if readable([self._server.socket.fileno()], max(0.0, deadline - time.monotonic())):
                answers = self._server.answers()
                running -= {answer.get("id") for answer in answers if "status" in answer or "closed" in answer}
                if any("closed" in answer for answer in answers):
                    return False
        return not running

    def _clean_up(self) -> None:
        self._server.release(self._idle, self._supervision.stop_seconds)
        for process in self._processes.values():
            process.close()
            self._close_fault_log(process)
        for block in (self._accounts, *self._blocks.values()):
            block.close()
