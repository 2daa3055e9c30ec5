"""One machine: a process per group of colocated roles, shared memory between them, supervised from here."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any

import cloudpickle

from pappus.config import SupervisionConfig
from pappus.errors import RunError, UserError
from pappus.runtimes.connections import MAX_PACKET, PacketConnection
from pappus.runtimes.controller import Controller
from pappus.runtimes.forkserver import MAX_DESCRIPTORS, ForkServer
from pappus.runtimes.role_process import Assignment
from pappus.runtimes.supervisor import ManagedProcess, Supervisor
from pappus.runtimes.waiting import spin_for
from pappus.telemetry.processes import usable_cores
from pappus.topologies.program import Program
from pappus.transports.memory import SharedBlock, anonymous_file


class LocalRuntime(Supervisor):
    """Starts the workers, receives their messages, restarts workers that may die, and cleans up."""

    def __init__(
        self, program: Program, controller: Controller, supervision: SupervisionConfig, incarnation: int = 0
    ) -> None:
        super().__init__(program, controller, supervision, incarnation)
        self._blocks = {name: edge.new_block(SharedBlock.create) for name, edge in program.edges.items()}
        self._server = ForkServer.started()
        self._fault_logs: dict[str, int] = {}
        """Files that faulthandler writes to when a worker crashes."""

    def _start(self, worker: ManagedProcess) -> None:
        edges = self._edges_of(worker)
        blocks = {name: self._blocks[name] for name in edges}
        line, fault_log = self._open_line(worker), self._open_fault_log(worker)
        unique = dict.fromkeys([line, fault_log, *(fd for block in blocks.values() for fd in block.descriptors)])
        positions = {fd: i for i, fd in enumerate(unique)}
        if len(unique) > MAX_DESCRIPTORS:
            raise UserError(
                f"{worker.group} would share {len(unique)} descriptors, and the system passes at most "
                f"{MAX_DESCRIPTORS}; use fewer --actors with more --envs-per-actor"
            )
        assignment = Assignment(
            group=worker.group, specs=worker.specs, edges=list(edges.values()),
            blocks={
                name: (block.nbytes, [positions[fd] for fd in block.descriptors]) for name, block in blocks.items()
            },
            incarnation=self._incarnation + worker.incarnation, seed=self._program.seed,
            checkpoint=self._checkpoint, threads=1, spin=spin_for(len(self._workers), usable_cores()),
        )
        # classes and functions of the user's own script travel by value, so the script is not run again
        payload = cloudpickle.dumps((sys.path, os.getcwd(), cloudpickle.dumps(assignment)))
        self._server.request(worker.group, payload, list(unique))
        os.close(line)

    def _open_line(self, worker: ManagedProcess) -> int:
        """A new connection; the worker's end is returned."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET)
        self._begin(worker, PacketConnection(ours))
        return theirs.detach()

    def _open_fault_log(self, worker: ManagedProcess) -> int:
        self._close_fault_log(worker)
        self._fault_logs[worker.group] = anonymous_file()
        return self._fault_logs[worker.group]

    def _close_fault_log(self, worker: ManagedProcess) -> None:
        descriptor = self._fault_logs.pop(worker.group, None)
        if descriptor is not None:
            os.close(descriptor)

    def _listen(self, seconds: float) -> None:
        lines = {worker.line: worker for worker in self._workers.values() if worker.line is not None}
        watched: list[Any] = [self._server.socket, *lines]
        ready, _, _ = select.select(watched, [], [], seconds)
        for line, worker in lines.items():
            if line in ready:
                self._hear(worker)
        if self._server.socket in ready:
            for answer in self._server.answers():
                self._server_says(answer)

    def _server_says(self, answer: dict[str, Any]) -> None:
        if answer.get("closed"):
            raise RunError("the process that starts workers died; nothing can be restarted")
        worker = self._workers[answer["id"]]
        if "pid" in answer:
            self._came(worker, answer["pid"])
        else:
            self._hear(worker)
            status = answer["status"]
            how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            self._died(worker, worker.notice(how, self._fault_text(worker)), worker.essential)

    def _fault_text(self, worker: ManagedProcess) -> str:
        descriptor = self._fault_logs.get(worker.group)
        return "" if descriptor is None else os.pread(descriptor, MAX_PACKET, 0).decode(errors="replace").strip()

    def _stop(self) -> None:
        """Ask all workers to stop and receive last reports. The fork server kills those that miss the deadline."""
        deadline = time.monotonic() + self._supervision.stop_seconds
        for stopped in self._in_order():
            for worker in stopped:
                worker.send({"stop": True})
            if not self._await_end({worker.group for worker in stopped if worker.pid is not None}, deadline):
                return
            for worker in stopped:
                self._hear(worker)

    def _await_end(self, running: set[str], deadline: float) -> bool:
        while running and time.monotonic() < deadline:
            if select.select([self._server.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                answers = self._server.answers()
                running -= {answer.get("id") for answer in answers if "status" in answer or "closed" in answer}
                if any("closed" in answer for answer in answers):
                    return False
        return not running

    def _clean_up(self) -> None:
        self._server.close(self._supervision.stop_seconds)
        for worker in self._workers.values():
            worker.close()
            self._close_fault_log(worker)
        for block in self._blocks.values():
            block.close()
