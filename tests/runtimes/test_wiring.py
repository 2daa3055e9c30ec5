"""What goes through the edges of one process is reported once, by the right role."""

from __future__ import annotations

from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.kinds import ACTOR, EVALUATOR, LEARNER
from pappus.runtimes.wiring import Wiring
from pappus.topologies.program import Program
from pappus.transports.memory import HeapBlock
from pappus.types import leaves_of
from tests.contracts.queue_contract import SPEC
from tests.contracts.runtime_contract import Consumer, Producer


def test_each_role_reports_the_weights_that_it_reads_and_the_first_one_all_that_a_queue_carries() -> None:
    made = Program("one process")
    queue = made.connect(QueueEdge("items", SPEC, producers=2, capacity=3))
    weights = made.connect(WeightsEdge("weights", 4))
    for i, kind in enumerate((ACTOR, EVALUATOR)):
        made.add(kind, Producer, index=i, sink=queue.sink(i), weights=weights.reader())
    made.add(LEARNER, Consumer, source=queue.source(), weights=weights.writer())
    wiring = Wiring(made.edges.values(), {e.name: e.new_block(HeapBlock) for e in made.edges.values()})
    actor, evaluator, _ = (wiring.build(node, 0) for node in made.roles)
    for role in (actor, evaluator, evaluator, evaluator):
        assert role.step() is None
    acted, evaluated = (role.metrics.drain()["counts"] for role in (actor, evaluator))
    assert (acted["weights_bytes"], evaluated["weights_bytes"]) == (16, 3 * 16)
    assert acted["items_bytes"] == 4 * sum(spec.nbytes for spec in leaves_of(SPEC)) and "items_bytes" not in evaluated
