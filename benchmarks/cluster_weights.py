"""Weights on a cluster: how fast versions reach readers on other nodes, how old they are then, and what is left behind.

The program is as small as can be: a learner that does nothing but publish, and readers that look for a new version
every two milliseconds. Each version carries the time of its publication.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

from benchmarks.ray_nodes import RayNodes, attach, ray_nodes, raylet, registry
from benchmarks.throughput import provenance
from pappus.config import AlgorithmConfig, ClusterConfig, RunConfig
from pappus.core import Waitable, WeightsReader, WeightsWriter
from pappus.edges.weights import WeightsEdge
from pappus.kinds import LEARNER, RoleKind
from pappus.roles.role import IDLE, Role
from pappus.runtimes.ray_cluster import RayRuntime
from pappus.telemetry.processes import resident_bytes
from pappus.topologies.program import Program
from pappus.types import Array

LOOK_SECONDS = 0.002
"""How often a reader looks for a new version; actors do so once an unroll."""
AGES = 1000
"""Newest versions of which a reader knows the age."""
LOW = 20
"""Bits of a time in microseconds that go into each of two float32, which hold 24 exactly; it wraps after 12 days."""
WARM_SECONDS = 2.0
START_SECONDS = 180.0
"""Until all readers have read something; each imports torch."""
NODES = 3


class Publisher(Role):
    """Publishes one version after the other, at least `pause` seconds apart."""

    def __init__(self, name: str, incarnation: int, size: int, pause: float, weights: WeightsWriter) -> None:
        super().__init__(name)
        self._flat, self._weights, self._pause = np.zeros(size, np.float32), weights, pause
        self._version, self._next = -1, 0.0

    def step(self) -> Waitable | None:
        if time.perf_counter() < self._next:
            self.wake_at = self._next
            return IDLE
        self._next = time.perf_counter() + self._pause
        self._version += 1
        stamp(self._flat)
        self._weights.publish(self._flat, self._version)
        self.metrics.count("versions")
        return None


class Reader(Role):
    """Reads every version that it sees, and notes how old it is then."""

    def __init__(self, name: str, incarnation: int, index: int, size: int, weights: WeightsReader) -> None:
        super().__init__(name)
        self._flat, self._weights, self._seen = np.zeros(size, np.float32), weights, -1
        self._ages: deque[float] = deque(maxlen=AGES)

    def step(self) -> Waitable | None:
        if self._weights.version() == self._seen:
            self.wake_at = time.perf_counter() + LOOK_SECONDS
            return IDLE
        self._seen = self._weights.read(self._flat)
        self._ages.append(age_of(self._flat))
        self.metrics.count("versions")
        self.metrics.gauge("age", statistics.median(self._ages))
        return None


def stamp(flat: Array) -> None:
    """Write the time into the first two numbers."""
    now = time.time_ns() // 1000
    flat[0], flat[1] = now % (1 << LOW), (now >> LOW) % (1 << LOW)


NEAR, READER = RoleKind("near"), RoleKind("reader")


def age_of(flat: Array) -> float:
    """Seconds since it was written."""
    then = int(flat[0]) + (int(flat[1]) << LOW)
    return ((time.time_ns() // 1000 - then) % (1 << 2 * LOW)) / 1e6


def program(size: int, readers: int, pause: float) -> Program:
    """A publisher, and readers on its node (`near`) and on others (`reader`), as many on each node."""
    made = Program("broadcast")
    weights = made.connect(WeightsEdge("weights", size))
    made.add(LEARNER, Publisher, essential=True, size=size, pause=pause, weights=weights.writer())
    for i in range(readers):
        kind = NEAR if i % NODES == NODES - 1 else READER
        made.add(kind, Reader, index=i, size=size, weights=weights.reader())
    return made


class Watch:
    """A controller that ends the run so many seconds after all roles have shown that they work.

    `look` is called when that time begins, every `every` seconds of it, and when it ends.
    """

    finishing = False

    def __init__(self, roles: Sequence[str], seconds: float, every: float, look: Callable[[], None]) -> None:
        self._missing, self._seconds, self._every, self._look = set(roles), seconds, every, look
        self._give_up = time.monotonic() + START_SECONDS
        self._begin = self._next = self._end = float("inf")
        self.versions: dict[str, int] = {role: 0 for role in roles}
        self.ages: dict[str, float] = {}
        self.events: list[str] = []

    def started(self, controls: Any) -> None: ...

    def report(self, report: Any) -> None:
        role = report["role"]
        self.versions[role] += int(report["counts"].get("versions", 0))
        self.ages[role] = report["gauges"].get("age", self.ages.get(role, 0.0))
        if self.versions[role] and role in self._missing:
            self._missing.discard(role)
            if not self._missing:
                self._begin = self._next = time.monotonic() + WARM_SECONDS
                self._end = self._begin + self._seconds

    def event(self, text: str, role: str = "") -> None:
        self.events.append(f"{role}: {text}")

    def decide(self) -> bool:
        now = time.monotonic()
        if self._missing and now > self._give_up:
            missing = ", ".join(sorted(self._missing))
            raise TimeoutError(f"{missing} did nothing in {START_SECONDS:.0f} s; {self.events}")
        if now >= min(self._next, self._end):
            self._next = now + self._every
            self._look()
        return now >= self._end

    def interrupt(self) -> None:
        self._end = 0.0

    def role_started(self, role: str, pid: int, node: str = "") -> None: ...

    def role_restarted(self, role: str) -> None: ...

    def role_measured(self, role: str, memory: int, cpu: float) -> None: ...

    def role_finished(self, role: str) -> None: ...

    def rewind(self, steps: int, updates: int) -> None: ...

    def saved(self, directory: Path, progress: object = None) -> None: ...


class BatchForward(NamedTuple):
    """What is known at one time."""

    time: float
    versions: dict[str, int]
    carried: tuple[int, int]
    """Versions that were put into the object store, and bytes, once for every node that they went to."""


def watch(
    made: Program, seconds: float, every: float, also: Callable[[], None] = lambda: None
) -> tuple[list[BatchForward], Watch]:
    """Run it on the cluster, and look at it."""
    looks: list[BatchForward] = []

    def look() -> None:
        found = registry()
        carried = ray.get(found.carried.remote(), timeout=20) if found is not None else {}
        looks.append(BatchForward(time.monotonic(), dict(controller.versions), carried.get("weights", (0, 0))))
        also()

    controller = Watch([node.name for node in made.nodes], seconds, every, look)
    kinds = {node.name.partition("-")[0] for node in made.nodes}
    places = {kind: "far=1" if kind == "reader" else "head=1" for kind in kinds}
    with tempfile.TemporaryDirectory() as directory:
        config = RunConfig(
            AlgorithmConfig(), runtime="ray", run_dir=directory,
            cluster=ClusterConfig(resources=places, placement={"reader": "SPREAD"}),
        )
        RayRuntime(made, controller, config).run()  # type: ignore[arg-type]
    return looks, controller


def broadcast(arguments: argparse.Namespace) -> None:
    """Print a row for every size and number of readers."""
    table = Table(title=f"weights to readers on {NODES} nodes of one machine, {arguments.seconds:g} s each")
    for column in (
        "numbers", "readers", "published/s", "put/s", "read/s on other nodes", "age ms", "read/s on its node",
        "age ms ", "MB a put", "nodes a put",
    ):
        table.add_column(column, justify="right")
    with ray_nodes(NODES) as nodes:
        attach(nodes)
        for size in arguments.sizes:
            for readers in arguments.readers:
                looks, controller = watch(program(size, readers, arguments.pause), arguments.seconds, arguments.seconds)
                table.add_row(f"{size:,}", str(readers), *cells(looks[0], looks[-1], controller.ages, 4 * size))
                print(f"{size:,} numbers, {readers} readers: done", flush=True)
    console = Console(width=150)
    console.print(table)
    console.print(provenance())


def cells(first: BatchForward, last: BatchForward, ages: Mapping[str, float], version_bytes: int) -> list[str]:
    """Rates between two looks: of the publisher, the object store, and the median reader on other nodes and its own."""
    seconds = last.time - first.time
    rates = {role: (count - first.versions[role]) / seconds for role, count in last.versions.items()}
    puts, size = (now - then for now, then in zip(last.carried, first.carried, strict=True))
    shown = [f"{rates['learner']:,.0f}", f"{puts / seconds:,.0f}"]
    for kind in ("reader", "near"):
        roles = [role for role in rates if role.startswith(f"{kind}-")]
        shown += [
            f"{statistics.median(rates[role] for role in roles):,.0f}" if roles else "–",
            f"{1000 * statistics.median(ages[role] for role in roles):.1f}" if roles else "–",
        ]
    per_version = size / puts if puts else 0.0
    return [*shown, f"{per_version / 1e6:.2f}", f"{per_version / version_bytes:.2f}"]


def weights(arguments: argparse.Namespace) -> None:
    """Print how the sizes of object stores and processes change while a learner publishes for a long time."""
    times: list[float] = []
    sizes: dict[str, list[float]] = {}
    with ray_nodes(NODES) as nodes:
        attach(nodes)

        def sample() -> None:
            times.append(time.monotonic() / 60)
            for name, size in sizes_of(nodes).items():
                sizes.setdefault(name, [float("nan")] * (len(times) - 1)).append(size / 2**20)

        made = program(arguments.size, arguments.readers, arguments.pause)
        looks, _ = watch(made, arguments.seconds, arguments.every, sample)
    table = Table(title=f"{arguments.size:,} numbers, {arguments.readers} readers, {arguments.seconds:g} s")
    for column in ("what", "median MiB, first half", "second half", "largest", "slope MiB/min"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, measured in sizes.items():
        if len(measured) == len(times):  # it was there all the time
            table.add_row(name, *trend(times, measured))
    console = Console(width=110)
    console.print(table)
    gone = [name for name, measured in sizes.items() if len(measured) != len(times)]
    published, put = looks[-1].versions["learner"], looks[-1].carried[0]
    console.print(f"{published:,} versions published, {put:,} put into the object store")
    console.print(f"not there all the time: {', '.join(gone) or 'nothing'}")
    console.print(provenance())


def sizes_of(nodes: RayNodes) -> dict[str, int]:
    """Bytes in every object store, and resident bytes of every process of the run and of Ray."""
    found: dict[str, int] = {}
    for address, (held, spilled) in nodes.store_bytes().items():
        found |= {f"object store of {address}": held, f"spilled to disk by {address}": spilled}
    for node in (nodes.head, *nodes.far):
        found[f"raylet of {node.node_ip_address}"] = resident_bytes(raylet(node)) or 0
    for one in nodes.processes():
        if "::" not in one.name and " " not in one.name:
            found[f"{one.name} on {one.node}"] = resident_bytes(one.pid) or 0
    return found


def trend(times: Sequence[float], sizes: Sequence[float]) -> list[str]:
    """Medians of both halves and the slope, the first fifth of the time left out as warm-up, and the largest of all.

    Object stores fill and are emptied about once a second: of those the medians say more than the slope."""
    warm = len(times) // 5
    minutes, column = np.array(times[warm:]), np.array(sizes[warm:])
    slope = np.polyfit(minutes - minutes[0], column, 1)[0] if len(minutes) > 1 else 0.0
    halves = np.array_split(column, 2)
    return [*(f"{np.median(half):,.1f}" for half in halves), f"{max(sizes):,.1f}", f"{slope:+.3f}"]
