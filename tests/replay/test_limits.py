"""Items whose values a table does not admit are refused where clients come in, with a sentence, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.errors import UserError
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.serve.config_file import load_tables
from pappus.replay.tables.limits import Limits
from pappus.types import ArraySpec
from tests.contracts.replay_tools import SECONDS, Way, replay
from tests.process_tools import eventually
from tests.replay.test_sessions import OverGrpc, ThroughSharedMemory

COLUMNS = {"obs": ArraySpec((2,), "float32"), "reward": ArraySpec((), "float64"), "action": ArraySpec((), "int64")}
LIMITS = {"obs": Limits(), "reward": Limits(-10, 10), "action": Limits(0, 3)}


@pytest.fixture(params=["shared memory", "gRPC"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    found: Way = ThroughSharedMemory(tmp_path) if request.param == "shared memory" else OverGrpc()
    yield found
    found.close()


def step(**changes: Any) -> dict[str, Any]:
    return {"obs": np.zeros(2, np.float32), "reward": 1.0, "action": 1, **changes}


def item(writer: TrajectoryWriter, length: int = 1) -> None:
    writer.create_item("t", 1.0, {name: writer.history[name][-length:] for name in COLUMNS})


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"obs": np.array([0, np.nan], np.float32)}, "column 'obs' holds nan, and only finite numbers are allowed"),
        ({"obs": np.array([np.inf, 0], np.float32)}, "column 'obs' holds inf, and only finite numbers are allowed"),
        ({"reward": -11.0}, "column 'reward' holds -11, and from -10 to 10 is allowed"),
        ({"action": 4}, "column 'action' holds 4, and from 0 to 3 is allowed"),
    ],
)
def test_an_item_with_a_value_outside_is_refused_and_the_others_are_inserted(
    way: Way, bad: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = way(replay(signature=COLUMNS, limits=LIMITS))
    writer = client.writer(history=3, max_pending=100)
    for changes in ({}, bad, {}):
        writer.append(step(**changes))
        item(writer)
    with pytest.raises(UserError, match=f"1 of 3 items for table 't' are refused: {sentence}"):
        writer.flush()
    assert client.info("t")["inserts"] == 2 and client.info("t")["refused"] == 1
    item(writer, 3)
    with pytest.raises(UserError, match="1 of 1 items"):
        writer.flush()
    item(writer)
    assert writer.flush() and client.info("t")["inserts"] == 3
    said = [record.message for record in caplog.records if "are refused" in record.message]
    assert len(said) == 1 and sentence in said[0], "the log says it once"
    writer.close()


def test_a_lead_counts_and_a_column_that_an_item_leaves_out_does_not(way: Way) -> None:
    client, _ = way(replay(signature=COLUMNS, limits=LIMITS, lead=1))
    with client.writer(history=3) as writer:
        writer.append(step(reward=np.nan))
        writer.create_item("t", 1.0, {"obs": writer.history["obs"][-1:]})
        assert writer.flush()
        writer.append(step())
        item(writer)
        with pytest.raises(UserError, match="'reward' holds nan"):
            writer.flush()
        writer.append(step())
        item(writer)


def test_a_row_that_was_judged_does_not_change_any_more() -> None:
    way = OverGrpc()
    try:
        client, service = way(replay(signature=COLUMNS, limits=LIMITS))
        session: Any = way.session(service)
        with client.writer() as writer:
            writer.append(step())
            item(writer)
        chunks = np.array([0])
        rows = {f"column/{name}": np.zeros((1, 1, *spec.shape), spec.dtype) for name, spec in COLUMNS.items()}
        session._tell({"do": "rows", "begin": 0, "end": 1}, chunks=chunks, **rows)
        assert session.flush(SECONDS)
        session._tell({"do": "rows", "begin": 0, "end": 1}, chunks=chunks, **rows)
        with pytest.raises(Exception, match="rows from 0 on were written already"):
            session.flush(SECONDS)
    finally:
        way.close()


def test_without_limits_nothing_is_refused(way: Way) -> None:
    client, _ = way(replay(signature=COLUMNS))
    with client.writer() as writer:
        writer.append(step(reward=np.nan))
        item(writer)
    eventually(lambda: client.info("t")["inserts"] == 1, SECONDS)


YAML = """
tables:
  - name: t
    sampler: uniform
    remover: fifo
    rate_limiter: {{min_size: 1}}
    max_size: 8
    signature:
      obs: {{shape: [2], dtype: float32{obs}}}
      action: {{shape: [], dtype: int64{action}}}
      frame: {{shape: [4], dtype: uint8}}
"""


def limits_in(tmp_path: Path, obs: str = "", action: str = "") -> dict[str, Limits]:
    path = tmp_path / "tables.yaml"
    path.write_text(YAML.format(obs=obs, action=action))
    return dict(load_tables(path).tables[0].limits)


def test_a_file_says_what_columns_may_hold_and_real_numbers_are_finite_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert limits_in(tmp_path) == {"obs": Limits()}
    assert limits_in(tmp_path, ", finite: false") == {}
    assert limits_in(tmp_path, ", low: -1, high: 1.5", ", low: 0") == {
        "obs": Limits(-1, 1.5), "action": Limits(0, np.inf)
    }


@pytest.mark.parametrize(
    ("obs", "sentence"),
    [
        (", finite: 3", "finite=3 must be true or false"),
        (", finite: false, low: 0", "true where there is a low or a high"),
        (", low: 2, high: 1", "low=2 and high=1 leave no value of float32"),
        (", low: .nan", "leave no value"),
        (", low: small", "low: 'small' must be a number"),
        (", lowest: 1", "unknown key 'lowest'"),
    ],
)
def test_limits_that_cannot_be_are_refused(tmp_path: Path, obs: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        limits_in(tmp_path, obs)
