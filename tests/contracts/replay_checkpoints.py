"""A part of the contract of `replay_contract.py`: what is saved comes back."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.errors import PappusError, RunError, UserError
from pappus.replay.clients.client import Client
from pappus.replay.service.checkpoint import load, save
from pappus.replay.service.service import Service
from pappus.replay.tables import rate_limiters
from pappus.replay.tables import table as tables
from pappus.replay.tables.table import FIFO, LIFO, MAX_HEAP, MIN_HEAP, UNIFORM, Table, prioritized
from pappus.types import ArraySpec
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    Background,
    Way,
    chunks,
    chunks_become,
    drawn,
    only_items_hold_chunks,
    present,
    put,
    replay,
)
from tests.process_tools import eventually


class Checkpoints:
    """A service on disk, and back."""

    TABLES = (
        replay("uniform", 6), replay("ranked", 6, prioritized(0.7), MIN_HEAP), tables.queue("queue", 8, NUMBER),
        replay("thrice", 6, MAX_HEAP, LIFO, rate_limiters.sample_to_insert_ratio(3.0, 2, 30.0), max_times_sampled=3),
    )

    def filled(self, make: Way) -> tuple[Client, Service]:
        client, service = make(self.TABLES, max_steps=64, chunk_length=4)
        with client.writer(history=8) as writer:
            for i in range(6):
                writer.append({"x": i})
                for table in ("uniform", "ranked", "queue", "thrice"):
                    writer.create_item(table, 1.0 + i % 3, {"x": writer.history["x"][-3:]})
                if i % 4 == 3:
                    writer.end_episode()
        for table in ("uniform", "ranked", "queue", "thrice"):
            client.sample(table, 2)
        return client, service

    def fresh(self, make: Way, **options: Any) -> tuple[Client, Service]:
        return make(self.TABLES, **{"max_steps": 64, "chunk_length": 4, **options})

    def assert_unused(self, client: Client) -> None:
        for table in client.tables:
            info = client.info(table)
            assert [info[name] for name in ("size", "inserts", "samples", "deletes", "chunks")] == [0] * 5

    def assert_alike(self, one: Client, two: Client, table: str, count: int = 3, turns: int = 5) -> None:
        """Equal counts, and from now on equal draws."""
        assert one.info(table) == two.info(table)
        for _ in range(turns):
            first, second = (client.sample(table, count, timeout=SECONDS) for client in (one, two))
            assert first.data["x"].tolist() == second.data["x"].tolist()
            for field in ("keys", "probabilities", "priorities", "times_sampled", "ages"):
                assert getattr(first.info, field).tolist() == getattr(second.info, field).tolist(), field
            assert (first.info.table_size, first.info.mass) == (second.info.table_size, second.info.mass)

    def test_a_checkpoint_restores_all_items(self, make: Way, tmp_path: Path) -> None:
        client, _ = self.filled(make)
        chunks_become(client, 2, "queue")
        path = client.checkpoint(str(tmp_path / "saved"))
        assert sorted(file.name for file in Path(path).iterdir()) == [
            "chunks.bin", "manifest.json", "tables.safetensors"
        ]
        again, service = self.fresh(make)
        load(service, path)
        for table, turns in (("uniform", 5), ("ranked", 5), ("queue", 2), ("thrice", 4)):
            self.assert_alike(client, again, table, count=2, turns=turns)

    def test_draws_stay_uniform_after_deletions(self, make: Way, tmp_path: Path) -> None:
        specs = [replay("ranked", 6, prioritized(0.7), MIN_HEAP), replay("old", 6, FIFO, UNIFORM), replay("uniform", 6)]
        client, service = make(specs)
        for table in ("ranked", "old", "uniform"):
            put(client, table, range(15), [3.0, 1.0, 2.0] * 5)
        save(service, tmp_path / "saved")
        again, service = make(specs)
        load(service, tmp_path / "saved")
        for table in ("ranked", "old", "uniform"):
            self.assert_alike(client, again, table, count=8)

    def test_a_restored_service_continues_exactly(self, make: Way, tmp_path: Path) -> None:
        client, service = self.filled(make)
        save(service, tmp_path / "saved")
        again, service = self.fresh(make)
        load(service, tmp_path / "saved")
        for one in (client, again):
            put(one, "ranked", [70, 80], [9.0, 0.5])
            put(one, "queue", [70, 80])
        assert client.info("ranked")["size"] == again.info("ranked")["size"] == 6
        for table in ("ranked", "queue"):
            first, second = (one.sample(table, 6) for one in (client, again))
            assert first.data["x"].tolist() == second.data["x"].tolist()
            assert first.info.priorities.tolist() == second.info.priorities.tolist()

    def test_keys_do_not_repeat_after_loading(self, make: Way, tmp_path: Path) -> None:
        client, service = make(replay(size=4, sampler=FIFO, max_times_sampled=1))
        put(client, "t", range(4))
        seen = client.sample("t", 3).keys.tolist()
        save(service, tmp_path / "saved")
        again, service = make(replay(size=4, sampler=FIFO, max_times_sampled=1))
        load(service, tmp_path / "saved")
        put(again, "t", range(3))
        seen += again.sample("t", 4).keys.tolist()
        assert len(set(seen)) == 7

    def test_limiters_resume_their_counts(self, make: Way, tmp_path: Path) -> None:
        limiter = rate_limiters.sample_to_insert_ratio(1.0, 1, 2.0)
        client, service = make(replay(limiter=limiter))
        put(client, "t", [0, 1])
        client.sample("t", 3)
        client.move_bounds("t", least=-1.5)
        save(service, tmp_path / "saved")
        again, service = make(replay(limiter=limiter))
        load(service, tmp_path / "saved")
        assert again.explain("t") == client.explain("t")
        with pytest.raises(TimeoutError):
            again.sample("t", 1, timeout=0)
        for one in (client, again):
            put(one, "t", [2])
            assert len(drawn(one, "t", 3, timeout=0)) == 1, "a balance of 0, and a band down to -1.5"

    def test_steps_that_tables_share_are_saved_once_and_shared_again(self, make: Way, tmp_path: Path) -> None:
        two = [replay("a"), replay("b")]
        client, service = make(two, max_steps=32, chunk_length=4)
        with client.writer() as writer:
            for i in range(8):
                writer.append({"x": i})
            for table in ("a", "b"):
                writer.create_item(table, 1.0, {"x": writer.history["x"][2:7]})
        save(service, tmp_path / "saved")
        assert (tmp_path / "saved" / "chunks.bin").stat().st_size == 2 * 4 * 8
        again, service = make(two, max_steps=32, chunk_length=4)
        load(service, tmp_path / "saved")
        assert chunks(again, "a") == 2 and again.sample("b", 1).data["x"].tolist() == [[2, 3, 4, 5, 6]]
        again.reset("a")
        assert chunks(again, "a") == 2
        again.reset("b")
        chunks_become(again, 0, "a")

    def test_an_empty_service_can_be_saved(self, make: Way, tmp_path: Path) -> None:
        client, _ = self.fresh(make)
        path = client.checkpoint(str(tmp_path / "saved"))
        again, service = self.fresh(make)
        load(service, path)
        self.assert_unused(again)
        put(again, "uniform", [1])
        assert drawn(again, "uniform") == [1]

    def test_saving_frees_what_it_held(self, make: Way, tmp_path: Path) -> None:
        client, service = self.filled(make)
        client.checkpoint(str(tmp_path / "saved"))
        eventually(lambda: only_items_hold_chunks(service), SECONDS)
        for table in client.tables:
            client.reset(table)
        chunks_become(client, 0, "queue")

    def test_a_folder_that_exists_is_left_alone(self, make: Way, tmp_path: Path) -> None:
        client, service = self.filled(make)
        (tmp_path / "saved").mkdir()
        (tmp_path / "saved" / "mine").write_text("precious")
        with pytest.raises(UserError, match="exists already; give a new name"):
            client.checkpoint(str(tmp_path / "saved"))
        assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["mine"]
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    def test_a_failed_save_is_reported_in_one_sentence_and_releases_everything(
        self, make: Way, tmp_path: Path
    ) -> None:
        client, service = self.filled(make)
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match="cannot be written"):
            client.checkpoint(str(tmp_path / "file" / "saved"))
        with pytest.raises(PappusError):
            client.checkpoint(str(tmp_path / ("long" * 100)))
        eventually(lambda: only_items_hold_chunks(service), SECONDS)
        assert present(client, "uniform")
        assert [file.name for file in tmp_path.iterdir() if not file.is_socket()] == ["file"]

    def test_a_service_that_was_used_takes_no_checkpoint(self, make: Way, tmp_path: Path) -> None:
        _, service = self.filled(make)
        save(service, tmp_path / "saved")
        with pytest.raises(UserError, match="a service that was not used yet"):
            load(service, tmp_path / "saved")
        client, service = self.fresh(make)
        with client.writer() as writer:
            writer.append({"x": 1})
            writer.flush()
            with pytest.raises(UserError, match="was not used yet"):
                load(service, tmp_path / "saved")

    def refused(self, make: Way, path: Path, **options: Any) -> tuple[Client, Service]:
        """A service that would not take a checkpoint, and is as unused as before."""
        client, service = self.fresh(make, **options)
        with pytest.raises(PappusError) as raised:
            load(service, path)
        assert str(path) in str(raised.value)
        self.assert_unused(client)
        return client, service

    @pytest.mark.parametrize("name", ["chunks.bin", "tables.safetensors", "manifest.json"])
    def test_a_damaged_file_is_refused_and_the_service_stays_unused(
        self, make: Way, tmp_path: Path, name: str
    ) -> None:
        _, service = self.filled(make)
        saved = save(service, tmp_path / "saved")
        whole = (saved / name).read_bytes()
        middle = len(whole) // 2
        client, service = self.fresh(make)
        for damaged in (
            whole[:middle], whole[:-1], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:], b"",
            whole + b"more", np.random.default_rng(0).bytes(len(whole)), None,
        ):
            if damaged is None:
                (saved / name).unlink()
            else:
                (saved / name).write_bytes(damaged)
            with pytest.raises(PappusError) as raised:
                load(service, saved)
            assert str(saved) in str(raised.value)
            self.assert_unused(client)
        (saved / name).write_bytes(whole)
        load(service, saved)
        assert client.info("uniform")["size"] == 6

    @pytest.mark.parametrize("word", ["counts", "random", "limiter", "table"])
    def test_a_manifest_without_a_word_is_refused_and_the_service_stays_unused(
        self, make: Way, tmp_path: Path, word: str
    ) -> None:
        _, service = self.filled(make)
        saved = save(service, tmp_path / "saved")
        manifest = json.loads((saved / "manifest.json").read_text())
        del manifest["tables"][1][word]
        (saved / "manifest.json").write_text(json.dumps(manifest))
        self.refused(make, saved)

    def test_a_manifest_with_another_number_is_refused(self, make: Way, tmp_path: Path) -> None:
        _, service = self.filled(make)
        saved = save(service, tmp_path / "saved")
        manifest = json.loads((saved / "manifest.json").read_text())
        manifest["tables"][0]["counts"][0] += 1
        (saved / "manifest.json").write_text(json.dumps(manifest, indent=1))
        self.refused(make, saved)

    def test_what_is_no_checkpoint_is_refused(self, make: Way, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("{}")
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "manifest.json").write_text('{"format": "pappus replay 99"}')
        (tmp_path / "list").mkdir()
        (tmp_path / "list" / "manifest.json").write_text("[1, 2]")
        for name in ("empty", "file", "foreign", "list", "absent"):
            self.refused(make, tmp_path / name)

    @pytest.mark.parametrize(
        "others",
        [
            [replay("other", 6)], [replay("uniform", 6)], [replay("uniform", 7), *TABLES[1:]],
            [*TABLES, replay("fifth")],
            [replay("uniform", 6, signature={"x": ArraySpec((), "float64")}),
             *(replay(t.name, t.max_size, signature={"x": ArraySpec((), "float64")}) for t in TABLES[1:])],
        ],
        ids=["names", "fewer", "size", "more", "columns"],
    )
    def test_a_checkpoint_of_other_tables_is_refused(self, make: Way, tmp_path: Path, others: list[Table]) -> None:
        _, service = self.filled(make)
        save(service, tmp_path / "saved")
        client, service = make(others, max_steps=64, chunk_length=4)
        with pytest.raises(UserError, match="checkpoint"):
            load(service, tmp_path / "saved")
        self.assert_unused(client)

    def test_priorities_that_a_table_cannot_have_are_refused_and_the_service_stays_unused(
        self, make: Way, tmp_path: Path
    ) -> None:
        client, service = make([replay("a"), replay("t", sampler=MIN_HEAP)])
        put(client, "a", [1])
        put(client, "t", [1, 2], [2.0, -1.0])
        save(service, tmp_path / "saved")
        client, service = make([replay("a"), replay("t", sampler=prioritized(1.0))])
        with pytest.raises(PappusError):
            load(service, tmp_path / "saved")
        self.assert_unused(client)
        put(client, "t", [3])
        assert drawn(client, "t") == [3]

    def test_a_checkpoint_that_does_not_fit_is_refused_with_the_steps_that_it_needs(
        self, make: Way, tmp_path: Path
    ) -> None:
        client, service = make(replay(size=60), max_steps=60, chunk_length=1)
        put(client, "t", range(60), together=10, history=10)
        save(service, tmp_path / "saved")
        client, service = make(replay(size=60), max_steps=20, chunk_length=1)
        with pytest.raises(UserError, match="raise max_steps to that"):
            load(service, tmp_path / "saved")
        self.assert_unused(client)
        self.refused(make, self.saved_with(make, tmp_path / "other", chunk_length=2))

    def saved_with(self, make: Way, path: Path, **options: Any) -> Path:
        _, service = self.fresh(make, **options)
        return save(service, path)

    def test_saving_runs_beside_inserts_and_samples(self, make: Way, tmp_path: Path) -> None:
        client, service = make(replay(size=64), max_steps=400, chunk_length=4)
        stop = threading.Event()

        def write() -> int:
            with make.client(service).writer(history=4) as writer:
                for i in itertools.count():
                    writer.append({"x": i})
                    if i >= 2:
                        writer.create_item("t", 1.0, {"x": writer.history["x"][-3:]})
                    if stop.is_set():
                        return i - 1
            raise AssertionError

        writing = Background(write)
        eventually(lambda: client.info("t")["inserts"] > 100, SECONDS)
        saved = []
        for turn in range(4):
            saved.append(client.checkpoint(str(tmp_path / f"saved{turn}")))
            client.sample("t", 8)
        stop.set()
        assert writing.result() == client.info("t")["inserts"]
        before = 0
        for path in saved:
            again, fresh = make(replay(size=64), max_steps=400, chunk_length=4)
            load(fresh, path)
            info = again.info("t")
            assert info["size"] == 64 and info["inserts"] >= max(before, 100)
            batch = again.sample("t", 500)
            x = batch.data["x"]
            assert (np.diff(x, axis=1) == 1).all() and x.min() == info["inserts"] - 64
            assert x.max() == info["inserts"] + 1
            before = info["inserts"]
