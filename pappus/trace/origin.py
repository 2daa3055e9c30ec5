"""Which runs can be traced, and where a trace can be replayed: on the machine and with the versions that made it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from pappus.config import RunConfig
from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.counters import CounterEdge
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR, INFERENCE, LEARNER, MASTER, PARAMETER_SERVER, READER, REPLAY, RoleKind
from pappus.telemetry.files import versions, write_json, write_text
from pappus.trace.log import FOLDER
from pappus.trace.products import VARIABLE
from pappus.trust import RUN_FILE

FORMAT = 1
FACTS_FILE = "trace.json"
TRACED = (ACTOR, LEARNER, REPLAY, EVALUATOR)
TRACED_EDGES = (QueueEdge, WeightsEdge, CounterEdge, ReplayEdge, AllReduceEdge)
REASONS: dict[RoleKind, str] = {
    MASTER: "its workers change one memory without a lock, so that there is no order of changes to record",
    INFERENCE: "its inference server decides by the clock which requests share a forward pass",
    PARAMETER_SERVER: "its learners read weights in the middle of their steps, while parameter servers change them",
    READER: "its readers of data pace themselves by the clock",
}
"""What a trace lacks, the kinds that say most first."""


def check_config(config: RunConfig, resumed: bool) -> None:
    """Raise `UserError` for a run that cannot be traced, whatever its program is."""
    if config.inline:
        raise UserError(
            "--trace is for runs whose order depends on timing, and an inline run is deterministic; leave it out"
        )
    if config.runtime == "ray":
        raise UserError("--trace records processes of one machine, and runtime='ray' has several; use --runtime local")
    if config.device != "cpu":
        raise UserError(f"--trace: device={config.device!r} adds in an order of its own; use --device cpu")
    if resumed:
        raise UserError("--trace records a run from its beginning; resume it with --no-trace, which keeps it")


def check_program(name: str, kinds: Iterable[RoleKind], edges: Iterable[Edge]) -> None:
    """Raise `UserError` for a program whose asynchrony is not in what a trace records."""
    others = {kind: f"what a {kind.name} meets is not recorded" for kind in kinds if kind not in TRACED}
    for why in [*(reason for kind, reason in REASONS.items() if kind in others), *others.values()]:
        raise UserError(f"{name!r} cannot be traced: {why}; leave --trace out")
    for edge in edges:
        if type(edge) not in TRACED_EDGES or (isinstance(edge, AllReduceEdge) and edge.backend != "memory"):
            raise UserError(f"{name!r} cannot be traced: nothing records edge {edge.name!r}; leave --trace out")


def begin(directory: Path, config: str) -> Path:
    """Make the folder of a run's trace: config, machine and versions."""
    folder = directory / FOLDER
    try:
        if folder.exists():  # of a run that was killed before its first checkpoint, and starts anew
            shutil.rmtree(folder)
        folder.mkdir()
        write_text(folder / RUN_FILE, config)
        write_json(folder / FACTS_FILE, facts())
    except OSError as error:
        raise UserError(f"trace {str(folder)!r} cannot be written: {error.strerror}; leave --trace out") from None
    return folder


def facts() -> dict[str, Any]:
    """What the last bit of a sum may depend on."""
    instructions = torch.backends.cpu.get_cpu_capability()
    about = {"processor": _processor(), "instructions": instructions, VARIABLE: os.environ.get(VARIABLE, "")}
    return {"format": FORMAT, **versions(), **about}


def check_facts(folder: Path) -> None:
    """Raise `UserError` unless this is the machine, and these are the versions, that the trace was made with."""
    try:
        made: dict[str, Any] = json.loads((folder / FACTS_FILE).read_text())
    except (OSError, ValueError):
        raise UserError(f"{str(folder)!r} is no trace: its {FACTS_FILE} cannot be read; train with --trace") from None
    for name, here in facts().items():
        if made.get(name) != here:
            raise UserError(
                f"the trace was made with {name} {made.get(name)!r}, and here it is {here!r}, with which sums may be "
                "rounded differently; replay it where it was made"
            )


def _processor() -> str:
    """The model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
