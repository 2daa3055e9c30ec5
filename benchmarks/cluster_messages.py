"""What travels between nodes: messages and bytes of each edge for every env step, with actors far from all others."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

from benchmarks.architecture_runs import Row, mean_of
from benchmarks.cluster_overhead import PATIENCE, command, steady
from benchmarks.ray_nodes import RayNodes, attach, program_of, ray_nodes, registry, rows_of
from benchmarks.throughput import provenance
from pappus.api import configure
from pappus.edges.calls import CallsEdge
from pappus.edges.counters import CounterEdge
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.settings import parse
from pappus.topologies.program import Program
from pappus.types import leaves_of

KINDS = {QueueEdge: "queue", CallsEdge: "calls", CounterEdge: "counters", WeightsEdge: "weights", ReplayEdge: "replay"}
LOOK_SECONDS = 0.5
Sample = tuple[float, dict[str, tuple[int, int]]]
"""A time, and messages and bytes by edge until then."""


@dataclass
class Flow:
    """One edge between nodes, over the measured time."""

    kind: str
    messages: float
    """Each once; 0 where nobody counts them."""
    bytes: float
    """Of weights, once for every node that they go to."""
    inward: float
    """Share of the bytes that goes to the node of learner, inference and servers."""


@dataclass
class Traffic:
    """What one system sent in so many seconds."""

    system: str
    env: str
    actors: int
    envs: int
    """Per actor."""
    nodes: int
    """That hold actors."""
    seconds: float
    steps: float
    updates: float
    weights_bytes: int
    flows: dict[str, Flow] = field(default_factory=dict)


def messages(arguments: argparse.Namespace) -> None:
    """Print a row for every edge of every system; `--out` keeps all for `thousand`."""
    table = Table(title=f"between nodes, {arguments.env}, {arguments.actors} actors on 2 nodes, all others on a third")
    for column in ("system", "steps/s", "edge", "messages / 1,000 steps", "bytes / step", "MB/s"):
        table.add_column(column, justify="left" if column in ("system", "edge") else "right")
    measured = []
    with ray_nodes(3) as nodes:
        attach(nodes)
        for system in arguments.systems:
            one = measure(nodes, system, arguments)
            measured.append(one)
            add_rows(table, one)
            print(f"{system}: {one.steps:,.0f} steps in {one.seconds:.1f} s", flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps([asdict(each) for each in measured], indent=1) + "\n")
    console = Console(width=120)
    console.print(table)
    console.print(provenance())


def measure(nodes: RayNodes, system: str, arguments: argparse.Namespace) -> Traffic:
    """One run of a system, and what its node agents have counted in the last two thirds of it."""
    words = ["--actors", str(arguments.actors), *arguments.options]
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        placed = nodes.place(system, arguments.env, words)
        training = subprocess.Popen(
            [*command(system, arguments.env, arguments.seconds, placed), "--run-dir", str(directory)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        samples = follow(training, arguments.seconds + PATIENCE)
        if training.wait(PATIENCE):
            raise RuntimeError(f"{system} ended with exit code {training.returncode}; its last words are above")
        rows = rows_of(directory)
    return traffic(system, arguments, steady(rows), samples)


def follow(training: subprocess.Popen[bytes], seconds: float) -> list[Sample]:
    """Ask the registry what was carried, twice a second, until the run ends."""
    samples: list[Sample] = []
    deadline = time.monotonic() + seconds
    while training.poll() is None:
        if time.monotonic() > deadline:
            training.terminate()
            raise TimeoutError(f"the run did not end within {seconds:.0f} s")
        time.sleep(LOOK_SECONDS)
        try:
            found = registry()
            if found is not None:
                samples.append((time.time(), ray.get(found.carried.remote(), timeout=10)))
        except (ray.exceptions.RayError, ValueError, TimeoutError):
            continue  # the run is ending, or has just begun
    return samples


def traffic(
    system: str, arguments: argparse.Namespace, rows: Sequence[Row], samples: Sequence[Sample]
) -> Traffic:
    """What went between two samples of the steady part."""
    within = [sample for sample in samples if rows[0]["time"] <= sample[0] <= rows[-1]["time"]]
    if len(within) < 2:
        raise ValueError(f"{system}: {len(within)} samples of {len(rows)} seconds are too few; use more --seconds")
    (began, before), (ended, after) = within[0], within[-1]
    times = [row["time"] for row in rows]

    def gained(name: str) -> float:
        first, last = np.interp([began, ended], times, [row[name] for row in rows])
        return float(last - first)

    config = parse(configure(system, arguments.env, {}), list(arguments.options))
    program = program_of(system, arguments.env)
    weights = sum(4 * edge.size for edge in program.edges.values() if isinstance(edge, WeightsEdge))
    one = Traffic(
        system, arguments.env, arguments.actors, config.envs_per_actor, 2, ended - began, gained("step"),
        gained("charts/updates"), weights,
    )
    for name, edge in program.edges.items():
        if name in after:
            old = before.get(name, (0, 0))
            count, size = (now - then for now, then in zip(after[name], old, strict=True))
            one.flows[name] = flow(edge, count, size)
    one.flows |= replay_flows(program, rows, one)
    return one


def flow(edge: Edge, count: int, size: int) -> Flow:
    """Both node agents of a stream count what passes, so that their sum has it twice; weights are counted once."""
    kind = KINDS[type(edge)]
    share = 1 if kind == "weights" else 2
    inward = {"weights": 0.0, "queue": 1.0, "counters": 0.5, "calls": 0.0}[kind]
    if isinstance(edge, CallsEdge):
        specs = edge.group_request, edge.group_reply
        asked, answered = (sum(leaf.nbytes for leaf in leaves_of(spec)) for spec in specs)
        inward = asked / (asked + answered)
    return Flow(kind, count / share, size / share, inward)


def replay_flows(program: Program, rows: Sequence[Row], one: Traffic) -> dict[str, Flow]:
    """What actors record goes straight to the replay server, past the node agents: rows as the actors count them,
    without what gRPC adds. The role that samples lives beside the replay server, unless it is an actor's process."""
    names = [name for name, edge in program.edges.items() if isinstance(edge, ReplayEdge)]
    held = [(spec.kind, ref) for spec in program.roles for ref in spec.ends()]
    recorders = {kind.name for kind, ref in held if kind.steps_envs and ref.edge in names}
    rates = [mean_of(rows, f"{kind}/replay_bytes_per_second") for kind in recorders]
    return {name: Flow("replay", 0.0, sum(rates) * one.seconds, 1.0) for name in names if sum(rates)}


def add_rows(table: Table, one: Traffic) -> None:
    """One system."""
    total = sum(flow.bytes for flow in one.flows.values())
    for number, (name, each) in enumerate(one.flows.items()):
        first = (one.system, f"{one.steps / one.seconds:,.0f}") if number == 0 else ("", "")
        count = f"{1000 * each.messages / one.steps:,.2f}" if each.messages else "–"
        table.add_row(*first, name, count, f"{each.bytes / one.steps:,.1f}", f"{each.bytes / one.seconds / 1e6:,.2f}")
    table.add_row("", "", "all", "", f"{total / one.steps:,.1f}", f"{total / one.seconds / 1e6:,.2f}", end_section=True)


def read(paths: Sequence[Path]) -> list[Traffic]:
    """What `messages --out` has written."""
    found = [one for path in paths for one in json.loads(path.read_text())]
    return [Traffic(**{**one, "flows": {name: Flow(**flow) for name, flow in one["flows"].items()}}) for one in found]

