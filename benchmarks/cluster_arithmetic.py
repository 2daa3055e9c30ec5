"""What a thousand actors need: from what each step sends, and from what a message costs, to the link that fills first.

Everything that actors send meets at one node, that of the learner (of the inference server, the replay, the parameter
servers). It has a link, full both ways at once, and a node agent, whose loop is one thread and so has one core at most.

    inward    bytes of a step × steps per second of all actors
    outward   the same for replies; one copy of each version of the weights for every node that holds actors
    node agent   messages × cost of a message + megabytes × cost of a megabyte

Bytes of a step do not depend on how many actors there are. Messages do so on how many envs an actor has: each holds a
step, or an unroll, of all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.cluster_messages import Flow, Traffic, read
from benchmarks.cluster_node_agents import Cost, costs, measure
from benchmarks.throughput import provenance
from pappus.runtimes.ray_node_agent import LEAST_SECONDS

BYTES_PER_GIGABIT = 1e9 / 8
FREE = Cost(0.0, 0.0)


class Load(NamedTuple):
    """Of the learner's node, per second."""

    inward: float = 0.0
    outward: float = 0.0
    messages: float = 0.0
    node_agent: float = 0.0
    """Seconds of its one core."""

    def plus(self, other: Load) -> Load:
        """Both together."""
        return Load(*(one + two for one, two in zip(self, other, strict=True)))


def load(
    one: Traffic, actors: int, per_node: int, steps: float, envs: int, versions: float, hub: Mapping[str, Cost]
) -> Load:
    """Of so many actors that make so many steps per second each, with so many envs each, so many on a node; `hub` says
    what a message of each kind of edge costs the learner's node agent."""
    nodes = -(-actors // per_node)
    total = Load()
    for flow in one.flows.values():
        if flow.kind == "weights":
            continue
        if flow.kind == "counters":  # by the clock, from every node
            scale = message_scale = nodes / one.nodes / one.seconds
        else:
            scale = actors * steps / one.steps
            message_scale = scale * one.envs / (envs or one.envs)
        total = total.plus(_flow_load(flow, scale, message_scale, hub.get(flow.kind, FREE)))
    if any(flow.kind == "weights" for flow in one.flows.values()):
        carried = min(versions, 1 / LEAST_SECONDS)
        total = total.plus(Load(outward=carried * nodes * one.weights_bytes, messages=carried * nodes))
    return total


def _flow_load(flow: Flow, scale: float, message_scale: float, cost: Cost) -> Load:
    size, count = flow.bytes * scale, flow.messages * message_scale
    node_agent = 1e-6 * (count * cost.message_us + size / 1e6 * cost.megabyte_us)
    return Load(size * flow.inward, size * (1 - flow.inward), count, node_agent)


def limits(whole: Load, actors: int, gigabits: float) -> dict[str, float]:
    """How many actors each part of the node takes; what is not used limits nothing."""
    link = gigabits * BYTES_PER_GIGABIT
    used = {"link in": whole.inward / link, "link out": whole.outward / link, "node_agent": whole.node_agent}
    return {name: actors / share if share else float("inf") for name, share in used.items()}


def thousand(arguments: argparse.Namespace) -> None:
    """Print what every measured system needs, and how many actors one learner's node takes."""
    points = measure(arguments.seconds)
    hub = {kind: costs(points, kind)["hub"] for kind in ("queue", "calls")}
    hub["counters"] = hub["queue"]
    console = Console(width=150)
    node_agents = Table(title="CPU of a node agent per message, both node agents on this machine")
    for column in ("edge", "bytes of a slot or request", "messages/s", "bytes each", "spoke µs", "hub µs"):
        node_agents.add_column(column, justify="left" if column == "edge" else "right")
    for one in points:
        figures = (one.per_second, one.message_bytes, one.spoke_us, one.hub_us)
        node_agents.add_row(one.kind, f"{one.size:,}", *(f"{figure:,.0f}" for figure in figures))
    console.print(node_agents)
    for kind in ("queue", "calls"):
        for side, cost in costs(points, kind).items():
            console.print(f"{kind} at the {side}: {cost.message_us:.0f} µs a message, {cost.megabyte_us:.0f} µs a MB")
    console.print(needs(arguments, hub))
    console.print(provenance())


def needs(arguments: argparse.Namespace, hub: Mapping[str, Cost]) -> Table:
    """A row for every measured system."""
    envs = f"{arguments.envs} envs" if arguments.envs else "the measured envs"
    table = Table(
        title=f"{arguments.actors:,} actors of {arguments.steps_per_second:,g} steps/s and {envs} each, "
        f"{arguments.actors_per_node} on a node, {arguments.versions_per_second:g} versions/s"
    )
    for column in (
        "system", "env", "in MB/s", "out MB/s", "messages/s", "node agent cores",
        *(f"at {link:g} Gbit/s" for link in arguments.links),
    ):
        table.add_column(column, justify="left" if column in ("system", "env") else "right")
    for one in read(arguments.traffic):
        whole = load(
            one, arguments.actors, arguments.actors_per_node, arguments.steps_per_second, arguments.envs,
            arguments.versions_per_second, hub,
        )
        table.add_row(
            one.system, one.env, f"{whole.inward / 1e6:,.1f}", f"{whole.outward / 1e6:,.1f}", f"{whole.messages:,.0f}",
            f"{whole.node_agent:.2f}",
            *(_first_full(one, limits(whole, arguments.actors, link)) for link in arguments.links),
        )
    return table


def _first_full(one: Traffic, taken: Mapping[str, float]) -> str:
    """Where there is a replay, its server may be full before: what it costs is not counted here."""
    part, actors = min(taken.items(), key=lambda item: item[1])
    most = "≤ " if any(flow.kind == "replay" for flow in one.flows.values()) else ""
    return f"{most}{actors:,.0f} actors ({part})" if actors < float("inf") else "–"
