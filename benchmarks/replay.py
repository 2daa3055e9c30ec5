"""How fast is replay, in process, through shared memory and over gRPC, and beside others?

    python -m benchmarks.replay                                  # all workloads, all ways
    python -m benchmarks.replay --workloads atari --peers        # and the peers, in the same run

A *cycle* is what a learner does: draw a prioritized batch, have its arrays, write new priorities back. Workloads:

    atari       n-step transitions (n = 3), frames of 84×84 bytes, stacks of 4 on both sides, batches of 512
    sequences   80 + 40 steps of single frames, a new one every 40 steps, batches of 32
    small       44 bytes an item, batches of 512

Frames are random, so nothing compresses. Memory is what the storing process grew by, per item.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.peers import replay as peers
from pappus.replay import ArraySpec, Client, Service, Table, Trajectory, TrajectoryWriter, col, connect
from pappus.replay import prioritized_replay as prioritized
from pappus.types import Array

ENVS = 64
WAYS = ("in process", "shared memory", "gRPC, unix socket", "gRPC, TCP")
FRAME = ArraySpec((84, 84), "uint8")
SCALARS = {
    "action": ArraySpec((), "int64"), "reward": ArraySpec((), "float32"), "discount": ArraySpec((), "float32"),
}


@dataclass(frozen=True)
class Workload:
    """A table, how it is filled, and what is drawn from it."""

    table: Callable[[int], Table]
    trajectory: Trajectory
    batch: int
    history: int
    steps_per_item: float
    """New steps that an item needs."""
    peer_capacity: int
    """Items that the peers hold: they store stacks and next observations anew, and 1M would not fit."""
    pending: int
    """Items that a writer sends together."""
    prefetch: int
    """Batches that are fetched ahead, where that takes time."""
    write: Callable[[TrajectoryWriter, int, Array], int]
    """(writer, step number, priorities): items made of the step that was just appended."""


def write_transitions(writer: TrajectoryWriter, step: int, priorities: Array) -> int:
    if step < 3:
        return 0
    history = writer.history
    writer.create_item(
        "replay", priorities,
        {
            "obs": history["obs"][-4:], "action": history["action"][-4:-3], "reward": history["reward"][-4:-1],
            "discount": history["discount"][-4:-1],
        },
    )
    return ENVS


def write_sequences(writer: TrajectoryWriter, step: int, priorities: Array) -> int:
    if step < 119 or (step - 119) % 40:
        return 0
    history = writer.history
    writer.create_item("replay", priorities, {name: history[name][-120:] for name in ("obs", *SCALARS)})
    return ENVS


def write_small(writer: TrajectoryWriter, step: int, priorities: Array) -> int:
    history = writer.history
    writer.create_item("replay", priorities, {name: history[name][-1:] for name in SMALL})
    return ENVS


SMALL = {
    "obs": ArraySpec((4,), "float32"), "next_obs": ArraySpec((4,), "float32"), "action": ArraySpec((), "int32"),
    "reward": ArraySpec((), "float32"), "discount": ArraySpec((), "float32"),
}
WORKLOADS = {
    "atari": Workload(
        lambda size: prioritized("replay", size, {"obs": FRAME, **SCALARS}, alpha=0.6, lead=3),
        Trajectory(
            obs=col("obs").stack(4)[0], action=col("action")[0], ret=col("reward").discounted_sum(0.99, n=3)[0],
            next_obs=col("obs").stack(4)[-1], discount=(col("discount") * 0.99).product(),
        ),
        512, 8, 1.0, 100_000, ENVS, 2, write_transitions,
    ),
    "sequences": Workload(
        lambda size: prioritized("replay", size, {"obs": FRAME, **SCALARS}, alpha=0.9),
        Trajectory(obs=col("obs"), action=col("action"), reward=col("reward"), discount=col("discount")),
        32, 128, 40.0, 2_000, ENVS, 2, write_sequences,
    ),
    "small": Workload(
        lambda size: prioritized("replay", size, SMALL, alpha=0.6),
        Trajectory(**{name: col(name)[0] for name in SMALL}), 512, 32, 1.0, 1_000_000, 1024, 16, write_small,
    ),
}


@dataclass(frozen=True)
class Measured:
    """Items per second, and bytes."""

    way: str
    capacity: int
    insert: float
    sample: float
    update: float
    cycle: float
    bytes_per_item: float
    bytes_per_batch: int = 0
    batch: int = 0
    note: str = ""


def measure(workload: Workload, way: str, capacity: int, seconds: float) -> Measured:
    """One workload in one way."""
    table = workload.table(capacity)
    with serving(way, table, int(capacity * workload.steps_per_item)) as (open_client, resident):
        client = open_client()
        before = resident()
        insert = fill(client, workload, capacity, seconds)
        held = (resident() - before) / client.info("replay")["size"]
        batch = client.sample("replay", workload.batch, workload.trajectory)
        rng = np.random.default_rng(1)
        fresh = rng.random(workload.batch) + 0.1
        sample = rate(workload.batch, seconds, lambda: client.sample("replay", workload.batch, workload.trajectory))
        update = rate(workload.batch, seconds / 4, lambda: client.update_priorities("replay", batch.keys, fresh))

        def cycle(drawn: Any) -> None:
            client.update_priorities("replay", drawn.keys, fresh, wait=False)

        plain = rate(
            workload.batch, seconds, lambda: cycle(client.sample("replay", workload.batch, workload.trajectory))
        )
        ahead = 0.0
        if way != "in process":
            with client.sampler("replay", workload.batch, workload.trajectory, workload.prefetch) as sampler:
                sample = max(sample, rate(workload.batch, seconds, lambda: next(sampler)))
                ahead = rate(workload.batch, seconds, lambda: cycle(next(sampler)))
        client.close()
    return Measured(
        way, capacity, insert, sample, update, max(plain, ahead), held,
        sum(array.nbytes for array in batch.data.values()), workload.batch,
        "prefetched" if ahead > plain else "",
    )


def fill(client: Client, workload: Workload, capacity: int, seconds: float) -> float:
    """Fill the table, then go on for a while; items per second of the latter, when it is full."""
    rng = np.random.default_rng(0)
    steps = [
        {name: _random(rng, spec) for name, spec in client.layout.signature.items()} for _ in range(16)
    ]
    priorities = rng.random((16, ENVS)) + 0.1
    with client.writer(envs=ENVS, history=workload.history, max_pending=workload.pending) as writer:
        items = step = 0

        def go(until: Callable[[], bool]) -> None:
            nonlocal items, step
            while not until():
                writer.append(steps[step % 16], first=step == 0)
                items += workload.write(writer, step, priorities[step % 16])
                step += 1

        go(lambda: items >= capacity)
        writer.flush()
        began, counted = time.perf_counter(), items
        go(lambda: time.perf_counter() - began > seconds)
        writer.flush()
        return (items - counted) / (time.perf_counter() - began)


def _random(rng: np.random.Generator, spec: ArraySpec) -> Array:
    if spec.dtype == "uint8":
        return rng.integers(0, 256, (ENVS, *spec.shape), np.uint8)
    return np.ones((ENVS, *spec.shape), spec.dtype)


def rate(items: int, seconds: float, action: Callable[[], object]) -> float:
    """Items per second of something that handles so many at a time."""
    action()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        action()
        count += 1
    return items * count / (time.perf_counter() - began)


@contextlib.contextmanager
def serving(way: str, table: Table, max_steps: int) -> Iterator[tuple[Callable[[], Client], Callable[[], int]]]:
    """How to reach a fresh service, and the memory of the process that it lives in."""
    if way == "in process":
        service = Service([table], max_steps)
        yield lambda: Client.of(service), lambda: resident_bytes("self")
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tables.yaml").write_text(yaml.safe_dump(_as_file(table, max_steps)))
        command = [sys.executable, "-m", "pappus", "replay", "serve", "--config", f"{folder}/tables.yaml"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = next(line for line in server.stderr if "listening" in line).split()[4].rstrip(";")
            if way == "gRPC, unix socket":
                from pappus.replay.wire.grpc_wire import connect as far

                yield lambda: Client(lambda: far(address)), lambda: resident_bytes(str(server.pid))
            else:
                target = f"tcp:{address}" if way == "gRPC, TCP" else address
                yield lambda: connect(target), lambda: resident_bytes(str(server.pid))
        finally:
            server.terminate()
            server.wait(60)


def _as_file(table: Table, max_steps: int) -> dict[str, Any]:
    return {
        "max_steps": max_steps,
        "tables": [
            {
                "name": table.name, "sampler": {"prioritized": table.sampler.alpha}, "remover": table.remover.name,
                "rate_limiter": {"min_size": table.rate_limiter.min_size}, "max_size": table.max_size,
                "lead": table.lead,
                "signature": {
                    name: {"shape": list(spec.shape), "dtype": spec.dtype} for name, spec in table.signature.items()
                },
            }
        ],
    }


def resident_bytes(pid: str) -> int:
    """Memory that a process has in use, and all that is shared on this machine: it may not have looked at it itself."""
    return _kilobytes(f"/proc/{pid}/status", "RssAnon") * 1024 + _kilobytes("/proc/meminfo", "Shmem:") * 1024


def _kilobytes(path: str, name: str) -> int:
    return int(next(line for line in Path(path).read_text().splitlines() if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps that our tables hold (default: 1,000,000)")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="and these (all, without a name)")
    arguments = parser.parse_args()
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        grid = Grid(title=f"{name}, batches of {workload.batch}: items per second")
        for column in ("way", "items", "insert", "sample", "update", "cycle", "MB/s sampled", "bytes/item", "note"):
            grid.add_column(column, justify="left" if column in ("way", "note") else "right")
        for way in arguments.ways:
            found = measure(workload, way, int(arguments.steps / workload.steps_per_item), arguments.seconds)
            sampled = found.sample * found.bytes_per_batch / found.batch / 1e6
            grid.add_row(
                way, f"{found.capacity:,}", *(f"{x:,.0f}" for x in (found.insert, found.sample, found.update)),
                f"{found.cycle:,.0f}", f"{sampled:,.0f}", f"{found.bytes_per_item:,.0f}", found.note,
            )
        if arguments.peers is not None:
            for row in peers.measure(name, workload.peer_capacity, arguments.seconds, arguments.peers or peers.PEERS):
                grid.add_row(*_peer_row(row))
        Console(width=150).print(grid)


def _peer_row(row: dict[str, Any]) -> list[str]:
    if row.get("error"):
        return [str(row["peer"]), "", "", "", "", "", "", "", str(row["error"])[:60]]
    rates = [f"{row[f'{what}_per_second']:,.0f}" for what in ("insert", "sample", "update", "cycle")]
    return [
        f"{row['peer']} {row['version']}", f"{row['capacity']:,}", *rates, "", f"{row['bytes_per_item']:,.0f}",
        str(row.get("note", ""))[:60],
    ]


if __name__ == "__main__":
    main()
