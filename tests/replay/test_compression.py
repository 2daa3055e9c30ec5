"""Compressed columns read as if they were not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pappus.config import WireConfig
from pappus.errors import UserError
from pappus.replay import ArraySpec, Client, Service, Trajectory, col, uniform_replay
from pappus.replay.service.checkpoint import load, save
from pappus.replay.wire.grpc_wire import GrpcServer
from pappus.replay.wire.grpc_wire import connect as far
from pappus.replay.wire.sockets import SharedMemory, SocketServer
from pappus.replay.wire.sockets import connect as near
from pappus.types import Array

FRAME = (64, 64)
SIGNATURE = {"obs": ArraySpec(FRAME, "uint8"), "noise": ArraySpec(FRAME, "uint8"), "number": ArraySpec((), "int64")}
Make = Callable[..., tuple[Client, Service]]


@pytest.fixture(params=["in process", "shared memory", "grpc"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a service with a compressed column, and a client that reaches it in one of the ways."""
    closing: list[Callable[[], None]] = []

    def made(max_size: int, **options: object) -> tuple[Client, Service]:
        memory = SharedMemory()
        service = Service(
            [uniform_replay("replay", max_size, SIGNATURE, lead=3)], max_size + 64, seed=5,
            allocate=memory.allocate if request.param == "shared memory" else None, **options,  # type: ignore[arg-type]
        )
        if request.param == "in process":
            return Client.of(service), service
        if request.param == "shared memory":
            server = SocketServer(service, memory, str(tmp_path / "r.sock"))
            closing.append(server.close)
            return Client(lambda: near(server.path)), service
        wire = GrpcServer(service, WireConfig(listen=f"unix:{tmp_path}/g.sock"))
        closing.append(wire.close)
        return Client(lambda: far(wire.address)), service

    yield made
    for close in closing:
        close()


def frame(number: int) -> Array:
    """Mostly background, as in a game; different for every number."""
    picture = np.full(FRAME, 17, np.uint8)
    picture[number % 60 : number % 60 + 4, number // 60 % 60 : number // 60 % 60 + 4] = 200
    return picture


def write(client: Client, count: int, history: int = 8) -> None:
    rng = np.random.default_rng(0)
    with client.writer(history=history) as writer:
        for number in range(count):
            noise = rng.integers(0, 256, FRAME, np.uint8)
            writer.append({"obs": frame(number), "noise": noise, "number": number})
            if number >= 2:
                writer.create_item("replay", 1.0, {name: writer.history[name][-3:] for name in SIGNATURE})


def check(client: Client, draws: int = 20) -> set[int]:
    shape = Trajectory(obs=col("obs").stack(4), number=col("number"))
    seen: set[int] = set()
    for _ in range(draws):
        batch = client.sample("replay", 32, shape)
        for item in range(32):
            for t, number in enumerate(batch.data["number"][item].tolist()):
                expected = [frame(max(0, number - back)) for back in (3, 2, 1, 0)]
                np.testing.assert_array_equal(batch.data["obs"][item, t], expected)
                seen.add(number)
    return seen


def test_what_is_sampled_is_what_was_written(make: Make) -> None:
    client, service = make(300, compress=["obs"])
    write(client, 300)
    service.settle()
    assert client.info("replay")["packed_bytes"] > 0
    assert len(check(client)) > 200


def test_reading_while_chunks_are_being_compressed(make: Make) -> None:
    client, service = make(300, compress=["obs"])
    write(client, 60)
    check(client, 3)
    write(client, 200)
    check(client, 3)
    service.settle()
    check(client, 3)


def test_chunks_are_used_again_and_their_packed_blocks_forgotten(make: Make) -> None:
    client, service = make(100, compress=["obs"])
    write(client, 700)
    service.settle()
    assert min(check(client)) >= 700 - 102 - 3
    client.reset("replay")
    service.settle()
    info = client.info("replay")
    assert info["packed_bytes"] == 0 and info["chunks"] == 0


def test_auto_takes_the_columns_that_shrink(make: Make) -> None:
    client, service = make(500, compress="auto")
    write(client, 500)
    service.settle()
    assert service._compression is not None and service._compression.columns == ("obs",)
    assert 0 < client.info("replay")["packed_bytes"] < 500 * 64 * 64 / 4
    check(client, 3)
    noise = np.random.default_rng(0).integers(0, 256, (500, *FRAME), np.uint8)
    batch = client.sample("replay", 64, Trajectory(noise=col("noise"), number=col("number")))
    np.testing.assert_array_equal(batch.data["noise"], noise[batch.data["number"]])


def test_a_checkpoint_has_the_rows_themselves(make: Make, tmp_path: Path) -> None:
    client, service = make(200, compress=["obs"])
    write(client, 200)
    service.settle()
    save(service, tmp_path / "saved")
    plain = Service([uniform_replay("replay", 200, SIGNATURE, lead=3)], 264)
    load(plain, tmp_path / "saved")
    check(Client.of(plain), 5)


def test_what_is_restored_is_compressed_block_by_block(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = make(400, compress=["obs"])
    monkeypatch.setattr("pappus.replay.service.checkpoint.BLOCK_BYTES", 2 * 32 * (2 * 64 * 64 + 8))
    write(client, 400)
    save(service, tmp_path / "saved")
    again = Service([uniform_replay("replay", 400, SIGNATURE, lead=3)], 464, compress=["obs"])
    plain, pack = [], again.pack

    def counted(chunks: Array) -> None:
        plain.append(int(again.chunks.columns["obs"].any(axis=(1, 2)).sum()))
        pack(chunks)

    monkeypatch.setattr(again, "pack", counted)
    load(again, tmp_path / "saved")
    assert len(plain) >= 7 and max(plain) <= 2 * 32 and not again.chunks.columns["obs"].any()
    assert again.info("replay")["packed_bytes"] > 0
    check(Client.of(again), 5)


def test_memory_is_returned_to_the_system() -> None:
    service = Service([uniform_replay("replay", 4000, SIGNATURE)], 4000, compress=["obs"])
    client = Client.of(service)
    write(client, 4000)
    service.settle()
    before = _resident_shared()
    client.reset("replay")
    plain = Service([uniform_replay("replay", 4000, SIGNATURE)], 4000, compress=["number"])
    write(Client.of(plain), 4000)
    plain.settle()
    frames = 4000 * 64 * 64
    assert _resident_shared() - before > 1.8 * frames > 1.2 * frames > 0
    assert before < _resident_shared() - frames


def _resident_shared() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssShmem")).split()[1]) * 1024


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(UserError, match="'obz', which is no column; did you mean 'obs'"):
        Service([uniform_replay("replay", 10, SIGNATURE)], compress=["obz"])
