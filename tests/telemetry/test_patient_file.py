"""Records reach their file, be it later; what cannot wait any longer is counted."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from pappus.telemetry.patient_file import PatientFile
from pappus.telemetry.storage import FIRST_RETRY, Storage
from tests.telemetry.helpers import FakeTime


class Disk:
    """Takes only so many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: float = float("inf")
        self._write = os.write
        self.attempts = 0
        monkeypatch.setattr("pappus.telemetry.patient_file.os.write", self.write)

    def write(self, file: int, data: bytes) -> int:
        self.attempts += 1
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(file, data[: int(min(self.room, len(data)))])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_records_wait_for_room_and_nothing_is_lost(tmp_path: Path, disk: Disk) -> None:
    storage, clock = Storage(), FakeTime()
    file = PatientFile(tmp_path / "metrics.jsonl", storage, clock=clock)
    file.append(b"one\n")
    disk.room = 2
    file.append(b"two\n")
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"one\n", "half a record is taken back"
    disk.room = float("inf")
    file.append(b"three\n")
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"one\n", "it is not tried again at once"
    clock.pass_(FIRST_RETRY)
    file.append(b"four\n")
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"one\ntwo\nthree\nfour\n"
    failed, works = storage.news()
    assert "No space left on device; the run goes on" in failed and "written again, with 3 records" in works
    assert not storage.lost and storage.failures == {"metrics.jsonl": 1}


def test_attempts_become_rarer_and_are_told_once(tmp_path: Path, disk: Disk) -> None:
    storage, clock = Storage(), FakeTime()
    file = PatientFile(tmp_path / "metrics.jsonl", storage, clock=clock)
    disk.room = 0
    for _ in range(600):
        file.append(b"line\n")
        clock.pass_(1.0)
    assert disk.attempts == 15, "after 1, 2, 4, 8, 16 and 32 s, then every minute"
    assert len(storage.news()) == 1 and storage.line() == "metrics.jsonl cannot be written"


def test_beyond_the_bound_the_oldest_are_lost_and_counted(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pappus.telemetry.patient_file.WAITING_BYTES", 12)
    storage = Storage()
    file = PatientFile(tmp_path / "metrics.jsonl", storage, clock=FakeTime())
    disk.room = 0
    for i in range(5):
        file.append(f"{i:03d}\n".encode())
    disk.room = float("inf")
    file.settle()
    assert (tmp_path / "metrics.jsonl").read_text() == "002\n003\n004\n"
    assert storage.lost == {"metrics.jsonl": 2}


def test_what_waits_is_written_at_the_end_when_there_is_room_and_nothing_is_lost(tmp_path: Path, disk: Disk) -> None:
    storage = Storage()
    file = PatientFile(tmp_path / "metrics.jsonl", storage, clock=FakeTime())
    disk.room = 0
    file.append(b"one\n")
    disk.room = float("inf")
    file.settle()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"one\n"
    assert not storage.lost and storage.line() == ""


def test_what_waits_at_the_end_is_lost(tmp_path: Path, disk: Disk) -> None:
    storage = Storage()
    file = PatientFile(tmp_path / "log.txt", storage, clock=FakeTime())
    disk.room = 0
    file.append(b"line\n")
    file.close()
    assert storage.to_dict() == {"storage": {"failures": {"log.txt": 2}, "lost": {"log.txt": 1}}}


def test_a_directory_that_vanishes_is_made_anew_with_the_header_of_its_file(tmp_path: Path) -> None:
    storage = Storage()
    file = PatientFile(tmp_path / "run" / "events", storage, header=b"version\n")
    file.append(b"one\n")
    shutil.rmtree(tmp_path / "run")
    file.append(b"two\n")
    assert (tmp_path / "run" / "events").read_bytes() == b"version\ntwo\n"
    assert storage.lost == {"events": 1} and "removed or moved" in storage.news()[0]
