"""The frames that a stacking network remembers before a sequence are not stored, but put together again."""

from __future__ import annotations

import numpy as np
import pytest

from pappus.core import ReplayAlgorithm
from pappus.experience import Sequence
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from pappus.replay.tables import table as tables
from pappus.types import ArraySpec, EnvSpec, Timestep
from tests.recording.streams import ENV, Streams, r2d2


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are handed over as soon as they are made, so that tests can look at them."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 1)

STACK = 3
FRAME = EnvSpec(ArraySpec((), "int64"), ENV.action, frame_stack=STACK)
STATE = (ArraySpec((STACK - 1,), "int64"), (ArraySpec((1,), "float32"),))


def sampled(streams: Streams, algorithm: ReplayAlgorithm) -> tuple[Sequence, dict[str, ArraySpec]]:
    layout = layout_for(FRAME, algorithm, STATE)
    table = tables.queue(TABLE, 5000, layout.signature, layout.lead)
    replay = DirectReplay(ReplaySpec(layout, table, 20_000, 1, 0.0, seed=0))
    envs = len(streams.same_step)
    sink, frames = replay.sink(envs), np.zeros((envs, STACK - 1), np.int64)
    for seen, _, action, behaviour, then in streams.steps():
        number = 1 + seen.observation["row"]  # 0 is a blank frame
        frames[seen.first] = 0
        state = (frames.copy(), (frames[:, :1].astype(np.float32),))
        assert sink.ready()
        sink.record(Timestep(number, *seen[1:]), state, action, behaviour, then)
        frames = np.concatenate([frames[:, 1:], number[:, None]], 1)
    assert sink.ready()
    client = Client.of(replay.service)
    batch = client.try_sample(TABLE, client.info(TABLE)["size"], layout.trajectory())
    assert batch is not None
    found = layout.batch(batch.data)
    assert isinstance(found, Sequence)
    return found, layout.signature


def test_frames_before_a_sequence_are_those_that_the_actor_had() -> None:
    found, _ = sampled(Streams((False, True), 300, seed=3, end=0.05), r2d2(burn_in=0, length=4, period=1))
    frames, (core,) = found.state
    middle = ~found.first.any(axis=0)
    assert middle.sum() > 20 and (frames[middle, 0] > 0).any() and (frames[middle, 0] == 0).any()
    first_seen = found.observation[0]
    expected = first_seen[:, None] - np.arange(STACK - 1, 0, -1)
    blank = frames == 0
    assert np.array_equal(np.where(blank, 0, expected)[middle], frames[middle])
    assert np.array_equal(frames[middle, 0].astype(np.float32), core[middle, 0])


def test_frames_are_stored_once() -> None:
    _, signature = sampled(Streams((False,), 50, seed=1), r2d2(2, 4, 2))
    assert sum(spec.nbytes for name, spec in signature.items() if name.startswith(("observation", "state"))) == 8 + 4


def test_a_mask_is_no_frame() -> None:
    masked = EnvSpec({"action_mask": ArraySpec((5,), "int8"), "picture": ArraySpec((), "int64")}, ENV.action, STACK)
    layout = layout_for(masked, r2d2(0, 4, 1), ({"picture": STATE[0]}, STATE[1]))
    replay = DirectReplay(ReplaySpec(layout, tables.queue(TABLE, 99, layout.signature, 2), 999, 1, 0.0, seed=0))
    sink, streams = replay.sink(1), Streams((False,), 12, seed=1, end=0.0)
    for seen, _, action, behaviour, then in streams.steps():
        number = 1 + seen.observation["row"]
        observation = {"action_mask": np.ones((1, 5), np.int8), "picture": number}
        state = ({"picture": np.zeros((1, STACK - 1), np.int64)}, (np.zeros((1, 1), np.float32),))
        assert sink.ready()
        sink.record(Timestep(observation, *seen[1:]), state, action, behaviour, then)
    batch = Client.of(replay.service).try_sample(TABLE, 5, layout.trajectory())
    assert batch is not None
    found = layout.batch(batch.data)
    assert isinstance(found, Sequence)
    frames, first = found.state[0]["picture"], found.observation["picture"][0]
    assert frames[4].tolist() == [first[4] - 2, first[4] - 1]

