"""What the replay peers' scripts share: what is stored, the timed windows, and the one line they print.

Imported by each peer's own python, so standard library and NumPy only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

ALPHA, BETA = 0.6, 0.4
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
GAMMA = np.float32(0.99)
STACK, N_STEP = 4, 3
SEQUENCE_STEPS, SEQUENCE_STRIDE = 120, 80
"""40 steps of burn-in and 80 to learn from; a sequence and the next share 40."""


@dataclass(frozen=True)
class Workload:
    """Capacities count items: a transition, or a whole sequence.

    `batch` items are drawn at a time and `chunk` added; contents repeat after `period` steps, a whole number of chunks.
    """

    name: str
    batch: int
    chunk: int
    period: int


WORKLOADS = {
    "atari": Workload("atari", batch=512, chunk=64, period=1024),
    "sequences": Workload("sequences", batch=32, chunk=8, period=16 * SEQUENCE_STRIDE),
    "small": Workload("small", batch=512, chunk=64, period=4096),
}


class Stream:
    """An endless run of steps, and the items cut from it; the action of step t is t, so an item says where it began.

    Peers that store every item whole add `items(first)`; those that share steps between items append `step(t)`.
    """

    def __init__(self, workload: Workload) -> None:
        rng = np.random.default_rng(0)
        self.workload = workload
        shape = (workload.period, 4) if workload.name == "small" else (workload.period, 84, 84)
        # Random bytes, which no compression shrinks.
        self.observations = (
            rng.random(shape, np.float32) if workload.name == "small" else rng.integers(0, 256, shape, np.uint8)
        )
        self.rewards = rng.random(workload.period, np.float32)
        self._items = _CUTS[workload.name](self)

    def items(self, first: int) -> Arrays:
        """Items first … first + chunk − 1, as contiguous arrays that were made beforehand (the actions excepted)."""
        chunk = self.workload.chunk
        start = first % len(self._items["obs"])
        items = {name: values[start : start + chunk] for name, values in self._items.items()}
        return {**items, "action": self._actions(np.arange(first, first + chunk))}

    def step(self, t: int) -> dict[str, Any]:
        """What one environment step adds."""
        at = t % self.workload.period
        action = np.int32(t) if self.workload.name == "small" else np.int64(t)
        return {"obs": self.observations[at], "action": action, "reward": self.rewards[at], "discount": GAMMA}

    def verify(self, batch: Arrays) -> None:
        """Refuses a batch that is not made of this stream's items: a peer that mixes them up has no rate."""
        expected = self._expected(batch["action"])
        for name, want in expected.items():
            got = batch[name]
            if got.shape != want.shape or got.dtype != want.dtype:
                raise ValueError(f"{name} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
            if not np.allclose(got, want, rtol=1e-5):
                raise ValueError(f"{name} of a sampled item is not what was inserted")

    def _actions(self, items: NDArray[np.int64]) -> NDArray[Any]:
        if self.workload.name == "sequences":
            return items[:, None] * SEQUENCE_STRIDE + np.arange(SEQUENCE_STEPS)
        return items + STACK - 1 if self.workload.name == "atari" else items.astype(np.int32)

    def _expected(self, actions: NDArray[Any]) -> Arrays:
        if self.workload.name == "sequences":
            items = actions[:, 0] // SEQUENCE_STRIDE
        else:
            items = actions.astype(np.int64) - (STACK - 1 if self.workload.name == "atari" else 0)
        at = items % len(self._items["obs"])
        return {**{name: values[at] for name, values in self._items.items()}, "action": self._actions(items)}


def _cut_transitions(stream: Stream) -> Arrays:
    """Item k: frames k … k + 3, the 3-step return from the last of them, frames k + 3 … k + 6."""
    period = stream.workload.period
    starts = np.arange(period + N_STEP)
    stacks = stream.observations[(starts[:, None] + np.arange(STACK)) % period]
    rewards = stream.rewards[(starts[:period, None] + STACK - 1 + np.arange(N_STEP)) % period]
    return {
        "obs": stacks[:period],
        "next_obs": stacks[N_STEP:],
        "reward": n_step_return(rewards),
        "discount": np.full(period, GAMMA**N_STEP, np.float32),
    }


def n_step_return(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """[B, n] → [B]."""
    powers = GAMMA ** np.arange(rewards.shape[1], dtype=np.float32)
    return rewards @ powers


def _cut_sequences(stream: Stream) -> Arrays:
    """Item k: steps 80k … 80k + 119."""
    period = stream.workload.period
    steps = (np.arange(0, period, SEQUENCE_STRIDE)[:, None] + np.arange(SEQUENCE_STEPS)) % period
    return {
        "obs": stream.observations[steps],
        "reward": stream.rewards[steps],
        "discount": np.full(steps.shape, GAMMA, np.float32),
    }


def _cut_small(stream: Stream) -> Arrays:
    """Item k: states k and k + 1."""
    return {
        "obs": stream.observations,
        "next_obs": np.roll(stream.observations, -1, axis=0),
        "reward": stream.rewards,
        "discount": np.full(stream.workload.period, GAMMA, np.float32),
    }


_CUTS: dict[str, Callable[[Stream], Arrays]] = {
    "atari": _cut_transitions,
    "sequences": _cut_sequences,
    "small": _cut_small,
}


class Store(Protocol):
    """A peer's replay of one workload; leaving its context frees what it holds."""

    note: str
    """Which of the peer's options these figures are of."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: object) -> None: ...

    def insert(self, first: int) -> None:
        """Adds the stream's items first … first + chunk − 1."""

    def grown(self) -> int:
        """Bytes that the process that stores has grown by since the store was made."""

    def settle(self) -> None:
        """Called once the store is full, before anything is timed."""

    def sample(self) -> tuple[Any, Arrays]:
        """A batch: what `update` takes to name its items, and its data as NumPy arrays under the stream's names."""

    def update(self, keys: Any, priorities: NDArray[np.float32]) -> None:
        """Writes new priorities of a batch back."""


class InProcess:
    """What the stores that live in this process have in common."""

    note: str

    def __init__(self) -> None:
        self._before = resident_bytes(os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def grown(self) -> int:
        return resident_bytes(os.getpid()) - self._before

    def settle(self) -> None:
        pass


def measure(peer: str, package: str, open_store: Callable[[Stream, int], Store]) -> None:
    """Fills a store, times it, and prints the result on stdout; `open_store` takes the capacity second."""
    args = _parse()
    # Peers print where they like: stdout is kept for the result and everything else joins stderr.
    result_fd = os.dup(1)
    os.dup2(2, 1)
    _keep_freed_memory()
    stream = Stream(WORKLOADS[args.workload])
    _warm_up(stream, open_store)
    gc.collect()
    with open_store(stream, args.capacity) as store:
        filled = _fill(store, stream, args.capacity)
        stored = store.grown() / args.capacity
        store.settle()
        stream.verify(store.sample()[1])
        rates = _time(store, stream, filled, args.seconds)
        note = store.note
    result = {"peer": peer, "version": version(package), "workload": args.workload, "capacity": args.capacity}
    result |= {**rates, "bytes_per_item": round(stored), "note": note}
    os.write(result_fd, (json.dumps(result) + "\n").encode())


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rate(step: Callable[[], int], seconds: float) -> float:
    """Items per second of a step that says how many it moved; the first call is not counted."""
    step()
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        count += step()
    return count / elapsed


def cycle_rate(store: Store, stream: Stream, seconds: float) -> float:
    """Items per second through draw, read and write-back: what a learner gets."""
    rng, batch = np.random.default_rng(0), stream.workload.batch
    latest = store.sample()

    def cycle() -> int:
        nonlocal latest
        latest = store.sample()
        store.update(latest[0], rng.random(batch, np.float32))
        return batch

    return rate(cycle, seconds)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--capacity", type=int, required=True, help="items")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each timed window")
    return parser.parse_args()


def _keep_freed_memory() -> None:
    """Batches reuse the memory of earlier ones instead of faulting it in anew.

    glibc decides that by what happens to lie above a freed batch, which halves or doubles a peer's rate from run to
    run; here every peer gets the better case.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the most it takes; batches are smaller
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _warm_up(stream: Stream, open_store: Callable[[Stream, int], Store]) -> None:
    """What loads or compiles on first use does so here, outside the windows and the count of memory."""
    capacity = 4 * stream.workload.batch
    with open_store(stream, capacity) as store:
        _fill(store, stream, capacity)
        store.settle()
        cycle_rate(store, stream, seconds=0.0)


def _fill(store: Store, stream: Stream, capacity: int) -> int:
    """Inserts until the store is full, and says how many items that took."""
    filled = 0
    while filled < capacity:
        store.insert(filled)
        filled += stream.workload.chunk
    return filled


def _time(store: Store, stream: Stream, filled: int, seconds: float) -> dict[str, float]:
    batch, chunk = stream.workload.batch, stream.workload.chunk
    latest = store.sample()
    priorities = np.random.default_rng(1).random(batch, np.float32)

    def insert() -> int:
        nonlocal filled
        store.insert(filled)
        filled += chunk
        return chunk

    def sample() -> int:
        nonlocal latest  # as a learner holds its batch until it has the next
        latest = store.sample()
        return batch

    def update() -> int:
        store.update(latest[0], priorities)
        return batch

    return {
        "insert_per_second": round(rate(insert, seconds), 1),
        "sample_per_second": round(rate(sample, seconds), 1),
        "update_per_second": round(rate(update, seconds), 1),
        "cycle_per_second": round(cycle_rate(store, stream, seconds), 1),
    }
