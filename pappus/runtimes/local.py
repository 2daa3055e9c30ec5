"""One machine: a process per group of colocated roles, shared memory between them, supervised from here."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Any

from pappus.config import SupervisionConfig
from pappus.errors import RunError, UserError
from pappus.runtimes.conductor import FRESH_START, Conductor, interrupts
from pappus.runtimes.forkserver import MAX_DESCRIPTORS, ForkServer
from pappus.runtimes.supervision import Worker, death_notice, essential_death
from pappus.runtimes.waiting import spin_for
from pappus.runtimes.wiring import Wiring, footprint
from pappus.runtimes.worker import Assignment, pack
from pappus.telemetry.processes import usable_cores
from pappus.topologies.program import Program
from pappus.transports.memory import SharedBlock

TICK_SECONDS = 0.1
SAVE_SECONDS = 900.0
"""A checkpoint that is not written after so long never will be; large tables take minutes."""


class LocalRuntime:
    """Starts the workers, listens to them, restarts those that may die, and leaves nothing behind."""

    def __init__(
        self, program: Program, conductor: Conductor, supervision: SupervisionConfig, incarnation: int = 0
    ) -> None:
        self._program, self._conductor, self._supervision = program, conductor, supervision
        self._incarnation = incarnation
        self._blocks = {edge.name: SharedBlock.create(*footprint(edge)) for edge in program.edges.values()}
        Wiring(program.edges.values(), self._blocks).poison()
        self._server = ForkServer.started()
        self._workers: dict[str, Worker] = {}
        self._checkpoint: Path | None = None
        self._saving: tuple[Path, set[str], float] | None = None
        self._progress: tuple[int, int] | None = None
        """Steps and updates of the state that was saved last: the run goes on while others still write."""

    def run(self, checkpoint: Path | None = None) -> None:
        """Supervise until the conductor says that the run is over."""
        self._checkpoint = checkpoint
        if checkpoint is not None:
            self._conductor.event(FRESH_START)
        try:
            with interrupts(self._conductor):
                for group, nodes in self._program.groups().items():
                    self._workers[group] = Worker(group, nodes)
                    self._start(self._workers[group])
                self._conductor.started(self)
                while not self._conductor.decide():
                    self._listen(TICK_SECONDS)
                    self._restart_due()
                self._stop()
        finally:
            self._server.close(self._supervision.stop_seconds)
            for worker in self._workers.values():
                worker.close()
            for block in self._blocks.values():
                block.close()

    def command(self, role: str, command: str, argument: int) -> bool:
        """Send a command to a role; one that is being restarted will be told by the conductor when it is back."""
        for worker in self._workers.values():
            if any(node.name == role for node in worker.nodes):
                worker.send({"role": role, "command": command, "argument": argument})
                return True
        return False

    def save(self, directory: Path) -> None:
        """Have the roles write their state that begin with it; the others start afresh anyway."""
        asked = {worker.group for worker in self._workers.values() if worker.saved}
        self._saving = (directory, asked, time.monotonic() + SAVE_SECONDS)
        for group in asked:
            self._workers[group].send({"save": str(directory)})

    def _start(self, worker: Worker) -> None:
        edges = [self._program.edges[end.edge] for node in worker.nodes for end in node.ends()]
        blocks = {edge.name: self._blocks[edge.name] for edge in edges}
        line, fault_log = worker.open()
        unique = dict.fromkeys([line, fault_log, *(fd for block in blocks.values() for fd in block.descriptors)])
        positions = {fd: i for i, fd in enumerate(unique)}
        if len(unique) > MAX_DESCRIPTORS:
            raise UserError(
                f"{worker.group} would share {len(unique)} descriptors, and the system passes at most "
                f"{MAX_DESCRIPTORS}; use fewer --actors with more --envs-per-actor"
            )
        assignment = Assignment(
            group=worker.group, nodes=worker.nodes, edges=list({edge.name: edge for edge in edges}.values()),
            block_sizes={name: block.nbytes for name, block in blocks.items()},
            block_descriptors={name: [positions[fd] for fd in block.descriptors] for name, block in blocks.items()},
            incarnation=self._incarnation + worker.incarnation, seed=self._program.seed,
            checkpoint=self._checkpoint, threads=1, spin=spin_for(len(self._program.groups()), usable_cores()),
        )
        self._server.request(worker.group, pack(assignment), list(unique))
        os.close(line)

    def _listen(self, seconds: float) -> None:
        lines = {worker.line: worker for worker in self._workers.values() if worker.line is not None}
        ready, _, _ = select.select([self._server.socket, *lines], [], [], seconds)
        for line, worker in lines.items():
            if line in ready:
                self._hear(worker)
        if self._server.socket in ready:
            for answer in self._server.answers():
                self._server_says(answer)
        if self._saving is not None and time.monotonic() > self._saving[2]:
            raise RunError(f"{', '.join(self._saving[1])} did not write a checkpoint within {SAVE_SECONDS:.0f} s")

    def _hear(self, worker: Worker) -> None:
        for message in worker.receive():
            if "report" in message:
                worker.note_progress(message["report"])
                self._conductor.report(message["report"])
            elif "finished" in message:
                self._conductor.role_finished(message["finished"])
            elif "saved" in message and self._saving is not None:
                self._progress = message["progress"] or self._progress
                self._note_saved(worker.group, Path(message["saved"]))
            elif "died" in message:
                worker.last_words = message

    def _note_saved(self, group: str, directory: Path) -> None:
        assert self._saving is not None
        expected, waiting, _ = self._saving
        if directory == expected:
            waiting.discard(group)
            if not waiting:
                self._saving = None
                self._checkpoint = self._conductor.saved(directory, self._progress)

    def _server_says(self, answer: dict[str, Any]) -> None:
        if answer.get("closed"):
            raise RunError("the process that starts workers died; nothing can be restarted")
        worker = self._workers[answer["id"]]
        if "pid" in answer:
            worker.pid = answer["pid"]
            for node in worker.nodes:
                self._conductor.role_started(node.name, answer["pid"])
                if worker.incarnation:
                    self._conductor.role_restarted(node.name)
        else:
            self._hear(worker)
            self._died(worker, answer["status"])

    def _died(self, worker: Worker, status: int) -> None:
        notice = death_notice(worker, status)
        if worker.essential or worker.beyond_help:
            raise essential_death(worker, notice)
        delay = worker.bury(notice)
        if worker.deaths_in_a_row > self._supervision.max_deaths_in_a_row:
            raise essential_death(worker, worker.first_notice)
        first_line, _, details = notice.partition("\n")
        self._conductor.event(f"{first_line}; restarting\n{details}".rstrip(), worker.group)
        worker.restart_at = time.monotonic() + delay

    def _restart_due(self) -> None:
        for worker in self._workers.values():
            if worker.restart_at is not None and time.monotonic() >= worker.restart_at:
                worker.restart_at = None
                worker.incarnation += 1
                self._start(worker)
                if self._saving is not None and worker.group in self._saving[1]:  # its predecessor was asked, and died
                    worker.send({"save": str(self._saving[0])})

    def _stop(self) -> None:
        """Ask all workers to stop, those who feed others first, and give them a deadline; the server kills who misses
        it. What they still have to say is heard."""
        deadline = time.monotonic() + self._supervision.stop_seconds
        for essential in (False, True):
            stopped = [worker for worker in self._workers.values() if worker.essential is essential]
            for worker in stopped:
                worker.send({"stop": True})
            if not self._await_end({worker.group for worker in stopped if worker.pid is not None}, deadline):
                return
            for worker in stopped:
                self._hear(worker)

    def _await_end(self, running: set[str], deadline: float) -> bool:
        """Whether all of them ended in time."""
        while running and time.monotonic() < deadline:
            if select.select([self._server.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                answers = self._server.answers()
                running -= {answer.get("id") for answer in answers if "status" in answer or "closed" in answer}
                if any("closed" in answer for answer in answers):
                    return False
        return not running
