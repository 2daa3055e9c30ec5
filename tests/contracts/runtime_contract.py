"""What every runtime must do with any program. Subclasses provide `run(program, controller)`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.core import Sink, Source, Waitable, WeightsReader, WeightsWriter
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import PappusError
from pappus.kinds import RoleKind
from pappus.roles.role import IDLE, Role
from pappus.topologies.program import Program
from tests.contracts.queue_contract import SPEC

ITEMS = 50
PRODUCER, CONSUMER = RoleKind("producer"), RoleKind("consumer")


class Producer(Role):
    """Sends its index as often as it is asked to, together with the newest weights."""

    def __init__(self, name: str, incarnation: int, sink: Sink, weights: WeightsReader, index: int) -> None:
        super().__init__(name)
        self._sink, self._weights, self._index = sink, weights, index
        self._flat = np.zeros(4, np.float32)

    def step(self) -> Waitable | None:
        if self._weights.version() < 0:
            return self._weights
        slot = self._sink.acquire()
        if slot is None:
            return self._sink
        slot.version[:] = self._weights.read(self._flat)
        slot.reward[:] = self._index
        slot.discount[:] = self._flat[0]
        self._sink.commit()
        self.metrics.count("sent")
        return None


class Consumer(Role):
    """Takes two items at a time, publishes a version for each batch, and is done after `ITEMS`."""

    def __init__(self, name: str, incarnation: int, source: Source, weights: WeightsWriter) -> None:
        super().__init__(name)
        self._source, self._weights, self._count = source, weights, 0
        weights.publish(np.zeros(4, np.float32), 0)

    def step(self) -> Waitable | None:
        if self.finished:
            return IDLE
        slots = self._source.take(2)
        if slots is None:
            return self._source
        for slot in slots:
            assert slot.discount[0, 0] == slot.version[0, 0], "weights and their version belong together"
            self.metrics.count(f"from {int(slot.reward[0, 0])}")
        self._source.release()
        self._count += 2
        self._weights.publish(np.full(4, self._count // 2, np.float32), self._count // 2)
        self.finished = self._count >= ITEMS
        return None

    def save(self) -> Any:
        return {"count": self._count}

    def load(self, state: Any) -> None:
        self._count = state["count"]


class Failing(Role):
    """Raises at once."""

    def __init__(self, name: str, incarnation: int) -> None:
        super().__init__(name)

    def step(self) -> Waitable | None:
        raise ArithmeticError("this role cannot count")


def program(producers: int = 2) -> Program:
    made = Program("toy")
    queue = made.connect(QueueEdge("items", SPEC, producers, 2))
    weights = made.connect(WeightsEdge("weights", 4))
    for i in range(producers):
        made.add(PRODUCER, Producer, index=i, sink=queue.sink(i), weights=weights.reader())
    made.add(CONSUMER, Consumer, essential=True, source=queue.source(), weights=weights.writer())
    return made


class FakeController:
    """Counts what is reported and ends the run with the role called `consumer`."""

    finishing = False
    over = ""

    def __init__(self, save_into: Path | None = None) -> None:
        self.counts: dict[str, float] = {}
        self.events: list[str] = []
        self.faults: list[tuple[str, str]] = []
        self.pids: dict[str, list[int]] = {}
        self.is_over = False
        self.stall = ""
        self.saved_in: Path | None = None
        self._save_into = save_into
        self._controls: Any = None

    def started(self, controls: Any) -> None:
        self._controls = controls

    def report(self, report: Any) -> None:
        for name, count in report["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + count

    def event(self, text: str, role: str = "") -> None:
        self.events.append(f"{role}: {text}")

    def stalls(self, sentence: str) -> None:
        self.stall = sentence

    def moves_again(self, seconds: float) -> None: ...

    def continued(self, afresh: str = "") -> None:
        self.event("resumed")

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        self.pids.setdefault(role, []).append(pid)

    def role_restarted(self, role: str) -> None: ...

    def role_failed(self, role: str, what: str) -> None:
        self.faults.append((role, what))

    def save_failed(self, reason: str) -> None: ...

    def rewind(self, steps: int, updates: int) -> None: ...

    def role_measured(self, role: str, memory: int, cpu: float) -> None: ...

    def role_finished(self, role: str) -> None:
        if role != "consumer":
            return
        if self._save_into is None or self.saved_in is not None:
            self.is_over = True
        elif not self.finishing:
            self.finishing = True
            self._controls.save(self._save_into)

    def saved(self, directory: Path, progress: object = None, about: object = None) -> None:
        self.saved_in = directory
        self.is_over = True

    def interrupt(self) -> None:
        self.is_over = True

    def overdue(self) -> bool:
        return False

    def decide(self) -> bool:
        return self.is_over


class Endless(FakeController):
    """Waits for the error that must come."""

    def decide(self) -> bool:
        return False


class RuntimeContract:
    def run(self, made: Program, controller: Any, checkpoint: Path | None = None) -> None:
        raise NotImplementedError

    def test_items_of_all_producers_arrive_with_the_weights_they_were_made_with(self) -> None:
        controller = FakeController()
        self.run(program(), controller)
        assert controller.counts.get("from 0", 0) + controller.counts.get("from 1", 0) == ITEMS

    def test_roles_of_one_group_share_a_place(self) -> None:
        made = program(1)
        made.roles = [replace(spec, group="all") for spec in made.roles]
        controller = FakeController()
        self.run(made, controller)
        assert controller.counts["from 0"] == ITEMS

    def test_a_role_that_raises_ends_the_run_with_its_traceback(self) -> None:
        made = program(1)
        made.add(RoleKind("failing"), Failing, essential=True)
        with pytest.raises((PappusError, ArithmeticError), match="this role cannot count"):
            self.run(made, Endless())

    def test_state_is_saved_on_command_and_loaded_on_resume(self, tmp_path: Path) -> None:
        controller = FakeController(save_into=tmp_path)
        self.run(program(1), controller)
        assert controller.saved_in == tmp_path and (tmp_path / "consumer.safetensors").exists()
        again = FakeController()
        self.run(program(1), again, tmp_path)
        assert again.counts.get("from 0", 0) <= 4, "a consumer that was done when it was saved has little left to do"
