"""An edge of a user's own is one file: here a relay, a number that one role sends and another receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pappus.config import SupervisionConfig
from pappus.core import Waitable
from pappus.edges.edge import Edge, Port, PortRef
from pappus.errors import DeadlockError, RunError
from pappus.roles.role import IDLE, Role
from pappus.runtimes.inline import InlineRuntime
from pappus.runtimes.local import LocalRuntime
from pappus.telemetry.metrics import Meter
from pappus.topologies.program import Program
from pappus.transports.memory import Block, HeapBlock, Notifier
from tests.contracts.runtime_contract import CONSUMER, PRODUCER, FakeController


@dataclass(frozen=True)
class RelayEdge(Edge):
    def memory(self) -> tuple[int, int]:
        return 8, 1

    def open(self, block: Block) -> Relay:
        return Relay(self.name, block)

    def sender(self) -> PortRef[Sender]:
        return PortRef(self.name, Relay.sender)

    def receiver(self) -> PortRef[Receiver]:
        return PortRef(self.name, Relay.receiver)


class Relay:
    def __init__(self, name: str, block: Block) -> None:
        self.name, self.number, self.notifier = name, block.memory.view(np.int64), block.notifiers[0]
        self.meter = Meter()

    def sender(self) -> Sender:
        return Sender(self)

    def receiver(self) -> Receiver:
        return Receiver(self.name, self.notifier, self.number)


class Sender:
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def send(self, number: int) -> None:
        self._relay.number[0] = number
        self._relay.meter.total += 8
        self._relay.notifier.notify()


class Receiver(Port):
    def __init__(self, name: str, notifier: Notifier, number: Any) -> None:
        super().__init__(name, notifier)
        self._number = number

    def receive(self) -> int:
        return int(self._number[0])

    def explain(self) -> str:
        return "no number was sent"


class Sends(Role):
    def __init__(self, name: str, incarnation: int, sender: Sender, number: int) -> None:
        super().__init__(name)
        self._sender, self._number = sender, number

    def step(self) -> Waitable | None:
        if not self._number:
            return IDLE
        self._sender.send(self._number)
        self.metrics.count("sent")
        self._number = 0
        return None


class Receives(Role):
    def __init__(self, name: str, incarnation: int, receiver: Receiver) -> None:
        super().__init__(name)
        self._receiver = receiver

    def step(self) -> Waitable | None:
        if not self._receiver.receive():
            return self._receiver
        if not self.finished:
            self.metrics.count("received", self._receiver.receive())
        self.finished = True
        return IDLE


def program(number: int) -> Program:
    made = Program("relay")
    relay = made.connect(RelayEdge("relay-7"))
    made.add(CONSUMER, Receives, receiver=relay.receiver())
    made.add(PRODUCER, Sends, sender=relay.sender(), number=number)
    return made


def test_it_runs_inline() -> None:
    controller = FakeController()
    InlineRuntime(program(42), controller).run()  # type: ignore[arg-type]
    assert controller.counts["received"] == 42 and controller.counts["relay_bytes"] == 8


def test_it_runs_between_processes() -> None:
    controller = FakeController()
    LocalRuntime(program(42), controller, SupervisionConfig()).run()  # type: ignore[arg-type]
    assert controller.counts["received"] == 42


def test_a_deadlock_names_its_port() -> None:
    with pytest.raises(DeadlockError, match=r"consumer waits for relay-7 \(no number was sent\)"):
        InlineRuntime(program(0), FakeController()).run()  # type: ignore[arg-type]


def test_equal_ends_are_equal_and_say_what_they_are() -> None:
    edge = RelayEdge("relay")
    assert edge.sender() == edge.sender() != edge.receiver() and str(edge.sender()) == "relay.sender()"


def test_a_cluster_says_that_it_cannot_carry_it() -> None:
    edge = RelayEdge("relay")
    assert edge.hub() is None and not edge.spokes()
    with pytest.raises(RunError, match="'relay' is a RelayEdge, which node agents do not carry"):
        edge.mirror(edge.new_block(HeapBlock), None)  # type: ignore[arg-type]
