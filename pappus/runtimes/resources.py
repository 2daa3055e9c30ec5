"""What the roles of a program reserve on a cluster, which of them share a node, and why they do not fit. No Ray."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pappus.config import ClusterConfig, RunConfig
from pappus.errors import UserError, closest
from pappus.topologies.program import Program, RoleSpec

STRATEGIES = ("PACK", "SPREAD")
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}

Amounts = dict[str, float]
"""Resources by Ray's names: CPU, GPU, memory (bytes), or custom ones that a node was started with."""


@dataclass(frozen=True)
class Colocation:
    """Groups of roles that must share a node, since an edge needs common memory; most have a single group."""

    groups: tuple[str, ...]
    amounts: Mapping[str, Amounts]
    """What each group reserves."""
    strategy: str
    kinds: Mapping[str, str]
    """What settings call each group."""

    @property
    def total(self) -> Amounts:
        """What one node must have for all of them."""
        names = dict.fromkeys(name for amounts in self.amounts.values() for name in amounts)
        return {name: sum(amounts.get(name, 0.0) for amounts in self.amounts.values()) for name in names}


@dataclass
class NodeRoom:
    """A node of the cluster, and its free resources."""

    name: str
    free: Amounts = field(default_factory=dict)
    node: str = ""
    """Ray's id of it."""

    def holds(self, amounts: Amounts) -> bool:
        return all(self.free.get(name, 0.0) >= amount - 1e-9 for name, amount in amounts.items())

    def take(self, amounts: Amounts) -> None:
        self.free = {**self.free, **{name: self.free.get(name, 0.0) - amount for name, amount in amounts.items()}}


def colocations(program: Program, config: RunConfig) -> list[Colocation]:
    """All groups of a program; groups that must share a node are together."""
    groups, cluster = program.groups(), config.cluster
    kinds = {group: setting_name(group, roles) for group, roles in groups.items()}
    check_names(cluster, {spec.kind.name for spec in program.roles} | set(kinds.values()))
    leader = {group: group for group in groups}
    held = [(spec.group, ref) for spec in program.roles for ref in spec.ends()]
    for name, edge in program.edges.items():
        holders = [group for group, ref in held if ref.edge == name and edge.shares_node(ref)]
        for group in holders:
            old, new = leader[group], leader[holders[0]]
            leader = {one: new if its == old else its for one, its in leader.items()}
    found = []
    for first in dict.fromkeys(leader.values()):
        members = tuple(group for group in groups if leader[group] == first)
        amounts = {group: demand(group, groups[group], program, config) for group in members}
        strategy = cluster.placement.get(kinds[members[0]], cluster.strategy)
        found.append(Colocation(members, amounts, strategy, {group: kinds[group] for group in members}))
    return found


def setting_name(group: str, roles: Sequence[RoleSpec]) -> str:
    """What `--cluster.resources` calls a group: the kind of its only role, or the name that the topology gave it."""
    return roles[0].kind.name if roles[0].name == group else group


def check_names(cluster: ClusterConfig, kinds: set[str]) -> None:
    """Raise `UserError` for settings of roles that the program does not have, and for unknown strategies."""
    for setting in ("placement", "resources"):
        for kind in getattr(cluster, setting):
            if kind not in kinds:
                hint = closest(kind, sorted(kinds))
                raise UserError(f"cluster.{setting} names role {kind!r}, and there is {', '.join(sorted(kinds))}{hint}")
    for kind, strategy in cluster.placement.items():
        if strategy not in STRATEGIES:
            raise UserError(f"cluster.placement {kind}={strategy!r} is unknown; use {' or '.join(STRATEGIES)}")


def demand(group: str, roles: Sequence[RoleSpec], program: Program, config: RunConfig) -> Amounts:
    """What one group reserves: what the config says, or a core, a GPU if a role uses it, and memory for its tables."""
    for name in (setting_name(group, roles), *(spec.kind.name for spec in roles)):
        if name in config.cluster.resources:
            return parse_amounts(config.cluster.resources[name], name)
    amounts = {} if all(spec.kind.background for spec in roles) else {"CPU": 1.0}
    if config.device != "cpu" and any(spec.kind.uses_device for spec in roles):
        amounts["GPU"] = 1.0
    tables = sum(program.edges[ref.edge].reserves(ref) for spec in roles for ref in spec.ends())
    return {**amounts, "memory": float(tables)} if tables else amounts


def parse_amounts(text: str, kind: str) -> Amounts:
    """`CPU=4,GPU=1,memory=8GiB`."""
    amounts: Amounts = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*([^=]+?)\s*=\s*([\d.]+)\s*([A-Za-z]*)\s*", part)
        try:
            assert found is not None and found[3] in UNITS
            amounts[found[1]] = float(found[2]) * UNITS[found[3]]
        except (AssertionError, ValueError):
            raise UserError(
                f"cluster.resources {kind}={text!r} cannot be read at {part!r}; write e.g. CPU=4,GPU=1,memory=8GiB"
            ) from None
    for name, amount in amounts.items():
        if amount > 1 and amount % 1 and name != "memory":
            raise UserError(f"cluster.resources {kind}={text!r}: {name}={amount:g} must be whole, or a part of one")
    return {name: amount for name, amount in amounts.items() if amount > 0}


def refuse_what_never_fits(asked: Iterable[Colocation], nodes: Sequence[NodeRoom]) -> None:
    """Raise `UserError` for what no empty node holds, and for more than all nodes together have; Ray packs the rest."""
    ordered = list(asked)
    for colocation in ordered:
        if not any(node.holds(colocation.total) for node in nodes):
            lacking = _lacking(colocation.total, nodes)
            raise UserError(
                f"{' and '.join(colocation.groups)} needs {_words(colocation.total)} on one node, and no node has that "
                f"much {lacking}: {inventory(nodes)}; start a node that has, or ask for less with --cluster.resources"
            )
    names = dict.fromkeys(name for colocation in ordered for name in colocation.total)
    for name in names:
        needed = sum(colocation.total.get(name, 0.0) for colocation in ordered)
        there = sum(node.free.get(name, 0.0) for node in nodes)
        if needed > there + 1e-9:
            raise UserError(
                f"the roles need {_amount(name, needed)} {name} ({_by_kind(ordered, name)}), and the cluster has "
                f"{_amount(name, there)}: {inventory(nodes)}; use fewer --actors, --actors 1..N to take what there "
                "is, or reserve less with --cluster.resources"
            )


def who_gives_way(needed: Amounts, free: Sequence[NodeRoom], holding: Mapping[str, tuple[str, Amounts]]) -> list[str]:
    """The fewest groups of one node that leave room for `needed` there when they go; empty if there is room already, or
    if none of the nodes would have it. `holding`: where each group that may go is, and what it holds."""
    if any(node.holds(needed) for node in free):
        return []
    best: list[str] = []
    for node in free:
        room, going = NodeRoom(node.name, dict(node.free)), list[str]()
        for group, (where, amounts) in holding.items():
            if where == node.node and not room.holds(needed):
                room.take({name: -amount for name, amount in amounts.items()})
                going.append(group)
        if room.holds(needed) and (not best or len(going) < len(best)):
            best = going
    return best


def waits_for(colocation: Colocation, free: Sequence[NodeRoom]) -> str:
    return f"waits for a node with {_words(colocation.total)}; free are {inventory(free)}"


def still_waiting(asked: Iterable[Colocation], free: Sequence[NodeRoom], seconds: float) -> UserError:
    """The error for groups that would fit if other jobs did not hold the resources."""
    for colocation in sorted(asked, key=lambda one: -max(one.total.values(), default=0.0)):
        fitting = next((node for node in free if node.holds(colocation.total)), None)
        if fitting is None:
            return UserError(
                f"{' and '.join(colocation.groups)} found no node with {_words(colocation.total)} free within "
                f"{seconds:.0f} s: free are {inventory(free)}; wait for other jobs to end, or ask for less"
            )
        fitting.take(colocation.total)
    return UserError(f"the cluster did not place the roles within {seconds:.0f} s: free are {inventory(free)}")


def inventory(nodes: Sequence[NodeRoom]) -> str:
    """`3 nodes with CPU 2, 2, 4 and GPU 0`."""
    names = dict.fromkeys(["CPU", "GPU", *(name for node in nodes for name in node.free if _tells(name))])
    parts = []
    for name in names:
        values = dict.fromkeys(_amount(name, node.free.get(name, 0.0)) for node in nodes)
        parts.append(f"{name} {', '.join(values)}")
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} with {' and '.join(parts)}"


def _tells(name: str) -> bool:
    """Whether a resource is worth listing: not those that Ray adds to every node."""
    return not re.match(r"node:|bundle|memory|object_store_memory|.*_group_", name)


def _lacking(amounts: Amounts, nodes: Sequence[NodeRoom]) -> str:
    """The resources of which no node has enough; all of them if each alone would fit."""
    short = [
        name for name, amount in amounts.items() if not any(node.free.get(name, 0.0) >= amount for node in nodes)
    ]
    return " and ".join(short or amounts)


def _by_kind(asked: Sequence[Colocation], name: str) -> str:
    kinds: dict[str, float] = {}
    for colocation in asked:
        for group, amounts in colocation.amounts.items():
            kind = colocation.kinds[group]
            kinds[kind] = kinds.get(kind, 0.0) + amounts.get(name, 0.0)
    return ", ".join(f"{kind} {_amount(name, amount)}" for kind, amount in kinds.items() if amount)


def _words(amounts: Amounts) -> str:
    return ", ".join(f"{name} {_amount(name, amount)}" for name, amount in amounts.items()) or "nothing"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name.endswith("memory") else f"{amount:g}"
