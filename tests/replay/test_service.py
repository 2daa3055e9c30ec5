"""What a service promises when several things go on at once."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from pappus.errors import RunError, UserError
from pappus.replay import ArraySpec, Client, Service, Trajectory, col, uniform_replay
from pappus.replay.service.checkpoint import load, save
from pappus.replay.service.service import Holder
from pappus.replay.tables import table as tables
from pappus.replay.wire.grpc_wire import PART_BYTES, Parts, cut
from pappus.replay.wire.messages import decode, encode

SIGNATURE = {"x": ArraySpec((), "int64")}


def write(client: Client, numbers: range) -> None:
    with client.writer(history=1) as writer:
        for number in numbers:
            writer.append({"x": number})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})


def test_room_that_others_will_soon_give_back_is_not_made_a_second_time() -> None:
    """While a checkpoint holds every chunk, removing items frees nothing at once: a few must do."""
    service = Service([uniform_replay("t", 1000, SIGNATURE)], 1000, chunk_length=10)
    client = Client.of(service)
    write(client, range(1000))
    with service.standing_still():
        held = np.flatnonzero(service.chunks.holders)
        service.chunks.hold(held)
    session, taken = Holder("writer"), 0
    while len(service.take_chunks(session, 1, seconds=0.0)):
        taken += 1
    assert client.info("t")["size"] >= 1000 - 2 * 10 and taken == service.layout.num_chunks - len(held)
    with service.standing_still():
        service.chunks.release(held)
    assert len(service.take_chunks(session, 1, seconds=0.0)) == 1


def test_padding_survives_operations_on_a_field() -> None:
    client = Client.of(Service([uniform_replay("t", 10, SIGNATURE)], 100))
    with client.writer() as writer:
        for length in (1, 3):
            for number in range(length):
                writer.append({"x": number + 1})
            writer.create_item("t", 1.0, {"x": writer.history["x"][:]})
            writer.end_episode()
    found = client.sample("t", 40, Trajectory(x=(col("x").pad(-1) * 2).astype("int32"))).data["x"]
    assert {tuple(row) for row in found.tolist()} == {(2, -1, -1), (2, 4, 6)}


def test_items_without_the_lead_that_a_table_wants_are_not_restored(tmp_path: Path) -> None:
    service = Service([uniform_replay("t", 10, SIGNATURE)])
    write(Client.of(service), range(5))
    save(service, tmp_path / "saved")
    with pytest.raises(UserError, match="lead=0"):
        load(Service([uniform_replay("t", 10, SIGNATURE, lead=3)]), tmp_path / "saved")


def test_a_failed_sampler_raises_every_time() -> None:
    client = Client.of(Service([uniform_replay("t", 10, SIGNATURE)]))
    write(client, range(5))
    with client.sampler("t", 1, Trajectory(x=col("x").sum("nowhere"))) as sampler:
        for _ in range(4):
            with pytest.raises(UserError, match="nowhere"):
                next(sampler)


def test_a_message_of_any_size_is_cut_into_parts_and_put_together_again() -> None:
    for size in (1, PART_BYTES - 200, PART_BYTES, 3 * PART_BYTES + 5):
        array = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        parts = list(cut(encode({"do": "it"}, {"array": array, "more": array[:7]})))
        assert max(map(len, parts)) <= PART_BYTES + 8
        whole = Parts(iter(parts)).join()
        assert whole is not None
        message = decode(whole)
        np.testing.assert_array_equal(message.arrays["array"], array)
        np.testing.assert_array_equal(message.arrays["more"], array[:7])
    with pytest.raises(RunError, match="larger"):
        Parts(iter([b"\xff" * 8])).join()


def test_batches_fetched_in_groups_are_yielded_one_by_one() -> None:
    client = Client.of(Service([uniform_replay("t", 100, SIGNATURE)]))
    write(client, range(50))
    shape = Trajectory(x=col("x")[0], time_first=col("x").transpose("time", "batch"))
    with client.sampler("t", 7, shape, prefetch=6) as sampler:
        for _ in range(10):
            batch = next(sampler)
            assert batch.data["x"].shape == (7,) and batch.data["time_first"].shape == (1, 7)
            assert (batch.data["x"] == batch.data["time_first"][0]).all()
            assert len(batch.keys) == len(batch.info.priorities) == batch.info.windows.num_items == 7
            assert (batch.keys == batch.data["x"]).all()  # the first items of a table: keys 0, 1, 2 …


def test_a_writer_whose_items_wait_waits_too_and_loses_none() -> None:
    """Chunks that it gives back meanwhile do not pile up until there are none left."""
    client = Client.of(Service([tables.queue("t", 2, SIGNATURE)], 64, chunk_length=4))

    def write_on() -> None:
        with client.writer(history=8) as writer:
            for step in range(300):
                writer.append({"x": step})
                if step < 4:
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})

    thread = threading.Thread(target=write_on, daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive(), "it should wait"
    assert [int(client.sample("t", 1, timeout=10.0).data["x"][0, 0]) for _ in range(4)] == [0, 1, 2, 3]
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_service_says_how_long_samples_have_waited_for_items() -> None:
    client = Client.of(Service([tables.queue("t", 2, SIGNATURE)], 64, chunk_length=4))
    write(client, range(1))
    client.sample("t", 1)
    assert client.info("t")["samples_waited"] == 0.0, "there was one"
    with pytest.raises(TimeoutError):
        client.sample("t", 1, timeout=0.01)
    waited = client.info("t")["samples_waited"]
    assert waited >= 0.01
    write(client, range(1))
    client.sample("t", 1)
    assert client.info("t")["samples_waited"] == waited
