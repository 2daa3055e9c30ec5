from __future__ import annotations

import select
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.config import ReplayConfig
from pappus.errors import RunError
from pappus.experience import ItemBatch
from pappus.recording.direct import DirectReplay, RecordingSink, ReplaySpec, layout_for
from pappus.recording.shared import SharedReplay
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.telemetry.metrics import Meter
from pappus.transports.tls import Tls
from pappus.types import leaves_of
from tests.recording.streams import ENV, Streams, dqn


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are handed over as soon as they are made, so that tests can look at them."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 1)

SECONDS = 10.0
"""After so long something hangs."""


def spec(path: str = "", exponent: float = 1.0, **settings: Any) -> ReplaySpec:
    layout = layout_for(ENV, dqn(), ())
    config = ReplayConfig(**{"capacity": 500, "warm_up": 20, "tolerance": 1e3, "priority_exponent": 1.0} | settings)
    return ReplaySpec(layout, layout.table(config, 16), 4000, 16, exponent, seed=0, path=path)


def steps(count: int) -> Any:
    return list(Streams((False, True), count, 0).steps())


def record(sink: RecordingSink, some: Any) -> None:
    for step in some:
        while not sink.ready():
            assert sink.fileno() >= 0 and select.select([sink.fileno()], [], [], SECONDS)[0], sink.explain()
            sink.clear()
        sink.record(*step)


def test_a_batch_comes_only_after_warm_up() -> None:
    replay = DirectReplay(spec())
    sink, source = replay.sink(2), replay.source()
    while replay.service.info(TABLE)["size"] < 20:
        assert source.take() is None and "samples wait for" in source.explain()
        record(sink, steps(1))
    batch = source.take()
    assert batch is not None and len(batch.keys) == 16 and batch.items.reward.shape == (16,)


def test_new_priorities_decide_what_is_drawn_and_weights_make_up_for_it() -> None:
    replay = DirectReplay(spec())
    sink, source = replay.sink(2), replay.source()
    record(sink, steps(20))
    keys = np.unique(Client.of(replay.service).sample(TABLE, 16).keys)
    nothing = ItemBatch(np.arange(500), None, None, 0.0)
    source.update(nothing, np.full(500, 1e-9))
    source.update(nothing._replace(keys=keys[:2]), np.array([3.0, 1.0]))
    batch = source.take()
    assert batch is not None and set(batch.keys) == set(keys[:2])
    assert batch.weight[batch.keys == keys[0]] == pytest.approx(1 / 3, rel=1e-3)
    assert batch.weight[batch.keys == keys[1]] == pytest.approx(1.0, rel=1e-3)


def test_a_sink_that_loses_its_service_counts_lost_items_and_starts_anew() -> None:
    replay = DirectReplay(spec())
    client, opened = Client.of(replay.service), []

    def open_writer(envs: int, history: int) -> TrajectoryWriter:
        opened.append(client.writer(envs, history))
        if len(opened) == 2:
            raise RunError("still away")
        return opened[-1]

    def gone(seconds: float | None = None) -> bool:
        raise RunError("the service is gone")

    sink = RecordingSink(replay._spec, 2, open_writer, Meter())
    record(sink, steps(30))
    made = client.info(TABLE)["inserts"]
    opened[0].flush = gone  # type: ignore[method-assign]
    assert not sink.ready() and 1 <= sink.lost <= 4, "what the last step made was not confirmed"
    assert not sink.ready(), "it is still away"
    record(sink, steps(30))
    assert len(opened) == 3 and client.info(TABLE)["inserts"] > made


def taken(source: Any) -> ItemBatch:
    """The next batch of a source that fetches ahead."""
    while (batch := source.take()) is None:
        assert select.select([source.fileno()], [], [], SECONDS)[0], source.explain()
        source.clear()
    return batch


def test_processes_share_a_table_and_reconnect_to_its_successor(tmp_path: Path) -> None:
    replay = SharedReplay(spec(str(tmp_path / "socket")), np.zeros(1, np.int64))
    sink, source = replay.sink(2), replay.source()
    assert not sink.ready() and source.take() is None and source.info() == {}
    lives = []
    for _ in range(2):
        replay_server = replay.host()
        replay_server.open()
        while not sink.ready():
            pass
        record(sink, steps(30))
        batch = taken(source)
        while batch.service in lives:  # it was drawn before the service went
            batch = taken(source)
        assert len(batch.keys) == 16 and np.isfinite(batch.items.reward).all()
        source.update(batch, np.ones(16))
        lives.append(batch.service)
        assert source.info()["size"] >= 20
        replay_server.close()
    assert lives[0] < lives[1], "the same keys mean other items now"
    source.close()
    sink.close()


@pytest.mark.parametrize("together", [1, 2, 3, 50])
def test_a_thread_that_records_and_samples_never_waits_for_itself(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the limiter holds back, and whenever chunks are full: a step is recorded, or `ready` says no."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", together)
    replay = DirectReplay(spec(tolerance=2.0, samples_per_insert=8.0))
    sink, source = replay.sink(2), replay.source()
    waited = 0

    def take_turns() -> None:
        nonlocal waited
        for step in steps(1_000):
            while not sink.ready():
                waited += 1
                assert source.take() is not None
            sink.record(*step)

    thread = threading.Thread(target=take_turns, daemon=True)
    thread.start()
    thread.join(3 * SECONDS)
    assert not thread.is_alive() and waited > 100
    info = replay.service.info(TABLE)
    assert abs(info["samples"] - 8 * (info["inserts"] - 20)) <= 64


def test_recorded_rows_and_taken_batches_are_metered() -> None:
    replay = DirectReplay(spec())
    sink, source = replay.sink(2), replay.source()
    for step in steps(40):
        assert sink.ready()
        sink.record(*step)
    assert replay.meter.total == 40 * 2 * replay._spec.row_bytes
    before, batch = replay.meter.total, source.take()
    assert batch is not None
    assert replay.meter.total - before == sum(leaf.nbytes for leaf in leaves_of(batch.items))


class Registered:
    """A cluster of two nodes that are this machine."""

    ip = "127.0.0.1"

    def __init__(
        self, node: str, token_file: str, places: dict[str, tuple[str, str]], tls: Tls | None = None
    ) -> None:
        self.node, self.token_file, self._places, self.tls = node, token_file, places, tls

    def announce(self, name: str, address: str) -> None:
        self._places[name] = (self.node, address)

    def find(self, name: str) -> tuple[str, str]:
        if name not in self._places:
            raise RunError(f"no process serves {name} yet")
        return self._places[name]


def test_an_actor_of_another_node_records_over_the_wire_and_follows_a_replay_server_that_moves(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    (tmp_path / "token").write_text("secret")
    places: dict[str, tuple[str, str]] = {}
    nodes = {name: Registered(name, str(tmp_path / "token"), places) for name in ("actors", "first", "second")}
    ends = {
        name: SharedReplay(spec(str(tmp_path / f"{name}.sock")), np.zeros(1, np.int64), "replay", node)
        for name, node in nodes.items()
    }
    sink, source = ends["actors"].sink(2), ends["second"].source()
    assert not sink.ready(), "nobody keeps the table yet"
    saving_roles = [ends["first"].host(), ends["second"].host()]
    for replay_server in saving_roles:
        replay_server.open()
        while not sink.ready():
            pass
        record(sink, steps(30))  # woken by every answer
        assert replay_server.service.info(TABLE)["size"] >= 20
        if replay_server is saving_roles[1]:
            assert len(taken(source).keys) == 16, "from the same node, through memory"
        replay_server.close()
    source.close()
    sink.close()
