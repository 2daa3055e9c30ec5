"""One thread, fixed round-robin: deterministic to the bit, easy to debug, and it finds deadlocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pappus.accelerator import one_thread
from pappus.config import SupervisionConfig
from pappus.core import Waitable
from pappus.errors import DeadlockError, StorageError
from pappus.layout import Layout
from pappus.roles.role import Role
from pappus.runtimes.controller import Controller
from pappus.runtimes.inline_watch import InlineWatch
from pappus.runtimes.interrupts import interrupts
from pappus.runtimes.turn_reports import TurnReports
from pappus.runtimes.wiring import Wiring
from pappus.telemetry.accounts import Ledger
from pappus.telemetry.checkpoint import (
    AFRESH,
    HASHES,
    MANIFEST,
    ROUNDS,
    load_state,
    read_manifest,
    run_directory,
    save_state,
)
from pappus.telemetry.metrics import CHECKPOINT
from pappus.telemetry.state_digest import digest
from pappus.topologies.program import Program
from pappus.transports.memory import HeapBlock
from pappus.types import Array, Nest

ROUNDS_PER_REPORT = 64
EDGES = "edges"
"""Name of the state that is not of a role: what lies in queues and other memory of edges."""
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
        """Turns that all roles have had since the run began, checkpoints included."""
        self._until: int | None = None
        self._reports = TurnReports(controller.report)
        self._looks = False
        """Whether the controller decides as soon as no role is busy."""

    def run(self, checkpoint: Path | None = None, until: int | None = None) -> None:
        """`until`: interrupt the run after so many rounds since it began."""
        self._until = until
        watch = InlineWatch(self._controller, self._supervision.stall_seconds, lambda: self._rounds)
        with one_thread(), interrupts(self._controller, self._supervision, watch.look):
            try:
                self.roles = {spec.name: self._wiring.build(spec, self._incarnation) for spec in self._specs}
                trains = [self.roles[spec.name] for spec in self._specs if spec.kind.trains]
                watch.begin(list(self.roles.values()), trains)
                if checkpoint is not None:
                    self._load(checkpoint)
                self._controller.started(self)
                self._loop()
            finally:
                for role in self.roles.values():  # in the order of the data flow: what one drops, a later one counts
                    role.over = self._controller.over
                    role.close()
                    role.account.close()
                self._reports.send(self.roles, whole=True)

    def _loop(self) -> None:
        self._reports.begin()
        waiting, asked = self._round(), False
        while True:
            stuck, ended = len(waiting) == len(self._turns()), self._ended()
            self._looks = self._looks or bool(ended) or self._is_due(self._rounds)
            if stuck or (self._looks and not any(role.busy for role in self.roles.values())):
                self._looks = False
                if self._until is not None and self._rounds >= self._until:
                    self._controller.interrupt()
                self._reports.send(self.roles, whole=bool(ended))
                for name in ended:
                    self._controller.role_finished(name)
                self._commanded = False
                if self._controller.decide():
                    return
                if stuck and not self._commanded and not self._controller.finishing:
                    clauses = (f"{role} waits for {port.name} ({port.explain()})" for role, port in waiting.items())
                    raise DeadlockError("no role can continue: " + "; ".join(clauses))
                asked = not self._controller.finishing and bool(self._ended())
            if not asked:  # who was asked to finish ends the run on this round, in which all had their turn
                waiting = self._round()

    def _ended(self) -> list[str]:
        return [role.name for role in self.roles.values() if role.finished]

    def _is_due(self, rounds: int) -> bool:
        """Whether the controller decides after so many rounds."""
        return rounds % ROUNDS_PER_REPORT == 0 or rounds == self._until

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
            if port is not None or role.finished or self._is_due(self._rounds + 1):
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
        self._reports.send(self.roles, whole=True)  # so that the counters beside the state belong to it
        stateful = [role for role in self.roles.values() if role.stateful]
        try:
            for role in stateful:
                role.stored_in(run_directory(directory))
            states: dict[str, Any] = {role.name: _saved(role) for role in stateful}
            afresh = [f"{name}: {self.roles[name].afresh}" for name, state in states.items() if state is None]
            if not afresh:  # queues can be resumed only with all roles that write and read them
                states[EDGES] = {name: block.memory for name, block in self._blocks.items()}
            about = self._about(states, afresh)
            if not afresh:
                states[EDGES] |= {ACCOUNTS: self.ledger.memory}  # of a part of the run: it does not count for the hash
            for name, state in states.items():
                if state is not None:
                    save_state(directory, name, state, self._layout_of(name))
        except (StorageError, OSError) as error:
            return self._controller.save_failed(str(error))
        if self._controller.saved(directory, about=about) is not None:
            for role in stateful:
                role.committed()

    def _layout_of(self, name: str) -> Layout:
        return self.roles[name].layout if name in self.roles else ()

    def _about(self, states: Mapping[str, Any], afresh: Sequence[str]) -> dict[str, Any]:
        """What the checkpoint says of it: how far it is, its hashes, and why it cannot be continued exactly."""
        hashes = {name: digest(state) for name, state in states.items() if state is not None}
        return {ROUNDS: self._rounds, HASHES: hashes, AFRESH: afresh[0] if afresh else ""}

    def _load(self, checkpoint: Path) -> None:
        """First what every resumed run continues with; then, if nothing has changed, all the rest."""
        saved = {file.stem for file in checkpoint.glob("*.safetensors")}
        about = read_manifest(checkpoint)["metadata"] if (checkpoint / MANIFEST).exists() else {}
        kept = [spec for spec in self._specs if spec.begins_with in saved]
        for spec in kept:
            self._load_role(checkpoint, spec.name, spec.begins_with)
        afresh = about.get(AFRESH, "") or self._difference(checkpoint, saved)
        if not afresh:
            self._load_edges(load_state(checkpoint, EDGES))
            for spec in self._specs:
                if spec not in kept and spec.name in saved:
                    self._load_role(checkpoint, spec.name, spec.name)
        self._rounds = about.get(ROUNDS, 0)
        lost = (f"{name}: {role.lost}" for name, role in self.roles.items() if role.lost)
        self._controller.continued(afresh or next(lost, ""))

    def _load_edges(self, memories: dict[str, Array]) -> None:
        accounts = memories.pop(ACCOUNTS, None)
        for name, memory in memories.items():
            self._blocks[name].memory[:] = memory
        if accounts is not None and accounts.size == self.ledger.memory.size:
            self.ledger.memory[:] = accounts
            self.ledger.carry_over()

    def _load_role(self, checkpoint: Path, name: str, saved: str) -> None:
        role = self.roles[name]
        role.stored_in(run_directory(checkpoint))
        role.load(load_state(checkpoint, saved))

    def _difference(self, checkpoint: Path, saved: Collection[str]) -> str:
        """Why this program cannot continue a checkpoint exactly; empty if it can."""
        wanted = {name for name, role in self.roles.items() if role.stateful}
        if lost := [f"{name}: {role.lost}" for name, role in self.roles.items() if role.lost]:
            return lost[0]
        if EDGES not in saved:
            return "the checkpoint does not hold all roles"
        if others := sorted(wanted ^ (set(saved) - {EDGES})):
            return f"{others[0]} is {'not in the checkpoint' if others[0] in wanted else 'no longer in the run'}"
        sizes = {name: memory.size for name, memory in load_state(checkpoint, EDGES).items()}
        other = [name for name, block in self._blocks.items() if sizes.get(name) != block.memory.size]
        return f"{other[0]} has another size than before" if other else ""


def _saved(role: Role) -> Nest | None:
    clock = role.metrics.clock
    clock.waiting(CHECKPOINT)
    state = role.save()
    clock.waiting("its turn")
    return state
