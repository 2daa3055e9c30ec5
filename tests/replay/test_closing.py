"""A service that is closed leaves nothing behind, and neither does a checkpoint that was never finished."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from pappus.errors import RunError
from pappus.replay import ArraySpec, Client, Service, uniform_replay
from pappus.replay.service.checkpoint import DRAFT, remove_drafts, save
from pappus.replay.storage.compression import DiscardableMemory
from pappus.replay.wire.sockets import SharedMemory
from tests.contracts.replay_tools import Background, drawn, put, replay, waiting

pytestmark = pytest.mark.timeout(60)
FRAMES = {"x": ArraySpec((), "int64"), "obs": ArraySpec((64, 64), "uint8")}


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def compressing() -> int:
    return sum(thread.name == "replay compression" for thread in threading.enumerate())


def test_closing_ends_the_thread_that_compresses() -> None:
    before = compressing()
    with Service([uniform_replay("t", 100, FRAMES)], compress=["obs"]) as service:
        client = Client.of(service)
        with client.writer(history=1) as writer:
            for number in range(100):
                writer.append({"x": number, "obs": np.full((64, 64), number)})
                writer.create_item("t", 1.0, {"x": writer.history["x"][-1:], "obs": writer.history["obs"][-1:]})
        assert compressing() == before + 1
    assert compressing() == before
    service.close()
    client.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are looked up in /proc")
def test_closing_gives_descriptors_and_memory_back() -> None:
    gc.collect()
    before = descriptors()
    memory = SharedMemory()
    allocated: list[weakref.ref[object]] = []

    def allocate(nbytes: int) -> DiscardableMemory:
        found = memory.allocate(nbytes)
        allocated.append(weakref.ref(found.mapping))
        return found

    service = Service([replay()], allocate=allocate, compress=["x"])
    client = Client.of(service)
    put(client, "t", range(5))
    assert descriptors() > before
    service.close()
    client.close()
    del client
    gc.collect()
    assert allocated[0]() is None and descriptors() == before


def test_an_unused_service_is_freed_at_once() -> None:
    gc.disable()
    try:
        service = Service([replay()])
        client = Client.of(service)
        put(client, "t", range(5))
        assert drawn(client, "t")
        left = weakref.ref(service)
        del service, client
        assert left() is None
    finally:
        gc.enable()


def test_closing_a_service_ends_waits_with_an_error() -> None:
    service = Service([replay()])
    client = Client.of(service)
    sampling = Background(lambda: drawn(client, "t"))
    waiting(service, "t", "waits to sample")
    service.close()
    with pytest.raises(RunError, match="was closed"):
        sampling.result()


def test_a_closed_service_does_nothing_any_more(tmp_path: Path) -> None:
    service = Service([replay()])
    client, other = Client.of(service), Client.of(service)
    writer = client.writer()
    put(client, "t", [1])
    service.close()
    for use in (
        lambda: drawn(client, "t"), lambda: put(other, "t", [2]), lambda: client.info("t"), lambda: client.reset("t"),
        lambda: writer.append({"x": 1}), lambda: save(service, tmp_path / "saved"),
    ):
        with pytest.raises(RunError, match="was closed"):
            use()
    client.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_only_drafts_of_dead_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    me, thread = os.getpid(), threading.get_ident()
    gone = [f".replay-1.{ended.pid}-{thread}", f".a.b.{1 << 70}-1", f".replay-2.{me}-1"]
    stay = [f".replay-3.{me}-{thread}", f".replay-4.{os.getppid()}-1", "replay-5", ".replay", f"replay-6.{ended.pid}-1"]
    for name in (*gone, *stay):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chunks.bin").write_bytes(b"rows")
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stay)
    remove_drafts(tmp_path / "nowhere")


def test_a_draft_is_named_as_those_that_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def see(*_: object) -> None:
        found.extend(path.name for path in tmp_path.iterdir())
        raise OSError("no space")

    monkeypatch.setattr("pappus.replay.service.checkpoint.save_file", see)
    with pytest.raises(RunError, match="no space"):
        save(Service([replay()]), tmp_path / "saved")
    assert len(found) == 1 and DRAFT.fullmatch(found[0])
