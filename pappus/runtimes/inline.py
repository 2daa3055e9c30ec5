"""One thread, fixed round-robin: deterministic to the bit, easy to debug, and it finds deadlocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pappus.accelerator import one_thread
from pappus.config import SupervisionConfig
from pappus.core import Waitable
from pappus.errors import DeadlockError, StorageError
from pappus.roles.role import Role
from pappus.runtimes.controller import Controller
from pappus.runtimes.interrupts import interrupts
from pappus.runtimes.wiring import Wiring
from pappus.telemetry.accounts import Ledger
from pappus.telemetry.checkpoint import load_state, run_directory, save_state
from pappus.topologies.program import Program
from pappus.transports.memory import HeapBlock

ROUNDS_PER_REPORT = 64
ACCOUNTS = "accounts of steps"
"""The run's account in a checkpoint, beside the memory of edges."""


class Sleeper(NamedTuple):
    """What a role waits for, and the count of its notifier when it was stepped last."""

    port: Waitable
    notifier: Any
    heard: int


class InlineRuntime:
    """Drives all roles of a program round-robin, in the order in which the topology added them."""

    def __init__(
        self, program: Program, controller: Controller, incarnation: int = 0,
        supervision: SupervisionConfig | None = None,
    ) -> None:
        self._controller, self._incarnation = controller, incarnation
        self._supervision = supervision or SupervisionConfig()
        blocks = {name: edge.new_block(HeapBlock) for name, edge in program.edges.items()}
        rows = {spec.name: i for i, spec in enumerate(program.roles)}
        self.ledger = Ledger(rows, np.zeros(Ledger.footprint(len(rows)), np.uint8))
        self._wiring = Wiring(program.edges.values(), blocks, ledger=self.ledger)
        self._blocks = {name: block for name, block in blocks.items() if program.edges[name].saved}
        self._specs = program.roles
        self.roles: dict[str, Role] = {}
        self._with_commands: set[str] = set()
        self._commanded = False
        self._asleep: dict[str, Sleeper] = {}
        self._rounds = 0

    def run(self, checkpoint: Path | None = None) -> None:
        with one_thread(), interrupts(self._controller, self._supervision):
            try:
                self.roles = {spec.name: self._wiring.build(spec, self._incarnation) for spec in self._specs}
                if checkpoint is not None:
                    self._load(checkpoint)
                self._controller.started(self)
                self._loop()
            finally:
                for role in self.roles.values():  # in the order of the data flow: what one drops, a later one counts
                    role.close()
                    role.account.close()
                    self._controller.report(role.metrics.drain())

    def _loop(self) -> None:
        while True:
            waiting = self._round()
            stuck = len(waiting) == len(self._turns())
            ended = [role.name for role in self.roles.values() if role.finished]
            if stuck or ended or self._rounds % ROUNDS_PER_REPORT == 0:
                for role in self.roles.values():
                    self._controller.report(role.metrics.drain())
                for name in ended:
                    self._controller.role_finished(name)
                self._commanded = False
                if self._controller.decide():
                    return
                if stuck and not self._commanded and not self._controller.finishing:
                    clauses = (f"{role} waits for {port.name} ({port.explain()})" for role, port in waiting.items())
                    raise DeadlockError("no role can continue: " + "; ".join(clauses))

    def _round(self) -> dict[str, Waitable]:
        """Step every role once that does not wait for a notifier; what the waiting roles wait for."""
        waiting: dict[str, Waitable] = {}
        turns = self._turns()
        for role in turns:
            name = role.name
            sleeper = self._asleep.get(name)
            if sleeper is not None and sleeper.notifier.count == sleeper.heard:
                waiting[name] = sleeper.port
                continue
            role.metrics.clock.busy()
            self._asleep.pop(name, None)
            alone = all(other is role or other.name in self._asleep for other in turns)
            port = self._alone(role) if alone else role.step()
            role.metrics.clock.waiting(port.name if port is not None else "its turn")
            if port is not None:
                waiting[name] = port
                notifier: Any = getattr(port, "notifier", None)
                if hasattr(notifier, "count") and role.wake_at is None:
                    self._asleep[name] = Sleeper(port, notifier, notifier.count)
        self._rounds += 1
        return waiting

    def _alone(self, role: Role) -> Waitable | None:
        """Step the only role that does not sleep until it waits or another may continue; what it waits for."""
        sleepers = [(sleeper.notifier, sleeper.heard) for sleeper in self._asleep.values()]
        while True:
            port = role.step()
            if port is not None or role.finished or (self._rounds + 1) % ROUNDS_PER_REPORT == 0:
                return port
            for notifier, heard in sleepers:
                if notifier.count != heard:
                    return None
            self._rounds += 1

    def _turns(self) -> list[Role]:
        """All roles; when the run is ending only those with commands, so that training stops on a whole round."""
        if self._controller.finishing:
            return [role for role in self.roles.values() if role.name in self._with_commands]
        return list(self.roles.values())

    def command(self, role: str, command: str, argument: int) -> None:
        self._with_commands.add(role)
        self._commanded = True
        self._asleep.pop(role, None)
        self.roles[role].receive(command, argument)

    def save(self, directory: Path) -> None:
        """Write every role that can be saved, and what lies in the queues."""
        for role in self.roles.values():
            self._controller.report(role.metrics.drain())  # so that the counters beside the state belong to it
        stateful = [role for role in self.roles.values() if role.stateful]
        try:
            for role in stateful:
                role.stored_in(run_directory(directory))
            states = {role.name: role.save() for role in stateful}
            for name, state in states.items():
                if state is not None:
                    save_state(directory, name, state)
            if None not in states.values():  # queues can be resumed only with all roles that write and read them
                memories = {name: block.memory for name, block in self._blocks.items()}
                save_state(directory, "edges", {**memories, ACCOUNTS: self.ledger.memory})
        except (StorageError, OSError) as error:
            return self._controller.save_failed(str(error))
        if self._controller.saved(directory) is not None:
            for role in stateful:
                role.committed()

    def _load(self, checkpoint: Path) -> None:
        saved = {file.stem for file in checkpoint.glob("*.safetensors")}
        edges = load_state(checkpoint, "edges") if "edges" in saved else {}
        accounts = edges.pop(ACCOUNTS, None)
        sizes = {name: block.memory.size for name, block in self._blocks.items()}
        exact = saved - {"edges"} == {name for name, role in self.roles.items() if role.stateful}
        exact = exact and {name: memory.size for name, memory in edges.items()} == sizes
        for name, memory in edges.items() if exact else ():
            self._blocks[name].memory[:] = memory
        if exact and accounts is not None and accounts.size == self.ledger.memory.size:
            self.ledger.memory[:] = accounts
            self.ledger.carry_over()
        for spec in self._specs:
            name = spec.begins_with or (spec.name if exact else "")
            if name in saved:
                self.roles[spec.name].stored_in(run_directory(checkpoint))
                self.roles[spec.name].load(load_state(checkpoint, name))
        if not exact:
            self._controller.starts_afresh()
