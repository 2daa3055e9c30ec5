"""Transitions in one pass are, bit by bit, what the general evaluation of their fields gives."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from pappus.errors import UserError
from pappus.experience import Transitions
from pappus.recording.transitions import TABLE, TransitionLayout, TransitionRecorder
from pappus.replay.clients.client import Client
from pappus.replay.sampling.fields import Batch, Trajectory
from pappus.replay.sampling.n_step import NStepTrajectory
from pappus.replay.service.service import Service
from pappus.replay.tables import table as tables
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec
from tests.recording.streams import ENV, Streams, dqn, ended

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")

SINGLE = ArraySpec((2,), "float32")
NUMBER = ArraySpec((), "float32")
SIGNATURE = {"a": NUMBER, "b": NUMBER, "action": NUMBER, "reward": NUMBER, "discount": NUMBER}


def evaluated(client: Client, trajectory: Trajectory) -> tuple[Batch | None, Batch]:
    """All items of a table in one pass, if that is possible, and field by field."""
    held = client._sampling.sample(TABLE, client.info(TABLE)["size"], trajectory.columns, trajectory.lead, 0.0, False)
    assert held is not None and isinstance(trajectory, NStepTrajectory)
    at = (held.drawn, held.source, client.tables[TABLE].lead)
    return trajectory._in_one_pass(*at), Trajectory.evaluate(trajectory, *at)


def assert_equal(one: Batch | None, other: Batch) -> None:
    assert one is not None and list(one.data) == list(other.data) and one.dims == other.dims
    for name, array in one.data.items():
        assert array.dtype == other.data[name].dtype and array.shape == other.data[name].shape
        assert array.tobytes() == other.data[name].tobytes(), name


@pytest.mark.parametrize("chunk_length", [2, 32])
@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize(("n", "scale"), [(1, 1.0), (3, 1.0), (5, 0.3), (12, 1.0)])
@pytest.mark.parametrize("observation", [SINGLE, ENV.observation], ids=["one column", "two columns"])
def test_recorded_items_of_all_lengths(observation: Any, n: int, scale: float, frames: int, chunk_length: int) -> None:
    env, algorithm = EnvSpec(observation, DiscreteAction(5), frame_stack=frames), dqn(n, 0.97, scale)
    layout = TransitionLayout(env, algorithm, algorithm.experience)
    client = Client.of(Service([tables.queue(TABLE, 1000, layout.signature, layout.lead)], 4000, chunk_length))
    recorder = TransitionRecorder(layout, client.writer(4, layout.history), 4)
    for seen, *step in Streams((False, True, False, True), 90, seed=n, end=0.05).steps():
        if observation is SINGLE:
            seen = seen._replace(observation=seen.observation["where"])
        recorder.record(seen, *step)
    one, other = evaluated(client, layout.trajectory())
    lengths = other.info.windows.length[:, list(layout.signature).index("reward")]
    assert set(lengths) == set(range(1, n + 1)), "items at the end of an episode are shorter"
    assert_equal(one, other)


@pytest.mark.parametrize("n", [1, 3])
def test_the_next_action_is_what_was_done_there_and_nan_where_the_episode_ended(n: int) -> None:
    env = EnvSpec(SINGLE, ContinuousAction((1,)))
    layout = TransitionLayout(env, dqn(n), Transitions(n, 0.9, next_action=True))
    client = Client.of(Service([tables.queue(TABLE, 1000, layout.signature, layout.lead)], 4000, 8))
    recorder = TransitionRecorder(layout, client.writer(2, layout.history), 2)
    streams = Streams((False, True), 90, seed=n, end=0.1)
    for seen, state, _, *rest in streams.steps():
        numbered = np.float32(seen.observation["row"] + 100 * np.arange(2))[:, None]
        recorder.record(seen._replace(observation=seen.observation["where"]), state, numbered, *rest)
    one, other = evaluated(client, layout.trajectory())
    assert_equal(one, other)
    batch = layout.batch(other.data)
    rows = {(row.env, row.row): row for env_rows in streams.rows for row in env_rows}
    for seen, done, following in zip(batch.observation, batch.action, batch.next_action, strict=True):
        which, row = int(seen[0]), int(-seen[1])
        assert done == row + 100 * which
        steps = [rows[which, row + i] for i in range(n) if (which, row + i) in rows]
        ends = any(ended(step) for step in steps) or not rows[which, row + n].valid
        assert np.isnan(following) if ends else following == row + n + 100 * which


def table_of(*items: dict[str, slice]) -> Client:
    """Items over slices of nine steps."""
    client = Client.of(Service([tables.queue(TABLE, 10, SIGNATURE, lead=1)], 100, chunk_length=3))
    with client.writer(history=9) as writer:
        for step in range(9):
            writer.append({name: np.float32(step + 0.1 * i) for i, name in enumerate(SIGNATURE)})
        for item in items:
            writer.create_item(TABLE, 1.0, {name: writer.history[name][part] for name, part in item.items()})
    return client


ITEM = {
    "a": slice(1, 5), "b": slice(1, 5), "action": slice(1, 2), "reward": slice(1, 4), "discount": slice(1, 4),
}
TWO_FRAMES = NStepTrajectory(("a", "b"), 2, 0.9, 1.0)


def test_slices_need_not_begin_together() -> None:
    moved = ITEM | {"action": slice(3, 4), "reward": slice(4, 9), "discount": slice(4, 9)}
    assert_equal(*evaluated(table_of(ITEM, moved), TWO_FRAMES))


@pytest.mark.parametrize("other", [{"b": slice(1, 4)}, {"b": slice(2, 6)}, {"discount": slice(1, 3)}])
def test_items_whose_columns_differ_are_left_to_the_fields(other: dict[str, slice]) -> None:
    items = (ITEM, ITEM | other)
    one, fields = evaluated(table_of(*items), TWO_FRAMES)
    assert one is None
    assert_equal(table_of(*items).sample(TABLE, 2, TWO_FRAMES), fields)


def test_a_column_that_was_left_out_is_named() -> None:
    client = table_of(ITEM, {name: part for name, part in ITEM.items() if name != "b"})
    with pytest.raises(UserError, match="column 'b' was left out"):
        client.sample(TABLE, 2, TWO_FRAMES)
