"""A server removes its own old checkpoints, by numbers that it counts itself, and nobody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pappus.config import WireConfig
from pappus.errors import INCOMPLETE
from pappus.replay import connect
from pappus.replay.serve.command import KEPT, StandAlone
from pappus.replay.service.checkpoint import is_own, sequence_of
from pappus.replay.service.retention import newest_first
from tests.replay.test_serve import TABLES, write
from tests.roles.test_replay_server import full


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandAlone]:
    made = begin(tmp_path)
    yield made
    made.close()


def begin(folder: Path) -> StandAlone:
    (folder / "tables.yaml").write_text(TABLES)
    return StandAlone(str(folder / "tables.yaml"), WireConfig("127.0.0.1:0"), str(folder / "saved"), 0.0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "saved").iterdir())


def test_names_that_a_client_chose_make_the_server_delete_nothing_of_its_own(
    tmp_path: Path, server: StandAlone
) -> None:
    client, foreign = connect(f"tcp:{server.address}"), [f"replay-9999999999999999999{digit}" for digit in (8, 9)]
    for name in foreign:
        client.checkpoint(name)
    for _ in range(4):
        server._save()
    own = [path for path in newest_first(tmp_path / "saved") if is_own(path)]
    assert len(own) == KEPT and [sequence_of(path) for path in own] == [6, 5], "the last ones"
    assert set(foreign) <= set(names(tmp_path)), "a client's are kept"


def test_a_name_that_a_client_took_is_passed_over(tmp_path: Path, server: StandAlone) -> None:
    connect(f"tcp:{server.address}").checkpoint("replay-00000000000000000002")
    server._save()
    assert names(tmp_path) == ["replay-00000000000000000002", "replay-00000000000000000003"]


def test_clocks_that_go_back_change_neither_what_is_kept_nor_what_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = begin(tmp_path)
    for hour in (9, 8, 7):
        monkeypatch.setattr("time.time_ns", lambda hour=hour: hour * 3600 * 10**9)
        write(connect(f"tcp:{server.address}"), 10)
        server._save()
        newest = newest_first(tmp_path / "saved")[0]
        os.utime(newest, (hour * 3600, hour * 3600))
    server.close()  # the fourth
    assert [sequence_of(path) for path in newest_first(tmp_path / "saved")] == [4, 3]
    os.utime(newest_first(tmp_path / "saved")[0], (0, 0))
    begin(tmp_path).close()
    assert "replay-00000000000000000004: replay 30 items" in capsys.readouterr().err


def test_a_server_that_cannot_write_says_so_once_and_again_in_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = begin(tmp_path)
    write(connect(f"tcp:{server.address}"), 10)
    monkeypatch.setattr("pappus.replay.service.checkpoint._write_chunks", full)
    server._save()
    server._save()
    assert server._service.info("replay")["size"] == 10
    server._stopped.set()
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process is the tests'
    monkeypatch.setattr("pappus.replay.serve.command.set_title", lambda _: None)
    assert server.run() == INCOMPLETE
    assert capsys.readouterr().err.count("cannot be written: [Errno 28] No space left on device") == 1


def test_a_damaged_checkpoint_is_neither_counted_nor_removed(tmp_path: Path, server: StandAlone) -> None:
    server._save()
    manifest = tmp_path / "saved" / names(tmp_path)[0] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"sequence": 1', '"sequence": 99'))
    for _ in range(3):
        server._save()
    assert names(tmp_path) == [f"replay-{number:020d}" for number in (1, 3, 4)]
