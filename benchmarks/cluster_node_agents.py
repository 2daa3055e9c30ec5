"""What a message costs the node agents that carry it: two node agents, and a role at each, in four processes.

    producer ──▶ memory ──▶ spoke ═══ gRPC ═══▶ hub ──▶ memory ──▶ consumer

The roles that put and take do nothing else, so the node agents limit. The cost is the CPU time of a node agent's
process over the messages that passed it in that time, both ways: a queue's slot goes there and word of its release
comes back, a request goes there and its answer comes back, several of them in one message where they are ready at
once. A straight line through the bytes of a message gives the cost of a message and that of a megabyte.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from pappus.config import WireConfig
from pappus.edges.calls import CallsEdge
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge
from pappus.runtimes.node_agent import NodeAgent
from pappus.telemetry.processes import cpu_seconds
from pappus.topologies.program import Program
from pappus.transports.fd_server import fetch_blocks
from pappus.transports.mirrors import PortLocations
from pappus.types import ArraySpec

SIZES = (1_000, 30_000, 1_000_000)
"""Bytes of a message."""
ENDS = 4
"""Producers or clients at the spoke."""
HOST = "127.0.0.1"
WARM_SECONDS = 1.0
START_SECONDS = 60.0
SPAWN = multiprocessing.get_context("spawn")


class Cost(NamedTuple):
    """Of one kind of edge, at one of its node agents."""

    message_us: float
    megabyte_us: float


class Point(NamedTuple):
    """One measurement."""

    kind: str
    size: int
    """Bytes of a slot or a request."""
    message_bytes: float
    """Mean over both ways."""
    per_second: float
    """Messages, both ways."""
    spoke_us: float
    hub_us: float
    """CPU microseconds per message."""


def edges() -> dict[str, Edge]:
    """A queue and calls for every size."""
    program = Program("node_agents")
    for size in SIZES:
        spec = {"x": ArraySpec((size,), "uint8")}
        program.connect(QueueEdge(f"queue-{size}", spec, producers=ENDS, capacity=2))
        program.connect(CallsEdge(f"calls-{size}", spec, ArraySpec((), "int64"), ENDS, 1, 1, WireConfig()))
    return program.edges


def measure(seconds: float) -> list[Point]:
    """All kinds and sizes, one after the other."""
    processes, pipes = start(node_agent, ["hub", "spoke"])
    try:
        places = {node: answer_of(pipe) for node, pipe in zip(("hub", "spoke"), pipes, strict=True)}
        return [
            point(name, places, [process.pid or 0 for process in processes], pipes, seconds) for name in edges()
        ]
    finally:
        end(processes)


def point(
    name: str, places: dict[str, tuple[str, str]], node_agents: Sequence[int], pipes: Sequence[Connection],
    seconds: float,
) -> Point:
    """Carry one edge for some seconds."""
    placement = PortLocations("hub", 1, places["hub"][0], {end: ("spoke", 1) for end in range(ENDS)})
    for pipe in pipes:
        pipe.send((name, placement))
        answer_of(pipe)
    processes, (taking, giving) = start(role, [(name, "hub", places["hub"][1]), (name, "spoke", places["spoke"][1])])
    try:
        for pipe in (taking, giving):
            answer_of(pipe)
        time.sleep(WARM_SECONDS)
        before, began = look(name, node_agents, pipes[0]), time.perf_counter()
        time.sleep(seconds)
        after, ended = look(name, node_agents, pipes[0]), time.perf_counter()
    finally:
        end(processes)
    hub, spoke, messages, carried = (now - then for now, then in zip(after, before, strict=True))
    if not messages:
        raise RuntimeError(f"nothing went through {name} in {seconds:g} s")
    kind, _, size = name.partition("-")
    rate = messages / (ended - began)
    return Point(kind, int(size), carried / messages, rate, 1e6 * spoke / messages, 1e6 * hub / messages)


def look(name: str, node_agents: Sequence[int], hub: Connection) -> tuple[float, float, int, int]:
    """CPU seconds of both node agents so far, and what the hub's has counted of an edge."""
    hub.send(name)
    messages, size = answer_of(hub)
    of_hub, of_spoke = (cpu_seconds(pid) or 0.0 for pid in node_agents)
    return of_hub, of_spoke, messages, size


def answer_of(pipe: Connection) -> Any:
    """What the process at the other end says next."""
    if not pipe.poll(START_SECONDS):
        raise TimeoutError(f"a process has not answered for {START_SECONDS:.0f} s")
    return pipe.recv()


def costs(points: Sequence[Point], kind: str) -> dict[str, Cost]:
    """Straight lines through the measurements of one kind, each weighted by its inverse."""
    chosen = [one for one in points if one.kind == kind]
    megabytes = [one.message_bytes / 1e6 for one in chosen]
    found = {}
    for side in ("spoke", "hub"):
        spent = np.array([getattr(one, f"{side}_us") for one in chosen])
        slope, base = np.polyfit(megabytes, spent, 1, w=1 / np.maximum(spent, 1e-3))
        found[side] = Cost(max(0.0, float(base)), max(0.0, float(slope)))
    return found


def start(target: Any, arguments: Sequence[Any]) -> tuple[list[Any], list[Connection]]:
    """A process for each argument, and a line to it."""
    lines = [SPAWN.Pipe() for _ in arguments]
    processes = [
        SPAWN.Process(target=target, args=(theirs, argument), daemon=True)
        for (_, theirs), argument in zip(lines, arguments, strict=True)
    ]
    for process in processes:
        process.start()
    return processes, [ours for ours, _ in lines]


def end(processes: Sequence[Any]) -> None:
    """Kill them: nothing of theirs outlives them."""
    for process in processes:
        process.kill()
        process.join()


def node_agent(pipe: Connection, node: str) -> None:
    """The process of a node agent: it is told of placements, and asked what it has counted of an edge."""
    made = NodeAgent(node, HOST, edges(), "secret")
    pipe.send((made.address, made.socket))
    while True:
        told = pipe.recv()
        if isinstance(told, str):
            pipe.send(tuple(made.meter().get(told, (0, 0))))
        else:
            made.place(*told)
            pipe.send(None)


def role(pipe: Connection, assignment: tuple[str, str, str]) -> None:
    """The process of those who put or take."""
    name, side, socket = assignment
    _line, blocks = fetch_blocks(socket, [name])
    port = edges()[name].open(blocks[name])
    pipe.send(None)
    work = {"queue-hub": consume, "queue-spoke": produce, "calls-hub": answer, "calls-spoke": ask}
    work[f"{name.partition('-')[0]}-{side}"](port)


def consume(queue: Any) -> None:
    """Take slot after slot."""
    source = queue.source()
    while True:
        while source.take(1) is not None:
            source.release()
        select.select([source.fileno()], [], [])
        source.clear()


def produce(queue: Any) -> None:
    """Fill every ring."""
    sinks = [queue.sink(end) for end in range(ENDS)]
    while True:
        for sink in sinks:
            while sink.acquire() is not None:
                sink.commit()
        select.select([sink.fileno() for sink in sinks], [], [], 1.0)
        for sink in sinks:
            sink.clear()


def answer(calls: Any) -> None:
    """Answer all that is asked."""
    request_server = calls.server()
    while True:
        for call in request_server.calls():
            call.answer()
        select.select([request_server.fileno()], [], [])
        request_server.clear()


def ask(calls: Any) -> None:
    """Ask again as soon as there is an answer."""
    clients = [calls.client(end) for end in range(ENDS)]
    for request_client in clients:
        request_client.env_groups[0].open()
        request_client.env_groups[0].send()
    while True:
        select.select([request_client.fileno() for request_client in clients], [], [], 1.0)
        for request_client in clients:
            request_client.clear()
            if request_client.env_groups[0].reply() is not None:
                request_client.env_groups[0].send()
