"""Who waits for whom when nothing moves, in words: from the waiting roles along the program's edges to the one that
waits for nobody.

    learner ──waits for unrolls──▶ actor-0 ──waits for inference──▶ inference: stuck in …
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pappus.edges.edge import PortRef
from pappus.roles.role import IDLE
from pappus.telemetry.processes import STOPPED
from pappus.topologies.program import Program

MOST_NAMES = 3
"""Roles that are named one by one; of more, the first and how many others."""
STATES = {"R": ", computing", "S": ", asleep", "D": ", waiting for a disk"}
"""Letters of /proc, in words."""


@dataclass(frozen=True)
class Doing:
    """What is known of one role while nothing moves."""

    kind: str
    waits_for: str = ""
    """The port that it said it waits for; empty for one that is at work, or silent."""
    silent: float = 0.0
    """Seconds without a word, of one that is silent for longer than it ever was."""
    state: str = ""
    """Of its process: a letter as ps shows it."""
    runs: bool = True
    """Whether it has a process, which has begun its work."""
    place: str = ""
    """The calls that it is in, in words."""

    @property
    def rank(self) -> int:
        """What explains a stall best comes first: a process that cannot run, one that says nothing, one at work."""
        return 0 if self.state == STOPPED or not self.runs else 1 if self.silent else 2

    @property
    def how(self) -> str:
        """`has been stopped by a signal for 6 s`, as said of a role that waits for nobody."""
        for_long = f" for {self.silent:.0f} s" if self.silent else ""
        if self.state == STOPPED:
            return f"has been stopped by a signal{for_long}"
        if not self.runs:
            where = f", in {self.place}" if self.place else ""
            return f"has been starting{for_long}{where}" if self.silent else "is starting"
        if not self.silent:
            return "is at work"
        state = STATES.get(self.state, "")
        if self.place:
            return f"has been stuck{for_long}{state} in {self.place}"
        return f"has said nothing{for_long}{state}"


class WaitGraph:
    """Whom a role waits for that waits at a port: those who hold the other ends of its edge."""

    def __init__(self, program: Program) -> None:
        self._edges = program.edges
        self._ends = {spec.name: spec.ends() for spec in program.roles}
        self._holders: dict[str, list[tuple[str, PortRef[object]]]] = {}
        for name, ends in self._ends.items():
            for end in ends:
                self._holders.setdefault(end.edge, []).append((name, end))
        self._known: dict[tuple[str, object], list[str]] = {}

    def whom(self, role: str, waits_for: str) -> list[str]:
        """The roles that can let it go on. A port that belongs to none of its edges may wait for any of them."""
        ends = self._ends.get(role, [])
        meant = [end for end in ends if self._is_called(end, waits_for)] or ends
        return list(dict.fromkeys(other for end in meant for other in self._others(end) if other != role))

    def _is_called(self, end: PortRef[object], what: str) -> bool:
        """Ports are called after their edge: `unrolls`, `unrolls slots`, `inference requests`."""
        edge = self._edges[end.edge]
        return any(what == name or what.startswith(f"{name} ") for name in (edge.name, edge.label))

    def _others(self, end: PortRef[object]) -> list[str]:
        """Who holds an end of another sort: readers wait for the writer, not for each other. Where all ends are of one
        sort, everybody."""
        key = end.edge, end.port
        if key not in self._known:
            holders = self._holders[end.edge]
            others = [name for name, held in holders if held.port != end.port]
            self._known[key] = others or [name for name, _ in holders]
        return self._known[key]


@dataclass(frozen=True)
class Explanation:
    """A stall, explained: the sentence, and the roles that it is due to (none where all wait for each other)."""

    sentence: str
    culprits: Sequence[str] = ()


def explain(doing: Mapping[str, Doing], graph: WaitGraph, first: Sequence[str] = ()) -> Explanation:
    """Follow who waits for whom, from the roles `first` (else from any), to those that wait for nobody."""
    waiting = [role for role, one in doing.items() if one.waits_for and one.waits_for != IDLE.name]
    starts = [role for role in first if role in doing] or waiting
    paths = [path for start in starts for path in _paths(start, doing, graph)]
    if not paths:  # those that are to blame keep nobody waiting
        paths = [[role] for role, one in doing.items() if not one.waits_for and one.rank < 2]
    if not paths:
        return Explanation(_circle(starts[0], doing, graph) if starts else "no role says what it waits for")
    best = min(paths, key=lambda path: (doing[path[-1]].rank, len(path)))
    end = doing[best[-1]]
    culprits = [path[-1] for path in paths if _alike(doing[path[-1]], end) and path[:-1] == best[:-1]]
    culprits = list(dict.fromkeys(culprits)) if not end.waits_for else [best[-1]]
    told = {*best[:-1], *culprits}
    clauses = [*_clauses(best, culprits, doing), *_others(doing, waiting, told)]
    return Explanation("; ".join(clauses), culprits)


def _alike(one: Doing, other: Doing) -> bool:
    return (one.kind, one.rank, one.state, one.waits_for) == (other.kind, other.rank, other.state, other.waits_for)


def _paths(start: str, doing: Mapping[str, Doing], graph: WaitGraph) -> list[list[str]]:
    """The shortest path from a role to each that waits for nobody, or for somebody outside the run."""
    paths, seen, frontier = [], {start}, deque([[start]])
    while frontier:
        path = frontier.popleft()
        one = doing[path[-1]]
        if not one.waits_for:
            paths.append(path)
            continue
        others = [role for role in graph.whom(path[-1], one.waits_for) if role in doing]
        if not others and one.waits_for != IDLE.name:
            paths.append(path)
        for role in others:
            if role not in seen and doing[role].waits_for != IDLE.name:
                seen.add(role)
                frontier.append([*path, role])
    return paths


def _clauses(path: Sequence[str], culprits: Sequence[str], doing: Mapping[str, Doing]) -> list[str]:
    """`the learner waits for unrolls from actor-0`, `actor-0 has been stopped by a signal for 6 s`."""
    names = [*[named(role, doing) for role in path[:-1]], together(culprits, doing)]
    clauses = [
        f"{names[i]} waits for {_of(doing[role].waits_for, names[i + 1])}" for i, role in enumerate(path[:-1])
    ]
    end = doing[path[-1]]
    if end.waits_for:
        return [*clauses, f"{names[-1]} waits for {end.waits_for}, which nobody in this run provides"]
    how = end.how if len(culprits) == 1 else end.how.replace("has ", "have ", 1).replace("is ", "are ", 1)
    return [*clauses, f"{names[-1]} {how}"]


def _of(what: str, whose: str) -> str:
    """`unrolls from actor-0`, but `the replay`."""
    return whose if whose == f"the {what}" else f"{what} from {whose}"


def _others(doing: Mapping[str, Doing], waiting: Sequence[str], told: set[str]) -> list[str]:
    """Those that wait as well, by kind and by what for."""
    groups: dict[tuple[str, str], list[str]] = {}
    for role in waiting:
        if role not in told:
            groups.setdefault((doing[role].kind, doing[role].waits_for), []).append(role)
    return [
        f"{together(roles, doing)} wait{'s' * (len(roles) == 1)} for {what}" for (_, what), roles in groups.items()
    ]


def _circle(start: str, doing: Mapping[str, Doing], graph: WaitGraph) -> str:
    """`the learner waits for unrolls from actor-0, actor-0 for weights from the learner: …`."""
    path, role = [start], start
    while True:
        others = [one for one in graph.whom(role, doing[role].waits_for) if doing[one].waits_for != IDLE.name]
        if not others:
            return "; ".join(f"{named(one, doing)} waits for {doing[one].waits_for}" for one in path)
        role = next((one for one in others if one in path), others[0])
        if role in path:
            break
        path.append(role)
    steps = [
        f"{named(one, doing)} {'waits ' * (not i)}for {_of(doing[one].waits_for, named(other, doing))}"
        for i, (one, other) in enumerate(zip(path, [*path[1:], role], strict=True))
    ]
    return f"{', '.join(steps)}: all wait for each other"


def named(role: str, doing: Mapping[str, Doing]) -> str:
    """`actor-3`, but `the learner`."""
    return f"the {role}" if role == doing[role].kind else role


def together(roles: Sequence[str], doing: Mapping[str, Doing]) -> str:
    """`actor-0`, `actor-0 and actor-1`, `actor-0 and 15 more`."""
    names = [named(role, doing) for role in roles]
    if len(names) == 1:
        return names[0]
    if len(names) <= MOST_NAMES:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{names[0]} and {len(names) - 1} more"
