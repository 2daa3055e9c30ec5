"""What the page of a run shows, as plain JSON: the contract between the server and the page.

    Page         what the page's file holds: one run, or a folder of runs
    RunDocument  all of one run
    Now          the part of it that changes all the time
    RunSummary   a run among others

Numbers that are not known are None, never NaN.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

VERSION = 1
Number: TypeAlias = float | int | None
Phase: TypeAlias = Literal["starting", "running", "evaluating", "saving", "over"]
Columns: TypeAlias = dict[str, list[Number]]
"""Metrics by name, all of one length; `step` and `time` (seconds since 1970) are always there."""


class About(TypedDict):
    """What a run is."""

    system: str
    topology: str
    algorithm: str
    env: str
    seed: Number
    steps_asked: Number
    command: str
    began: Number
    """Seconds since 1970."""
    machine: str
    git_hash: str | None
    versions: dict[str, str]
    directory: str
    live: bool
    phase: Phase
    exit_reason: str


class KindDocument(TypedDict):
    """A kind of role, as it declares itself."""

    name: str
    trains: bool
    steps_envs: bool
    evaluates: bool
    background: bool


class RoleDocument(TypedDict):
    """A role; those of one group share a process."""

    name: str
    kind: str
    index: int | None
    group: str


class EdgeDocument(TypedDict):
    """A connection: what flows from some roles to others. Edges of one label share their metrics."""

    name: str
    label: str
    kind: str
    roles_from: list[str]
    roles_to: list[str]


class ProgramDocument(TypedDict):
    """Who is connected with whom."""

    kinds: list[KindDocument]
    roles: list[RoleDocument]
    edges: list[EdgeDocument]


class RoleNow(TypedDict):
    """What a role does: shares of its time over the last seconds; of cores, `cpu`."""

    state: str
    busy: Number
    waiting: dict[str, float]
    computing: Number
    queued: Number
    asleep: Number
    in_envs: Number
    cpu: Number
    memory: Number
    """Bytes."""
    restarts: int
    silent_seconds: Number
    pid: int | None
    node: str
    device: str
    steps_per_second: Number


class EdgeNow(TypedDict):
    """What goes through the edges of one label."""

    bytes_per_second: Number
    depth: Number
    capacity: Number


class Lag(TypedDict):
    """Versions of the weights between acting and learning; the histogram's pairs are versions and how often."""

    mean: Number
    max: Number
    histogram: list[list[float]]


class VerdictDocument(TypedDict):
    """What limits the run, and what speaks for that."""

    text: str
    evidence: list[str]


class Now(TypedDict):
    """A run as it is at one moment."""

    time: float
    step: int
    progress: float
    limit: str | None
    """What that is a share of: steps, seconds, or a budget; None of a run of an older version."""
    eta_seconds: Number
    steps_per_second: Number
    updates_per_second: Number
    episodes: int
    episodic_return: Number
    episodic_length: Number
    eval_return: Number
    restarts: int
    storage: str
    """What cannot be written; empty while all is well."""
    roles: dict[str, RoleNow]
    edges: dict[str, EdgeNow]
    limits: dict[str, float]
    """Steps per second that each kind of role could do if it never waited."""
    lag: Lag | None
    verdict: VerdictDocument
    cost: dict[str, str] | None
    memory_total: Number
    """The most bytes that all processes held together, pages that they share once; where the kernel does not say that,
    what each of them holds now."""


class Curves(TypedDict):
    """What metrics.jsonl holds, thinned."""

    x: str
    columns: Columns


class EvaluationDocument(TypedDict):
    """A greedy evaluation, at the step whose weights it played with."""

    step: Number
    seconds: Number
    mean: Number
    std: Number
    episodes: Number


class EventDocument(TypedDict):
    """A line of the log; `role` is empty for the run itself."""

    time: Number
    role: str
    text: str


class Difference(TypedDict):
    """A setting that is not its system's own for that env."""

    name: str
    preset: Any
    value: Any


class ConfigDocument(TypedDict):
    """The resolved config by dotted names."""

    resolved: dict[str, Any]
    differs: list[Difference]


class RunDocument(TypedDict):
    """All of one run."""

    version: int
    about: About
    program: ProgramDocument | None
    now: Now | None
    curves: Curves
    evaluations: list[EvaluationDocument]
    events: list[EventDocument]
    config: ConfigDocument
    video: str | None
    """An address relative to the page's; in a file, the film itself as a `data:` address."""
    summary: dict[str, Any] | None


class RunSummary(TypedDict):
    """A run among others."""

    name: str
    """Its directory, relative to the folder."""
    group: str
    """Runs that differ in nothing but their seed have one group."""
    about: About
    summary: dict[str, Any] | None
    config: dict[str, Any]
    curves: Curves


class Page(TypedDict):
    """What the page's file holds."""

    mode: Literal["run", "runs"]
    live: bool
    """Whether its server sends what changes: at `events`, relative to the page."""
    run: RunDocument | None
    runs: list[RunSummary] | None
    after: str
    """What the first request for events says that it has already: `events?after=…`."""


class Changes(TypedDict, total=False):
    """Parts of a `RunDocument` that are other than they were."""

    about: About
    summary: dict[str, Any] | None
    evaluations: list[EvaluationDocument]
    config: ConfigDocument
    program: ProgramDocument | None
    video: str | None
