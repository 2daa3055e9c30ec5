"""A node that does not see the run's directory: its files reach the driver's node, and come back from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pappus.runtimes.file_transfer import FileTransfer, PartTransfer

pytest.importorskip("ray")

from pappus.runtimes.ray_registry import Registry


class Office:
    """A registry whose paths lie below another root, as another machine's would."""

    def __init__(self, here: Path, there: Path) -> None:
        self._registry, self._here, self._there = Registry({}, {}, ""), here, there
        self.calls: list[str] = []

    def ask(self, method: str, path: str, *rest: Any) -> Any:
        self.calls.append(method)
        answer = getattr(self._registry, method)(path.replace(str(self._here), str(self._there)), *rest)
        if method == "listing":
            return [found.replace(str(self._there), str(self._here)) for found in answer]
        return answer


def node(tmp_path: Path, name: str, *roles: str) -> tuple[Path, Office, FileTransfer]:
    """A node's own directory for the run, and its shipping to the driver's."""
    here, there = tmp_path / name / "run", tmp_path / "driver" / "run"
    there.mkdir(parents=True, exist_ok=True)
    fd_server = Office(here, there)
    return here, fd_server, FileTransfer(fd_server.ask, here / ".driver", roles, "replay" in roles)


def test_what_roles_save_arrives_and_what_they_begin_with_comes_back(tmp_path: Path) -> None:
    here, _, file_transfer = node(tmp_path, "first", "learner")
    partial = here / "checkpoints" / ".partial-step-1"
    file_transfer.prepare(partial)
    (partial / "learner.json").write_text("{}")
    (partial / "learner.safetensors").write_bytes(bytes(range(256)) * 100)
    file_transfer.send(partial)
    arrived = tmp_path / "driver" / "run" / "checkpoints" / ".partial-step-1"
    assert (arrived / "learner.safetensors").read_bytes() == bytes(range(256)) * 100
    there, _, again = node(tmp_path, "second", "learner")
    again.fetch(there / "checkpoints" / ".partial-step-1")
    assert (there / "checkpoints" / ".partial-step-1" / "learner.json").read_text() == "{}"


def test_roles_of_one_node_do_not_touch_each_others_files(tmp_path: Path) -> None:
    here, _, learner = node(tmp_path, "one", "learner")
    _, _, replay = node(tmp_path, "one", "replay")
    partial = here / "checkpoints" / ".partial-step-1"
    learner.prepare(partial)
    (partial / "learner.json").write_text("a")
    (partial / "replay.json").write_text("half")
    learner.send(partial)
    arrived = tmp_path / "driver" / "run" / "checkpoints" / ".partial-step-1"
    assert [path.name for path in arrived.iterdir()] == ["learner.json"]
    (partial / "replay.json").write_text("whole")
    replay.send(partial)
    assert (arrived / "replay.json").read_text() == "whole"


def test_tables_are_sent_once_dropped_where_their_replay_server_drops_them_and_only_the_needed_one_comes_back(
    tmp_path: Path,
) -> None:
    here, fd_server, file_transfer = node(tmp_path, "one", "replay")
    partial = here / "checkpoints" / ".partial-step-1"
    for number in (1, 2, 3):
        file_transfer.prepare(partial)
        folder = here / "replay" / f"replay-{number}"
        folder.mkdir(parents=True)
        (folder / "rows").write_text(f"rows {number}")
        (partial / "replay.json").write_text(f'{{"folder": "replay-{number}"}}')
        if number == 3:
            for path in (here / "replay" / "replay-1").iterdir():
                path.unlink()
            (here / "replay" / "replay-1").rmdir()
        fd_server.calls.clear()
        file_transfer.send(partial)
        assert fd_server.calls.count("write") == 2, "the words of the checkpoint, and the one new file"
    kept = tmp_path / "driver" / "run" / "replay"
    assert sorted(path.name for path in kept.iterdir()) == ["replay-2", "replay-3"]
    there, _, again = node(tmp_path, "other", "replay")
    again.fetch(there / "checkpoints" / ".partial-step-1")
    assert [path.name for path in (there / "replay").iterdir()] == ["replay-3"]


def test_where_all_see_the_directory_nothing_is_sent(tmp_path: Path) -> None:
    here, fd_server, _ = node(tmp_path, "one", "learner")
    here.mkdir(parents=True)
    (here / ".driver").touch()
    file_transfer = FileTransfer(fd_server.ask, here / ".driver", ["learner"])
    file_transfer.send(here / "checkpoints")
    file_transfer.fetch(here / "checkpoints")
    assert fd_server.calls == []


def test_what_roles_record_arrives_while_they_record_it_and_nothing_is_left(tmp_path: Path) -> None:
    here, there = tmp_path / "node" / "parts", tmp_path / "driver" / "parts"
    here.mkdir(parents=True)
    office = Office(here, there)
    (here / "actor-0.before.part").write_bytes(b"of a predecessor")
    (here / "actor-1.other.part").write_bytes(b"of another")
    transfer = PartTransfer(office.ask, here, ["actor-0"])
    growing, arrived = here / "actor-0.now.part", there / "actor-0.now.part"
    for text in (b"one", b"two", b""):
        with growing.open("ab") as file:
            file.write(text)
        transfer.send()
        assert arrived.read_bytes() == growing.read_bytes()
    transfer.end()
    assert [path.name for path in here.iterdir()] == ["actor-1.other.part"]
    assert {path.name for path in there.iterdir()} == {"actor-0.before.part", "actor-0.now.part"}
    assert office.calls == ["write"] * 3, "nothing is sent twice"


def test_a_node_that_sees_the_folder_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}")
    (tmp_path / "actor-0.now.part").write_bytes(b"rows")
    office = Office(tmp_path, tmp_path)
    PartTransfer(office.ask, tmp_path, ["actor-0"]).end()
    PartTransfer(office.ask, None, ["actor-0"]).end()
    assert office.calls == [] and (tmp_path / "actor-0.now.part").exists()
