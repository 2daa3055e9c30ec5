from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pappus.errors import DeadlockError
from pappus.runtimes.inline import InlineRuntime
from pappus.topologies.program import Program
from tests.contracts.queue_contract import SPEC
from tests.contracts.runtime_contract import Consumer, FakeConductor, Producer, RuntimeContract


class TestInlineRuntime(RuntimeContract):
    def run(self, made: Program, conductor: Any, checkpoint: Path | None = None) -> None:
        InlineRuntime(made, conductor).run(checkpoint)


def test_a_deadlock_is_found_and_says_who_waits_for_what() -> None:
    made = Program("deadlock")
    queue, weights = made.queue("items", SPEC, producers=1, capacity=1), made.weights("weights", 4)
    made.add("producer", Producer, sink=queue.sink(0), weights=weights.reader(), number=0)
    made.add("consumer", Consumer, source=queue.source(), weights=weights.writer())  # takes two, the queue holds one
    with pytest.raises(DeadlockError) as caught:
        InlineRuntime(made, FakeConductor()).run()  # type: ignore[arg-type]
    assert str(caught.value) == (
        "nobody can go on: producer waits for items slots (all 1 slots are full); "
        "consumer waits for items (1 of 2 unrolls are ready)"
    )
