"""Does a table lose, double or tear anything when many processes use it at once, and when writers are killed?

    python -m benchmarks.replay_hammer --seconds 300
    python -m benchmarks.replay_hammer --seconds 60 --kill-every 2

Four processes write, two sample and write priorities back, all at full speed, through shared memory (`--way grpc`: over
the wire). Every step says which writer made it, and when, in each of its bytes; every sampled item is checked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.replay import resident_bytes
from pappus.replay import Trajectory, col, connect

WRITERS, SAMPLERS, ENVS, WIDTH, LENGTH, SIZE = 4, 2, 16, 256, 5, 100_000
TABLES = {
    "max_steps": 2 * SIZE,
    "tables": [
        {
            "name": "replay", "sampler": {"prioritized": 0.6}, "remover": "fifo", "rate_limiter": {"min_size": 1000},
            "max_size": SIZE,
            "signature": {
                "stamp": {"shape": [WIDTH], "dtype": "int64"}, "env": {"shape": [], "dtype": "int64"},
            },
        }
    ],
}
FORK = multiprocessing.get_context("fork")
CREATED, FLUSHED = 0, 1


def write(address: str, number: int, counts: SynchronizedArray[Any], stop: Any) -> None:
    """Steps whose every value is writer · 10¹² + step; an item of `LENGTH` steps for each env and step."""
    counted = counts.get_obj()
    with connect(address).writer(envs=ENVS, history=8, max_pending=ENVS) as writer:
        step = 0
        while not stop.is_set():
            stamp = number * 10**12 + step
            writer.append({"stamp": np.full((ENVS, WIDTH), stamp), "env": np.arange(ENVS)}, first=step == 0)
            step += 1
            if step >= LENGTH:
                counted[2 * number + CREATED] += ENVS
                writer.create_item(
                    "replay", 1.0, {name: writer.history[name][-LENGTH:] for name in ("stamp", "env")}
                )
            if step % 64 == 0:
                writer.flush()
                counted[2 * number + FLUSHED] = counted[2 * number + CREATED]
        writer.flush()
        counted[2 * number + FLUSHED] = counted[2 * number + CREATED]


def sample(address: str, number: int, report: str, stop: Any) -> None:
    """Check every item; remember which key was which item."""
    client, rng = connect(address), np.random.default_rng(number)
    shape = Trajectory(stamp=col("stamp"), env=col("env"))
    known: dict[int, tuple[int, int]] = {}
    torn = doubled = sampled = 0
    while not stop.is_set():
        batch = client.sample("replay", 256, shape, timeout=30)
        stamp, env = batch.data["stamp"], batch.data["env"]
        first = stamp[:, 0, 0]
        whole = (stamp == (first[:, None] + np.arange(LENGTH))[:, :, None]).all((1, 2)) & (env == env[:, :1]).all(1)
        torn += int((~whole).sum())
        sampled += len(first)
        identities = zip(first.tolist(), env[:, 0].tolist(), strict=True)
        for key, identity in zip(batch.keys.tolist(), identities, strict=True):
            doubled += known.setdefault(key, identity) != identity
        client.update_priorities("replay", batch.keys, rng.random(len(first)) + 0.01)
    found = {"torn": torn, "doubled": doubled, "sampled": sampled, "keys": len(known), "known": list(known.items())}
    Path(report).write_text(json.dumps(found))


def start(target: Any, *arguments: Any) -> Any:
    process = FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--way", choices=["shared", "grpc"], default="shared")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tables.yaml").write_text(yaml.safe_dump(TABLES))
        command = [sys.executable, "-m", "pappus", "replay", "serve", "--config", f"{folder}/tables.yaml"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = next(line for line in server.stderr if "listening" in line).split()[4].rstrip(";")
            hammer(server.pid, address if arguments.way == "shared" else f"tcp:{address}", folder, arguments)
        finally:
            server.terminate()
            server.wait(30)


def hammer(server: int, address: str, folder: str, arguments: argparse.Namespace) -> None:
    stop = FORK.Event()
    counts: SynchronizedArray[Any] = FORK.Array("q", 2 * 10_000)
    writers = [start(write, address, number, counts, stop) for number in range(WRITERS)]
    reports = [f"{folder}/sampler{number}.json" for number in range(SAMPLERS)]
    samplers = [start(sample, address, number, report, stop) for number, report in enumerate(reports)]
    began, killed, memory = time.monotonic(), 0, []
    while (now := time.monotonic() - began) < arguments.seconds:
        time.sleep(min(1.0, arguments.kill_every or 1.0))
        if now > arguments.seconds / 5:
            memory.append((now, resident_bytes(str(server)) / 2**20))
        if arguments.kill_every and now >= (killed + 1) * arguments.kill_every:
            index = random.randrange(WRITERS)
            os.kill(writers[index].pid, signal.SIGKILL)
            writers[index].join()
            killed += 1
            writers[index] = start(write, address, WRITERS + killed - 1, counts, stop)
    stop.set()
    for process in writers + samplers:
        process.join(60)
    judge(address, np.array(counts.get_obj()).reshape(-1, 2), [json.loads(Path(r).read_text()) for r in reports])
    slope = np.polyfit(*np.array(memory).T, 1)[0] * 60 if len(memory) > 10 else float("nan")
    print(f"killed {killed} writers; memory of the server {memory[-1][1]:.0f} MiB, {slope:+.2f} MiB/min")


def judge(address: str, counts: Any, found: list[dict[str, Any]]) -> None:
    """Say what was lost, doubled or torn."""
    client = connect(address)
    info = client.info("replay")
    created, flushed = (int(counts[:, column].sum()) for column in (CREATED, FLUSHED))
    merged: dict[int, list[int]] = {}
    across = sum(merged.setdefault(key, value) != value for one in found for key, value in one["known"])
    sampled = sum(one["sampled"] for one in found)
    print(f"items: created {created:,}, confirmed {flushed:,}, inserted {info['inserts']:,}")
    print(f"lost: {max(0, flushed - info['inserts'])}, out of nowhere: {max(0, info['inserts'] - created)}")
    print(f"inserts − deletes − size = {info['inserts'] - info['deletes'] - info['size']}")
    print(f"samples: received {sampled:,}, counted {info['samples']:,}; {len(merged):,} different keys")
    print(f"torn items: {sum(one['torn'] for one in found)}, keys with two items: "
          f"{sum(one['doubled'] for one in found) + across}")
    client.reset("replay")
    time.sleep(1.0)
    print(f"chunks held when all is gone: {client.info('replay')['chunks']}")


if __name__ == "__main__":
    main()
