"""Batches of two tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.recording.logged import Logged
from pappus.recording.mixed import MixedSource
from pappus.recording.transitions import TABLE
from pappus.replay.tables import table as tables
from tests.recording.streams import ENV, STATE, Streams, dqn, r2d2


def filled(rules: Any, batch: int, sign: int, steps: int = 40) -> DirectReplay:
    """A table whose rows say `sign` times where they come from."""
    layout = layout_for(ENV, rules, STATE)
    table = tables.prioritized_replay(TABLE, 500, layout.signature, lead=layout.lead)
    replay = DirectReplay(ReplaySpec(layout, table, 5_000, batch, 0.4, seed=0))
    sink = replay.sink(2)
    for seen, state, action, behaviour, then in Streams((False, True), steps, 0).steps():
        assert sink.ready()
        shown = {**seen.observation, "where": seen.observation["where"] + 1000 * sign}
        kept = {name: behaviour[name] for name in layout.behaviour}
        sink.record(seen._replace(observation=shown), state, action, kept, then)
    sink.end()
    return replay


def test_every_batch_has_its_share_of_both_and_priorities_go_back_to_their_table() -> None:
    rules = dqn(2)
    online, data = filled(rules, 5, 1), filled(Logged(rules.experience), 3, -1)
    mixed = MixedSource([online, data])
    batch = mixed.take()
    assert batch is not None and len(batch.weight) == 8
    assert (np.sign(batch.items.observation["where"][:, 0]) == [1] * 5 + [-1] * 3).all()
    mixed.update(batch, np.arange(1.0, 9.0))
    for replay, part, given in ((online, batch.parts[0], range(1, 6)), (data, batch.parts[1], range(6, 9))):
        with replay.service.standing_still() as live:
            table = live[TABLE]
            places = part.keys % 500
            assert set(table.drawing()["priorities"][places]) <= set(map(float, given))


def test_sequences_are_side_by_side_and_states_of_data_are_zeros() -> None:
    rules = r2d2(1, 4, 2)
    mixed = MixedSource([filled(rules, 3, 1), filled(Logged(rules.experience), 2, -1)])
    batch = mixed.take()
    assert batch is not None
    assert batch.items.action.shape == (5, 5) and batch.items.observation["where"].shape == (5, 5, 2)
    _, (memory, _) = batch.items.state
    assert (memory[:3] != 0).any() and (memory[3:] == 0).all()


@pytest.mark.parametrize("empty", [0, 1])
def test_it_waits_for_the_part_that_is_missing_and_keeps_the_other(empty: int) -> None:
    rules = dqn(1)
    replays = [filled(rules, 2, 1, steps=0 if empty == i else 30) for i in range(2)]
    mixed = MixedSource(replays)
    assert mixed.take() is None and mixed.take() is None
    assert "0 items" in mixed.explain() or "wait" in mixed.explain()
    assert replays[1 - empty].info()["samples"] == 2, "drawn once"
