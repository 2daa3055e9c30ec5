from __future__ import annotations

import numpy as np
import optree

from pappus.edges.queue import RingQueue
from pappus.recording.unrolls import BatchPacker, UnrollWriter
from pappus.transports.memory import HeapBlock
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Timestep, Unroll, unroll_spec

T, N = 3, 2
ENV = EnvSpec({"x": ArraySpec((), "float32")}, DiscreteAction(4))
SPEC = unroll_spec(ENV, {"log_prob": ArraySpec((), "float32")}, (ArraySpec((5,), "float32"),), T, N)


def slot() -> Unroll:
    empty: Unroll = optree.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), SPEC)
    return empty


def timestep(t: int) -> Timestep:
    return Timestep(
        {"x": np.full(N, t, np.float32)}, np.array([t % 4 == 0, False]), np.full(N, t, np.float32),
        np.ones(N, np.float32), np.array([t % 4 != 0, True]),
    )


def write(writer: UnrollWriter, into: Unroll, start: int) -> None:
    writer.begin(into, timestep(start), (np.full((N, 5), start),))
    for t in range(start, start + T):
        writer.append(np.full(N, t % 4), {"log_prob": np.full(N, -t)}, start, timestep(t + 1))


def test_action_and_reward_stand_beside_the_observation_they_follow() -> None:
    into = slot()
    write(UnrollWriter(T), into, 5)
    assert into.observation["x"][:, 0].tolist() == [5, 6, 7, 8]
    assert into.action[:, 0].tolist() == [1, 2, 3]
    assert into.reward[:, 0].tolist() == [6, 7, 8], "reward[t] was earned on the way to observation[t + 1]"
    assert into.first[:, 0].tolist() == [False, False, False, True]
    assert into.valid[:, 0].tolist() == [True, True, False]
    assert into.behaviour["log_prob"][:, 1].tolist() == [-5, -6, -7]
    assert (into.version == 5).all() and (into.state[0] == 5).all()


def test_consecutive_unrolls_share_one_observation_and_no_transition() -> None:
    writer, one, two = UnrollWriter(T), slot(), slot()
    write(writer, one, 0)
    assert writer.full
    write(writer, two, T)
    assert one.observation["x"][-1, 0] == two.observation["x"][0, 0]
    assert [*one.reward[:, 0], *two.reward[:, 0]] == [1, 2, 3, 4, 5, 6]


def test_a_writer_continues_a_half_written_slot() -> None:
    whole, half = slot(), slot()
    write(UnrollWriter(T), whole, 0)
    writer = UnrollWriter(T)
    writer.begin(half, timestep(0), (np.zeros((N, 5)),))
    writer.append(np.zeros(N, int), {"log_prob": np.zeros(N)}, 0, timestep(1))
    successor = UnrollWriter(T)
    successor.resume(half, writer.time)
    for t in (1, 2):
        successor.append(np.full(N, t % 4), {"log_prob": np.full(N, -t)}, 0, timestep(t + 1))
    assert successor.full
    assert all((a == b).all() for a, b in zip(optree.tree_leaves(whole), optree.tree_leaves(half), strict=True))


def packed(widths: list[int], batch_size: int) -> tuple[list[list[int]], BatchPacker]:
    """The envs' marks in every batch that is full, after unrolls of these widths."""
    spec = unroll_spec(ENV, {"log_prob": ArraySpec((), "float32")}, (ArraySpec((5,), "float32"),), T, batch_size)
    queue = RingQueue("batches", spec, 1, 10, HeapBlock(*RingQueue.footprint(spec, 1, 10)))
    packer, mark = BatchPacker([queue.sink(0)], batch_size), 0
    for width in widths:
        wide = unroll_spec(ENV, {"log_prob": ArraySpec((), "float32")}, (ArraySpec((5,), "float32"),), T, width)
        unroll: Unroll = optree.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), wide)
        unroll.valid[:] = True
        unroll.reward[:] = np.arange(mark, mark + width)
        unroll.state[0][:] = np.arange(mark, mark + width)[:, None]
        mark += width
        assert packer.pack(unroll, 0, width) == width
    batches = queue.source().take(queue.source().depth()) or []
    assert all((batch.state[0][:, 0] == batch.reward[0]).all() for batch in batches), "states stay with their envs"
    return [batch.reward[-1].astype(int).tolist() for batch in batches], packer


def test_unrolls_of_any_width_fill_batches_without_gaps_and_in_order() -> None:
    batches, packer = packed([3, 2, 5, 1, 4], batch_size=4)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert packer.filled == 3 and packer.held == 3 * T


def test_an_unroll_wider_than_a_batch_spans_several() -> None:
    assert packed([9], batch_size=4)[0] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_packing_stops_when_slots_run_out_and_continues_from_there() -> None:
    spec = unroll_spec(ENV, {"log_prob": ArraySpec((), "float32")}, (), T, 2)
    queue = RingQueue("batches", spec, 1, 1, HeapBlock(*RingQueue.footprint(spec, 1, 1)))
    packer, source = BatchPacker([queue.sink(0)], 2), queue.source()
    wide = unroll_spec(ENV, {"log_prob": ArraySpec((), "float32")}, (), T, 5)
    unroll: Unroll = optree.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), wide)
    done = packer.pack(unroll, 0, 5)
    assert done == 2 and packer.pack(unroll, done, 5) == 2
    for expected in (4, 5):
        assert source.take(1) is not None
        source.release()
        done = packer.pack(unroll, done, 5)
        assert done == expected


def test_each_sink_gets_its_turn_and_the_one_that_is_full_is_waited_for() -> None:
    spec = unroll_spec(ENV, {"log_prob": ArraySpec((), "float32")}, (), T, 1)
    queues = [RingQueue("batches", spec, 1, 1, HeapBlock(*RingQueue.footprint(spec, 1, 1))) for _ in range(2)]
    sources, packer = [queue.source() for queue in queues], BatchPacker([queue.sink(0) for queue in queues], 1)
    unroll: Unroll = optree.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
    for i in range(2):
        unroll.reward[:] = i
        assert packer.pack(unroll, 0, 1) == 1
    assert packer.pack(unroll, 0, 1) == 0 and packer.sink.explain() == "all 1 slots are full"
    for i, source in enumerate(sources):
        taken = source.take(1)
        assert taken is not None and taken[0].reward[0, 0] == i
    sources[1].release()
    assert packer.pack(unroll, 0, 1) == 0, "the first is next"
    sources[0].release()
    assert packer.pack(unroll, 0, 1) == 1
