"""A trace survives its writer, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pappus.errors import RecordingError
from pappus.trace.log import Life, TraceEnded, TraceError, TraceLog, load_lives


def life_of(folder: Path, *lines: str, role: str = "actor-0", incarnation: int = 0, rest: str = "") -> Life:
    path = folder / f"{role}.{incarnation}.log"
    path.write_text("".join(f"{line}\n" for line in ("pid 7", *lines)) + rest)
    life = Life.load(path)
    assert life is not None
    return life


def test_what_was_written_is_read_back_in_order(tmp_path: Path) -> None:
    log = TraceLog(tmp_path, "actor-0", 2)
    log.write("read", 3)
    log.write("take", 1, 0, 2)
    (life,) = load_lives(tmp_path)["actor-0"]
    assert life.key == "actor-0.2" and life.name == "actor-0 (incarnation 2)"
    assert life.next("read") == [3] and life.upcoming() == "take 1 0 2" and life.next("take") == [1, 0, 2]
    with pytest.raises(TraceEnded):
        life.peek("read")


def test_a_torn_last_line_is_no_entry(tmp_path: Path) -> None:
    life = life_of(tmp_path, "read 3", rest="read 1")  # the beginning of another number
    assert life.all("read") == [["3"]]


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 3 of '.*actor-0.0.log' is no entry of a trace: b'read three!'"):
        life_of(tmp_path, "read 3", "read three!")


def test_an_entry_of_another_kind_names_who_is_about_to_do_what(tmp_path: Path) -> None:
    life = life_of(tmp_path, "read 3")
    with pytest.raises(TraceError, match="actor-0 is about to take, and its trace says 'read 3'"):
        life.next("take")


def test_lives_come_in_their_order_and_without_those_that_met_nothing(tmp_path: Path) -> None:
    for incarnation in (10, 2):
        life_of(tmp_path, "begin 0", incarnation=incarnation)
    (tmp_path / "actor-0.11.log").write_text("pid 8\n")
    (tmp_path / "actor-0.12.log").write_text("pi")
    assert [life.incarnation for life in load_lives(tmp_path)["actor-0"]] == [2, 10]


def test_a_trace_that_cannot_be_written_is_an_error_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"cannot be written: No such file or directory; make room, or leave"):
        TraceLog(tmp_path / "gone", "actor-0", 0)
