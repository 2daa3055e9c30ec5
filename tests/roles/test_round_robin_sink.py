from __future__ import annotations

from pappus.edges.queue import RingQueue
from pappus.roles.round_robin_sink import RoundRobinSink
from pappus.transports.memory import HeapBlock
from tests.contracts.queue_contract import SPEC


def test_each_sink_gets_its_turn_and_the_one_that_is_full_is_waited_for() -> None:
    queues = [RingQueue("batches", SPEC, 1, 1, HeapBlock(*RingQueue.footprint(SPEC, 1, 1))) for _ in range(2)]
    sources, sink = [queue.source() for queue in queues], RoundRobinSink([queue.sink(0) for queue in queues])
    for i in range(2):
        slot = sink.acquire()
        assert slot is not None
        slot.reward[:] = i
        sink.commit()
    assert sink.acquire() is None and sink.explain() == "all 1 slots are full"
    for i, source in enumerate(sources):
        taken = source.take(1)
        assert taken is not None and taken[0].reward[0, 0] == i
    sources[1].release()
    assert sink.acquire() is None, "the first is next"
    sources[0].release()
    assert sink.acquire() is not None
