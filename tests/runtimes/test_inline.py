from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import DeadlockError
from pappus.roles.role import IDLE, Idle, Role
from pappus.runtimes.inline import ROUNDS_PER_REPORT, InlineRuntime
from pappus.topologies.program import Program
from pappus.transports.memory import CountingNotifier
from tests.contracts.queue_contract import SPEC
from tests.contracts.runtime_contract import CONSUMER, PRODUCER, Consumer, FakeController, Producer, RuntimeContract


class TestInlineRuntime(RuntimeContract):
    def run(self, made: Program, controller: Any, checkpoint: Path | None = None) -> None:
        InlineRuntime(made, controller).run(checkpoint)


def test_a_deadlock_is_found_and_says_who_waits_for_what() -> None:
    made = Program("deadlock")
    queue = made.connect(QueueEdge("items", SPEC, producers=1, capacity=1))
    weights = made.connect(WeightsEdge("weights", 4))
    made.add(PRODUCER, Producer, index=0, sink=queue.sink(0), weights=weights.reader())
    made.add(CONSUMER, Consumer, source=queue.source(), weights=weights.writer())  # takes two, the queue holds one
    with pytest.raises(DeadlockError) as caught:
        InlineRuntime(made, FakeController()).run()  # type: ignore[arg-type]
    assert str(caught.value) == (
        "no role can continue: producer-0 waits for items slots (all 1 slots are full); "
        "consumer waits for items (1 of 2 unrolls are ready)"
    )


class Sleepy(Role):
    """Counts how often it is stepped, and always waits."""

    def __init__(self, name: str, incarnation: int, port: Any, steps: list[str]) -> None:
        super().__init__(name)
        self._port, self._steps = port, steps

    def step(self) -> Any:
        self._steps.append(self.name)
        return self._port


def sleepers(**ports: Any) -> tuple[InlineRuntime, list[str]]:
    """A runtime whose roles wait for these ports, and the names of those that are stepped."""
    steps: list[str] = []
    runtime = InlineRuntime(Program("sleepers"), FakeController())  # type: ignore[arg-type]
    runtime.roles = {name: Sleepy(name, 0, port, steps) for name, port in ports.items()}
    return runtime, steps


def test_a_role_that_waits_for_a_notifier_is_stepped_again_when_it_rings() -> None:
    port, notifier = Idle(), CountingNotifier()
    port.notifier = notifier  # type: ignore[assignment]
    runtime, steps = sleepers(listens=port, idle=IDLE)
    for _ in range(3):
        assert runtime._round() == {"listens": port, "idle": IDLE}, "who sleeps still waits"
    assert steps == ["listens", "idle"]
    notifier.notify()
    for _ in range(3):
        runtime._round()
    assert steps == ["listens", "idle", "listens"]


def test_a_command_wakes_who_sleeps() -> None:
    runtime, steps = sleepers(idle=IDLE)
    runtime.roles["idle"].receive = lambda command, argument: None  # type: ignore[method-assign]
    for _ in range(3):
        runtime._round()
    assert len(steps) == 1
    runtime.command("idle", "evaluate", 3)
    runtime._round()
    assert len(steps) == 2


def test_a_role_that_sets_an_alarm_does_not_sleep() -> None:
    runtime, steps = sleepers(awake=IDLE)
    runtime.roles["awake"].wake_at = 1.0
    for _ in range(3):
        runtime._round()
    assert len(steps) == 3


class Busy(Sleepy):
    """Never waits; rings its notifier at every third step."""

    def step(self) -> Any:
        super().step()
        if len([name for name in self._steps if name == self.name]) % 3 == 0:
            self._port.notify()


def test_who_alone_is_awake_takes_as_many_turns_as_it_would_in_rounds_of_all() -> None:
    port, notifier = Idle(), CountingNotifier()
    port.notifier = notifier  # type: ignore[assignment]
    runtime, steps = sleepers(first=port, idle=IDLE, last=port)
    runtime.roles = {"first": runtime.roles["first"], "busy": Busy("busy", 0, notifier, steps), **runtime.roles}
    runtime._round()
    assert steps == ["first", "busy", "idle", "last"], "nobody slept when it was asked"
    runtime._round()
    assert steps[4:] == ["busy", "busy", "last"], "the ring of the third step is heard at once by who comes after it"
    assert runtime._rounds == 3
    runtime._round()
    assert steps[7:] == ["first", "busy", "busy", "busy", "last"], "and by who comes before it in the next round"
    assert runtime._rounds == 6


def test_who_alone_is_awake_lets_the_controller_decide_as_often_as_ever() -> None:
    runtime, steps = sleepers(idle=IDLE)
    runtime.roles["busy"] = Busy("busy", 0, CountingNotifier(), steps)
    while len(steps) < 1 + 3 * ROUNDS_PER_REPORT:
        runtime._round()
        assert runtime._rounds == len(steps) - 1, "each of its turns counts as a round"
    assert runtime._rounds == 3 * ROUNDS_PER_REPORT


def test_who_has_finished_is_not_stepped_on() -> None:
    runtime, steps = sleepers(idle=IDLE)
    runtime.roles["busy"] = Busy("busy", 0, CountingNotifier(), steps)
    runtime.roles["busy"].finished = True
    runtime._round()
    assert steps == ["idle", "busy"]
