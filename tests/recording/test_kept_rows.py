"""A learner that keeps large observations gets each once, and finds in every batch what one gets that keeps none."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pappus.config import ReplayConfig
from pappus.core import ReplayAlgorithm
from pappus.experience import ItemBatch, Transition
from pappus.recording.direct import DirectReplay, RecordingSink, ReplaySpec, layout_for
from pappus.recording.shared import SharedReplay
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import DirectSession
from pappus.replay.sampling.kept_rows import KeptRows, RowNumbers
from pappus.replay.storage.chunks import Columns
from pappus.replay.storage.row_copies import RowCopies, rows_to_copy
from pappus.roles.device_rows import DeviceRows, keep_large
from pappus.types import Array, ArraySpec, EnvSpec, Timestep, leaves_of
from tests.recording.streams import ENV, Streams, dqn, r2d2

STACK, SIDE, SECONDS = 3, 32, 10.0
PICTURES = EnvSpec(ArraySpec((SIDE, SIDE), "uint8"), ENV.action, frame_stack=STACK)
STATE: Any = (ArraySpec((STACK - 1, SIDE, SIDE), "uint8"), (ArraySpec((1,), "float32"),))


def spec(algorithm: ReplayAlgorithm, path: str = "", capacity: int = 40) -> ReplaySpec:
    """A table so small that its chunks are soon used again."""
    layout = layout_for(PICTURES, algorithm, STATE)
    config = ReplayConfig(capacity=capacity, warm_up=8, tolerance=1e6)
    return ReplaySpec(layout, layout.table(config, 8), capacity * layout.steps_per_item + 800, 8, 0.4, 0, path=path)


def pictures(numbers: Array) -> Array:
    """A picture for every number below 60,000; none of them is blank."""
    shown = np.zeros((len(numbers), SIDE, SIDE), np.uint8)
    shown[:, 0, 0], shown[:, 0, 1], shown[:, 1] = 1 + numbers // 250, numbers % 250, 7
    return shown


def numbers_in(shown: torch.Tensor) -> Array:
    """What `pictures` was called with."""
    found: Array = (shown[..., 0, 0].long() - 1).numpy() * 250 + shown[..., 0, 1].long().numpy()
    return found


def record(sink: RecordingSink, streams: Streams, begin: int = 0) -> int:
    """Record a stream whose actions are the numbers of its pictures; the number after the last."""
    step = begin
    for step, (seen, _, action, behaviour, then) in enumerate(streams.steps(), begin):
        while not sink.ready():
            assert sink.fileno() >= 0 and select.select([sink.fileno()], [], [], SECONDS)[0], sink.explain()
            sink.clear()
        shown, core = pictures(np.full(len(action), step)), np.zeros((len(action), 1), np.float32)
        state = (np.zeros((len(action), STACK - 1, SIDE, SIDE), np.uint8), (core,))
        sink.record(Timestep(shown, *seen[1:]), state, np.full(len(action), step), behaviour, then)
    return step + 1


@pytest.mark.parametrize("algorithm", [dqn(n_step=2), r2d2(2, 4, 2)], ids=["transitions", "sequences"])
def test_numbers_stand_for_the_values_of_every_batch(algorithm: ReplayAlgorithm) -> None:
    replay = DirectReplay(spec(algorithm))
    layout, sink, session = replay._spec.layout, replay.sink(2), DirectSession(replay.service)
    plain, kept = layout.trajectory(), layout.trajectory()
    kept.kept = known = KeptRows(layout.large)
    rows, sent, begin = DeviceRows("cpu"), 0, 0
    for seed in range(40):
        begin = record(sink, Streams((False, True), 30, seed, end=0.05), begin)
        held = session.sample(TABLE, 8, plain.columns, plain.lead, 0.0, False)
        assert held is not None
        expected, numbered = (
            layout.batch(fields.evaluate(held.drawn, held.source, layout.lead).data) for fields in (plain, kept)
        )
        session.done(held)
        new = known.take_new()
        sent += sum(len(one.numbers) for one in new)
        rows.store(new)
        leaves = leaves_of(numbered)
        assert sum(isinstance(leaf, RowNumbers) for leaf in leaves) == 2, "two stacks, or steps and the frames before"
        for leaf, values in zip(leaves, leaves_of(expected), strict=True):
            np.testing.assert_array_equal(rows.tensor(leaf).numpy(), values)
    assert 0 < sent <= 40 * 30 * 2, "no row is sent twice"
    assert replay.service.chunks.uses.max() > 3, "chunks were used again"


def test_large_vectors_are_kept_as_pictures_are() -> None:
    def layout(size: int, dtype: str = "float32") -> Any:
        return layout_for(EnvSpec(ArraySpec((size,), dtype), ENV.action), dqn(n_step=2), ())

    assert not layout(63).large and not layout(64, "int64").large, "numbers of rows are int64, too"
    table = layout(64)
    replay = DirectReplay(ReplaySpec(
        table, table.table(ReplayConfig(capacity=40, warm_up=8, tolerance=1e6), 8), 840, 8, 0.4, 0,
    ))
    sink, rows, fields = replay.sink(2), DeviceRows("cpu"), table.trajectory()
    fields.kept = KeptRows(table.large)
    for step, (seen, *_, behaviour, then) in enumerate(Streams((False, True), 30, 1).steps()):
        assert sink.ready()
        sink.record(Timestep(np.full((2, 64), step, np.float32), *seen[1:]), (), np.full(2, step), behaviour, then)
    held = DirectSession(replay.service).sample(TABLE, 8, fields.columns, fields.lead, 0.0, False)
    assert held is not None
    batch = table.batch(fields.evaluate(held.drawn, held.source, table.lead).data)
    rows.store(fields.kept.take_new())
    assert isinstance(batch.observation, RowNumbers) and batch.observation.row_bytes == 256
    np.testing.assert_array_equal(rows.tensor(batch.observation)[:, 7].numpy(), batch.action)


def test_rows_that_cannot_be_read_in_place_come_as_values() -> None:
    replay = DirectReplay(spec(dqn(n_step=1)))
    layout, session = replay._spec.layout, DirectSession(replay.service)
    record(replay.sink(2), Streams((False, True), 30, 1, end=0.05))
    fields = layout.trajectory()
    fields.kept = KeptRows(layout.large)
    held = session.sample(TABLE, 8, fields.columns, fields.lead, 0.0, False)
    assert held is not None and isinstance(held.source, Columns)
    windows, names = held.drawn.windows, list(held.source.columns)
    where = rows_to_copy(held.source, windows, names.index("observation"), fields.lead)
    copied = {"observation": held.source.columns["observation"][where]}
    far = RowCopies(copied, windows, names, fields.lead, held.source)
    batch = layout.batch(fields.evaluate(held.drawn, far, layout.lead).data)
    assert isinstance(batch, Transition) and not fields.kept.take_new()
    np.testing.assert_array_equal(numbers_in(torch.from_numpy(batch.observation))[:, -1], batch.action)


def taken(source: Any) -> ItemBatch:
    while (batch := source.take()) is None:
        assert select.select([source.fileno()], [], [], SECONDS)[0], source.explain()
        source.clear()
    assert isinstance(batch, ItemBatch)
    return batch


def test_pictures_cross_once_between_processes_and_again_when_the_service_has_a_successor(tmp_path: Path) -> None:
    shared = SharedReplay(spec(dqn(n_step=1), str(tmp_path / "socket"), capacity=200), np.zeros(1, np.int64))
    sink, source, rows = shared.sink(2), shared.source(), DeviceRows("cpu")
    said: list[str] = []
    needed = source.large_bytes()
    keep_large(source, needed, said.append)
    assert needed == shared._spec.most_rows * SIDE * SIDE and source._trajectory.kept is None
    assert "would take 0.0 GiB" in said[0] and "sent with every batch" in said[0]
    keep_large(source, 2 * needed, said.append)
    assert len(said) == 1
    begin = 0
    for life in range(1, 3):
        host = shared.host()
        host.open()
        sent = 0
        for seed in range(15):
            begin = record(sink, Streams((False, True), 20, seed, end=0.05), begin)
            while (batch := taken(source)).service < life:
                rows.store(batch.new_rows)
            sent += sum(len(new.numbers) for new in batch.new_rows)
            rows.store(batch.new_rows)
            assert isinstance(batch.items.observation, RowNumbers)
            shown, then = rows.tensor(batch.items.observation), rows.tensor(batch.items.next_observation)
            np.testing.assert_array_equal(numbers_in(shown)[:, -1], batch.items.action)
            follows = batch.items.discount > 0
            np.testing.assert_array_equal(numbers_in(then)[follows, -1], batch.items.action[follows] + 1)
        assert sent > 0
        host.close()
        host.service.close()
    source.close()
    sink.close()
