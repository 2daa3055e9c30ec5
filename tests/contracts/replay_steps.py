"""A part of the contract of `replay_contract.py`: where steps are, and when they are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pappus.errors import UserError
from pappus.replay.sampling.fields import Trajectory, col
from pappus.replay.tables import rate_limiters
from pappus.replay.tables import table as tables
from pappus.replay.tables.rate_limiters import RateLimiter
from pappus.replay.tables.table import FIFO
from pappus.types import ArraySpec
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    STEP,
    Background,
    Way,
    add,
    chunks,
    chunks_become,
    drawn,
    keys_of,
    put,
    put_sequences,
    replay,
    step,
    waiting,
)


class Steps:
    """Where steps are, who holds them, and when they are free."""

    def test_a_chunk_is_free_when_its_last_item_is_removed(self, make: Way) -> None:
        client, _ = make(replay(), max_steps=16, chunk_length=4)
        put(client, "t", range(6))
        chunks_become(client, 2)
        keys = keys_of(client, "t")
        for number in (0, 1, 2):
            client.delete("t", np.array([keys[number]]))
            assert chunks(client) == 2, "an item of the first chunk is left"
        client.delete("t", np.array([keys[3]]))
        chunks_become(client, 1)
        client.reset("t")
        chunks_become(client, 0)

    def test_a_writer_holds_what_it_may_still_refer_to(self, make: Way) -> None:
        client, _ = make(replay(), max_steps=16, chunk_length=4)
        with client.writer(history=4) as writer:
            add(writer, "t", 1)
            assert writer.flush()
            client.reset("t")
            chunks_become(client, 1)
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
            assert writer.flush() and drawn(client, "t") == [1]
            client.reset("t")
        chunks_become(client, 0)

    def test_a_writer_holds_its_history_and_a_chunk_or_two(self, make: Way) -> None:
        client, _ = make(replay(), max_steps=40, chunk_length=2)
        with client.writer(history=6) as writer:
            for i in range(100):
                writer.append({"x": i})
                writer.flush()
                assert chunks(client) <= 3 + 2
            assert len(writer.history) >= 6
        chunks_become(client, 0)

    def test_a_sampled_batch_keeps_its_steps_until_it_was_read(self, make: Way) -> None:
        client, service = make(replay(), max_steps=16, chunk_length=4)
        put(client, "t", [41, 42])
        session = make.session(service)
        held = session.sample("t", 4, frozenset(["x"]), 0, SECONDS, True)
        assert held is not None
        client.reset("t")
        put(client, "t", range(200))
        found = Trajectory(x=col("x")).evaluate(held.drawn, held.source, 0).data["x"][:, 0]
        assert (found == 41 + held.drawn.keys).all()
        session.done(held)
        client.reset("t")
        client.info("t")
        chunks_become(client, 0)

    def test_a_disconnected_client_releases_what_it_was_reading(self, make: Way) -> None:
        client, service = make(replay())
        put(client, "t", [1, 2])
        session = make.session(service)
        assert session.sample("t", 2, frozenset(["x"]), 0, SECONDS, True) is not None
        session.close()
        client.reset("t")
        chunks_become(client, 0)

    def test_overlapping_items_share_their_chunks(self, make: Way) -> None:
        client, _ = make(replay(size=128), max_steps=64, chunk_length=4)
        with client.writer() as writer:
            for i in range(16):
                writer.append({"x": i})
                for length in range(1, min(i, 8) + 1):
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-length:]})
        chunks_become(client, 4)
        assert client.info("t")["size"] == 92
        client.reset("t")
        chunks_become(client, 0)

    @pytest.mark.parametrize("chunk_length", [1, 3, 32])
    def test_items_cross_chunks(self, make: Way, chunk_length: int) -> None:
        client, _ = make(tables.queue("t", 400, NUMBER), chunk_length=chunk_length)
        with client.writer(history=8, max_pending=5) as writer:
            for i in range(35):
                writer.append({"x": i})
                for length in range(1, min(i + 1, 8) + 1):
                    writer.create_item("t", length, {"x": writer.history["x"][-length:]})
        batch = client.sample("t", client.info("t")["size"])
        last = [i for i in range(35) for _ in range(min(i + 1, 8))]
        for row, stop, length in zip(batch.data["x"], last, batch.info.priorities.astype(int), strict=True):
            assert row.tolist() == [*range(stop + 1 - length, stop + 1), *[0] * (8 - length)]
        chunks_become(client, 0)

    @pytest.mark.parametrize("chunk_length", [3, 16])
    def test_compressed_columns_are_read_as_written(self, make: Way, chunk_length: int) -> None:
        table = tables.queue("t", 64, STEP, lead=2)
        client, service = make(table, max_steps=256, chunk_length=chunk_length, compress=["obs", "reward"])
        with client.writer(history=4) as writer:
            for i in range(70):
                writer.append(step(i))
                if i >= 6:
                    writer.create_item("t", 1.0, {
                        name: writer.history[name][-3:] if name == "obs" else writer.history[name][-3:-1]
                        for name in STEP
                    })
        service.settle()
        batch = client.sample("t", 64, Trajectory(obs=col("obs").stack(3), reward=col("reward"), action=col("action")))
        for n in range(64):
            assert batch.data["action"][n].tolist() == [n + 4, n + 5]
            assert batch.data["reward"][n].tolist() == [(n + 4) / 4, (n + 5) / 4]
            for t in range(3):
                assert batch.data["obs"][n, t, :, 0].tolist() == [n + 2 + t, n + 3 + t, n + 4 + t]
        chunks_become(client, 0)

    def test_whole_episodes_are_items(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, STEP), max_steps=256, chunk_length=4)
        lengths = [1, 7, 3, 12, 4]
        with client.writer(history=16) as writer:
            for episode, length in enumerate(lengths):
                for i in range(length):
                    writer.append(step(100 * episode + i))
                history = writer.history
                assert len(history) == length
                writer.create_item("t", 1.0, {name: history[name][:] for name in STEP})
                writer.end_episode()
        batch = client.sample("t", 5)
        for episode, length in enumerate(lengths):
            for i in range(12):
                expected: dict[str, Any] = step(100 * episode + i) if i < length else dict.fromkeys(STEP, 0)
                for name in STEP:
                    assert (batch.data[name][episode, i] == np.asarray(expected[name], STEP[name].dtype)).all()
        assert {name: batch.data[name].dtype for name in STEP} == {name: spec.dtype for name, spec in STEP.items()}
        chunks_become(client, 0)

    def test_steps_are_reused_over_and_over_and_none_is_mixed_up(self, make: Way) -> None:
        client, _ = make(replay(size=6), max_steps=24, chunk_length=2)
        with client.writer(history=4) as writer:
            for i in range(300):
                writer.append({"x": i})
                if i >= 3 and i % 3 == 0:
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-4:]})
                if i % 50 == 49:
                    assert writer.flush()
                    batch = client.sample("t", 60)
                    assert (np.diff(batch.data["x"], axis=1) == 1).all() and batch.data["x"].min() >= i - 24
        client.reset("t")
        chunks_become(client, 0)

    def test_tables_share_steps_and_each_holds_them(self, make: Way) -> None:
        client, _ = make([replay("one"), replay("two", sampler=FIFO), replay("none")], max_steps=16, chunk_length=4)
        with client.writer() as writer:
            for i in range(4):
                writer.append({"x": i})
            writer.create_item("one", 1.0, {"x": writer.history["x"][:2]})
            writer.create_item("two", 1.0, {"x": writer.history["x"][1:]})
        chunks_become(client, 1, "one")
        assert client.sample("one", 1).data["x"].tolist() == [[0, 1]]
        assert client.sample("two", 1).data["x"].tolist() == [[1, 2, 3]]
        client.reset("one")
        assert chunks(client, "one") == 1
        client.reset("two")
        chunks_become(client, 0, "none")

    def test_tables_have_columns_of_their_own(self, make: Way) -> None:
        both = {"x": ArraySpec((), "int64"), "y": ArraySpec((2,), "uint8")}
        client, _ = make([replay("x"), replay("xy", signature=both)])
        with client.writer() as writer:
            writer.append({"x": 1, "y": [2, 3]})
            parts = {name: writer.history[name][-1:] for name in both}
            writer.create_item("xy", 1.0, parts)
            writer.create_item("x", 1.0, {"x": parts["x"]})
        assert set(client.sample("x", 1).data) == {"x"}
        assert client.sample("xy", 1).data["y"].tolist() == [[[2, 3]]]
        with pytest.raises(UserError, match="column 'y' is not in the signature of table 'x'"), \
                client.writer() as writer:
            writer.append({"x": 1, "y": [2, 3]})
            writer.create_item("x", 1.0, {name: writer.history[name][-1:] for name in both})
        assert client.info("x")["size"] == 1

    def test_removal_frees_steps(self, make: Way) -> None:
        client, _ = make(replay(size=4), max_steps=64, chunk_length=1)
        put(client, "t", range(40))
        chunks_become(client, 4)

    def test_where_inserts_never_wait_old_items_make_room_for_steps(self, make: Way) -> None:
        client, service = make(replay(size=1000), max_steps=32, chunk_length=4)
        writing = Background(lambda: put(client, "t", range(200)))
        writing.result()
        size = client.info("t")["size"]
        assert 1 <= size <= service.layout.rows
        assert 199 in set(drawn(client, "t", 2000)) and client.info("t")["deletes"] == 200 - size

    def test_a_full_store_keeps_writers_waiting_where_inserts_may_not_push_items_out(self, make: Way) -> None:
        client, service = make(tables.queue("t", 1000, NUMBER), max_steps=8, chunk_length=2)
        writing = Background(lambda: put(make.client(service, "ann"), "t", range(100)))
        text = waiting(service, "t", "waits to write steps")
        assert f"all {service.layout.rows} steps are taken" in text and "raise max_steps" in text and "ann" in text
        assert not writing.done
        found: list[int] = []
        while len(found) < 100:
            found += drawn(client, "t", min(7, 100 - len(found)))
        writing.result()
        assert found == list(range(100))
        chunks_become(client, 0)

    def test_a_table_of_sequences_is_filled_by_default(self, make: Way) -> None:
        table = replay(size=50, limiter=rate_limiters.min_size(50), steps_per_item=20)
        client, service = make(table, chunk_length=4)
        assert service.layout.rows >= 50 * 20 and client.tables["t"] == table
        put_sequences(client, "t", 50, 20)
        assert client.info("t")["size"] == 50 and client.sample("t", 1, timeout=0.0)

    @pytest.mark.parametrize("steps", [0.0, -1.0, float("inf"), float("nan")])
    def test_items_need_some_steps(self, make: Way, steps: float) -> None:
        with pytest.raises(UserError, match="steps_per_item="):
            make(replay(steps_per_item=steps))

    @pytest.mark.parametrize("settings", [
        {"limiter": rate_limiters.min_size(50)}, {"limiter": rate_limiters.sample_to_insert_ratio(1.0, 50, 10.0)},
        {"limiter": RateLimiter(1.0, 50, 0.0, 100.0), "max_times_sampled": 1},
    ], ids=["min_size", "ratio", "sampled once"])
    def test_too_few_steps_for_min_size_are_an_error_where_a_sampler_waits_for_it(
        self, make: Way, settings: dict[str, Any]
    ) -> None:
        client, service = make(replay(size=100, **settings), max_steps=16, chunk_length=4)
        sampling = Background(lambda: drawn(client, "t"))
        waiting(service, "t", "waits to sample")
        with pytest.raises(UserError, match=r"too small for min_size=50 .* raise max_steps to 4\d\d .*per_item=8"):
            put_sequences(make.client(service), "t", 50, 8)
        assert not sampling.done
        client.move_bounds("t", least=-1000.0, most=1000.0, min_size=1)
        assert len(sampling.result()) == 1

    def test_a_table_that_waits_for_samples_of_another_is_not_reported_as_too_small(self, make: Way) -> None:
        """There would be room as soon as the queue is sampled."""
        rare = replay("rare", size=100, limiter=RateLimiter(1.0, 50, 0.0, 100.0), max_times_sampled=1)
        client, service = make([rare, tables.queue("t", 1000, NUMBER)], max_steps=16, chunk_length=4)
        put(client, "rare", [7])
        writing = Background(lambda: put(make.client(service), "t", range(100)))
        assert "too small" not in waiting(service, "rare", "waits to write steps")
        sampling = Background(lambda: drawn(make.client(service), "rare", timeout=0.1))
        found: list[int] = []
        while len(found) < 100:
            found += drawn(client, "t")
        writing.result()
        with pytest.raises(TimeoutError, match="samples wait for 49 more items"):
            sampling.result()

    def test_a_later_sampler_ends_the_wait_of_a_stuck_writer(self, make: Way) -> None:
        limiter = RateLimiter(1.0, 50, 0.0, 100.0)
        client, service = make(replay(size=100, limiter=limiter, max_times_sampled=1), max_steps=16, chunk_length=4)
        writing = Background(lambda: put_sequences(make.client(service), "t", 50, 8))
        assert "max_steps is too small for min_size=50" in waiting(service, "t", "waits to write steps")
        with pytest.raises(TimeoutError, match="max_steps is too small"):
            drawn(client, "t", timeout=SECONDS / 4)
        with pytest.raises(UserError, match="raise max_steps to"):
            writing.result()

    def test_evictions_before_a_table_opens_are_explained(self, make: Way) -> None:
        client, _ = make(replay(size=100, limiter=rate_limiters.min_size(50)), max_steps=16, chunk_length=4)
        put_sequences(client, "t", 50, 8)
        assert "max_steps is too small for min_size=50" in client.explain("t")
        client.move_bounds("t", min_size=1)
        assert "too small" not in client.explain("t")

    def test_where_items_need_not_be_sampled_old_ones_make_room_within_the_ratio(self, make: Way) -> None:
        limiter = rate_limiters.sample_to_insert_ratio(1.0, 2, 4.0)
        client, service = make(replay(size=1000, limiter=limiter), max_steps=16, chunk_length=4)
        writing = Background(lambda: put_sequences(make.client(service), "t", 60, 8))
        for _ in range(56):
            drawn(client, "t")
        writing.result()
        info = client.info("t")
        assert info["inserts"] == 60 and info["size"] < 60

    def test_a_writer_that_could_only_wait_for_itself_is_refused(self, make: Way) -> None:
        """Its history alone is more than all chunks: nothing that anybody samples or deletes makes room for it."""
        client, service = make(replay(size=4), max_steps=4, chunk_length=2)
        put(client, "t", [-1])

        def write() -> None:
            with client.writer(history=10 * service.layout.rows) as writer:
                for i in range(2 * service.layout.rows):
                    writer.append({"x": i})

        with pytest.raises(UserError):
            Background(write).result(1.0)

    def test_more_envs_than_chunks_are_refused_with_the_steps_that_they_need(self, make: Way) -> None:
        client, service = make(replay(size=4), max_steps=4, chunk_length=2)
        envs = service.layout.num_chunks + 1
        with pytest.raises(UserError, match="raise max_steps"), client.writer(envs=envs) as writer:
            writer.append({"x": np.arange(envs)})

    def test_the_items_of_a_writer_outlive_it(self, make: Way) -> None:
        client, service = make(replay())
        own = make.client(service)
        put(own, "t", [3])
        own.close()
        assert drawn(client, "t") == [3]
