"""What the ray runtime costs on one machine: the same command with `--runtime local` and `--runtime ray`, in turn."""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.architecture_runs import Row, trained
from benchmarks.peers.environments import STAMP, peers_root
from benchmarks.peers.run import ACTOR_CRITICS, PeerResult, measure_peers
from benchmarks.ray_nodes import rows_of
from benchmarks.throughput import provenance

RUNTIMES = ("local", "ray")
FOREVER = 10**12
"""Steps that nobody makes in the time."""
PATIENCE = 120.0
"""Seconds that a run may take to start, save and evaluate."""


def command(system: str, env: str, seconds: float, words: Sequence[str]) -> list[str]:
    """A training that nothing but time ends, and in which nothing interrupts the work."""
    return [
        sys.executable, "-m", "pappus", "train", system, "--env", env, "--seconds", str(seconds), "--steps",
        str(FOREVER), "--optimizer.no-anneal", "--evaluation.every-steps", "0", "--evaluation.episodes", "1",
        "--checkpoint.every-seconds", "3600", *words,
    ]


def measure(system: str, env: str, seconds: float, words: Sequence[str]) -> float:
    """Steps per second of one run, the first third of its time left out."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        subprocess.run(
            [*command(system, env, seconds, words), "--run-dir", str(directory)], check=True,
            timeout=seconds + PATIENCE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        return steady_rate(rows_of(directory))


def steady_rate(rows: Sequence[Row]) -> float:
    """Env steps per second between a third of the training and its end."""
    lines = steady(rows)
    return (lines[-1]["step"] - lines[0]["step"]) / (lines[-1]["time"] - lines[0]["time"])


def steady(rows: Sequence[Row]) -> list[Row]:
    """The lines of the last two thirds of the training."""
    lines = trained(rows)
    begin = lines[0]["time"] + (lines[-1]["time"] - lines[0]["time"]) / 3
    late = [row for row in lines if row["time"] >= begin]
    if len(late) < 2:
        raise ValueError(f"{len(lines)} seconds of training are too few to measure; use more --seconds")
    return late


def overhead(arguments: argparse.Namespace) -> None:
    """Print a row for every system and env."""
    table = Table(title=f"steps per second, {arguments.seconds:g} s a run, {arguments.rounds} rounds")
    for column in ("system", "env", "local", "ray", "ray / local", "each round"):
        table.add_column(column, justify="left" if column in ("system", "env") else "right")
    best: dict[str, float] = {}
    for system, env in itertools.product(arguments.systems, arguments.env):
        rates: dict[str, list[float]] = {runtime: [] for runtime in RUNTIMES}
        for _ in range(arguments.rounds):
            for runtime in RUNTIMES:
                words = ["--runtime", runtime, *arguments.options]
                rates[runtime].append(measure(system, env, arguments.seconds, words))
                print(f"{system} {env} {runtime}: {rates[runtime][-1]:,.0f} steps/s", flush=True)
        table.add_row(system, env, *row(rates))
        best[env] = max(best.get(env, 0.0), statistics.median(rates["ray"]))
    console = Console(width=130)
    console.print(table)
    if arguments.peers:
        for env in arguments.env:
            print_peer(console, env, arguments.seconds, best[env])
    console.print(provenance())


def row(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Medians, the median of the ratios of neighbouring runs, and all of those."""
    ratios = [ray / local for local, ray in zip(rates["local"], rates["ray"], strict=True)]
    medians = [f"{statistics.median(rates[runtime]):,.0f}" for runtime in RUNTIMES]
    return [*medians, f"{statistics.median(ratios):.3f}", " ".join(f"{ratio:.3f}" for ratio in ratios)]


def print_peer(console: Console, env: str, seconds: float, best: float) -> None:
    """RLlib's IMPALA, on Ray as well, and how many times its speed the best of ours on Ray is."""
    peer = ACTOR_CRITICS["rllib"]
    if env not in peer.settings:
        return console.print(f"rllib: no setting for {env}; there are {', '.join(peer.settings)}")
    if not (peers_root() / "rllib" / STAMP).exists():
        return console.print(
            f"rllib: no environment in {peers_root()}; make it with `python -m benchmarks.peers.environments rllib`"
        )
    for result in measure_peers(env, seconds, {"rllib": peer}):
        console.print(_sentence(result, best))


def _sentence(result: PeerResult, best: float) -> str:
    setting = f"rllib {result.version} IMPALA, {result.env}, {result.workers} × {result.envs} envs"
    if result.error:
        return f"{setting}: {result.error}"
    return f"{setting}: {result.steps_per_second:,.0f} steps/s; ours on ray is {best / result.steps_per_second:.1f} ×"
