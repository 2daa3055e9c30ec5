"""dm-reverb with a server of its own on loopback, timed; run by the python of `reverb.txt`.

Steps are appended once and items refer to them, so that a frame is stored once however many items show it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

# Read when TensorFlow is imported.
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import numpy as np
import reverb
import tensorflow as tf
from numpy.typing import NDArray
from replay_workloads import (
    ALPHA,
    N_STEP,
    SEQUENCE_STEPS,
    SEQUENCE_STRIDE,
    STACK,
    Arrays,
    Stream,
    cycle_rate,
    measure,
    n_step_return,
    resident_bytes,
)

TABLE = "replay"
SERVE = "--serve"
TRIAL_SECONDS = 1.0
STOP_SECONDS = 10.0

Batches = Iterator[tuple[Any, Arrays]]


@dataclass(frozen=True)
class Layout:
    """An item spans `window` steps and the next begins `stride` later; `columns` are the steps that it shows of them.

    `chunk` steps are compressed and sent together; of several lengths tried these gave the most items per second.
    """

    window: int
    stride: int
    chunk: int
    columns: Mapping[str, slice | int]

    def shapes(self, step: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
        """Of an item's columns, which put the steps before the shape that a step has."""
        picked = {name: range(-self.window, 0)[steps] for name, steps in self.columns.items()}
        return {
            name: (len(steps), *step[name].shape) if isinstance(steps, range) else step[name].shape
            for name, steps in picked.items()
        }


SINCE_ACTION = slice(-N_STEP - 1, -1)
LAST_TWO, WHOLE = slice(-2, None), slice(-SEQUENCE_STEPS, None)
LAYOUTS = {
    "atari": Layout(
        window=STACK + N_STEP,
        stride=1,
        chunk=STACK + N_STEP,
        columns={
            "obs": slice(-STACK - N_STEP, None),
            "action": -N_STEP - 1,
            "reward": SINCE_ACTION,
            "discount": SINCE_ACTION,
        },
    ),
    "sequences": Layout(
        window=SEQUENCE_STEPS,
        stride=SEQUENCE_STRIDE,
        chunk=SEQUENCE_STEPS - SEQUENCE_STRIDE,
        columns={"obs": WHOLE, "action": WHOLE, "reward": WHOLE, "discount": WHOLE},
    ),
    "small": Layout(
        window=2,
        stride=1,
        chunk=64,
        columns={"obs": LAST_TWO, "action": -2, "reward": -2, "discount": -2},
    ),
}


def unpack(workload: str, data: Arrays) -> Arrays:
    """An item's columns as the stream's fields; observations stay views."""
    obs = data["obs"]
    if workload == "sequences":
        return data
    if workload == "small":
        return {**data, "obs": obs[:, 0], "next_obs": obs[:, 1]}
    return {
        "obs": obs[:, :STACK],
        "next_obs": obs[:, N_STEP:],
        "action": data["action"],
        "reward": n_step_return(data["reward"]),
        "discount": data["discount"].prod(axis=1),
    }


class ReverbStore:
    def __init__(self, stream: Stream, capacity: int) -> None:
        self.note = ""
        self._stream, self._workload = stream, stream.workload
        self._layout = LAYOUTS[stream.workload.name]
        self._server, address = start_server(capacity)
        self._client = reverb.Client(address)
        self._client.server_info()
        self._before = resident_bytes(self._server.pid)
        self._writer = self._open_writer()
        self._appended = 0
        self._priorities = np.random.default_rng(0).random(self._workload.chunk)
        self._batches: Batches = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._batches = iter(())
        self._writer.close()
        stop_server(self._server)

    def _open_writer(self) -> reverb.TrajectoryWriter:
        chunk = self._layout.chunk
        kept = max(self._layout.window, chunk)
        writer = self._client.trajectory_writer(num_keep_alive_refs=kept)
        for column in self._layout.columns:
            writer.configure((column,), num_keep_alive_refs=kept, max_chunk_length=chunk)
        return writer

    def insert(self, first: int) -> None:
        for item, priority in enumerate(self._priorities, first):
            for step in range(self._appended, item * self._layout.stride + self._layout.window):
                self._writer.append(self._stream.step(step))
                self._appended = step + 1
            history = self._writer.history
            columns = {name: history[name][steps] for name, steps in self._layout.columns.items()}
            self._writer.create_item(TABLE, priority, columns)
        # Or the writer would run ahead of the server without bound.
        self._writer.flush(block_until_num_items=self._workload.chunk // 2)

    def grown(self) -> int:
        return resident_bytes(self._server.pid) - self._before

    def settle(self) -> None:
        """Tries each way to sample, and keeps the one that cycles most."""
        self._writer.flush()
        ways: dict[str, Callable[[], Batches]] = {
            "Client.sample": self._client_batches,
            "TrajectoryDataset, 1 worker": lambda: self._dataset_batches(1),
            "TrajectoryDataset, 2 workers": lambda: self._dataset_batches(2),
        }
        rates = {}
        for name, way in ways.items():
            self._batches = way()
            rates[name] = cycle_rate(self, self._stream, TRIAL_SECONDS)
        best = max(rates, key=rates.__getitem__)
        self._batches = ways[best]()
        tried = ", ".join(f"{name}: {rate:,.0f}" for name, rate in rates.items())
        self.note = f"own server on loopback, frames stored once; sampled by {best} (tried, in cycles: {tried})"

    def _client_batches(self) -> Batches:
        names = sorted(self._layout.columns)  # without a signature, columns come flat and sorted by name
        while True:
            samples = list(self._client.sample(TABLE, self._workload.batch, emit_timesteps=False))
            data = {name: np.stack([sample.data[at] for sample in samples]) for at, name in enumerate(names)}
            yield [sample.info.key for sample in samples], data

    def _dataset_batches(self, workers: int) -> Batches:
        step = self._stream.step(0)
        dataset = reverb.TrajectoryDataset(
            self._client.server_address,
            TABLE,
            dtypes={name: tf.as_dtype(step[name].dtype) for name in self._layout.columns},
            shapes={name: tf.TensorShape(shape) for name, shape in self._layout.shapes(step).items()},
            max_in_flight_samples_per_worker=2 * self._workload.batch,  # its rule of thumb is 2–3 batches
            num_workers_per_iterator=workers,
        )
        for sample in dataset.batch(self._workload.batch).as_numpy_iterator():
            yield sample.info.key.tolist(), sample.data

    def sample(self) -> tuple[list[int], Arrays]:
        keys, data = next(self._batches)
        return keys, unpack(self._workload.name, data)

    def update(self, keys: list[int], priorities: NDArray[np.float32]) -> None:
        self._client.mutate_priorities(TABLE, dict(zip(keys, priorities.tolist(), strict=True)))


def start_server(capacity: int) -> tuple[subprocess.Popen[str], str]:
    """A server process, and its address once it listens; it ends when its stdin does, so with this process."""
    command = [sys.executable, __file__, SERVE, str(capacity)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    if not port:
        raise RuntimeError(f"the reverb server exited with {server.wait()} before it listened")
    return server, f"127.0.0.1:{port}"


def stop_server(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def serve(capacity: int) -> None:
    """Says the port on stdout and serves until stdin closes."""
    port_fd = os.dup(1)
    os.dup2(2, 1)
    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Prioritized(ALPHA),
        remover=reverb.selectors.Fifo(),
        max_size=capacity,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server([table])
    os.write(port_fd, f"{server.port}\n".encode())
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(int(sys.argv[2]))
    else:
        measure("reverb", "dm-reverb", ReverbStore)
