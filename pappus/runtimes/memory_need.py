"""What memory a run will take, estimated before its processes begin.

Refused is only what surely does not fit: the edges' blocks, which are written through at the start, tables as full as
the run will make them, weights with what the optimizer knows of them, and the least that a process takes. No margin is
added; envs, batches and activations come on top. Edges lie in anonymous memory files, for which the size of /dev/shm
is no limit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from pappus.edges.replay import ReplayEdge
from pappus.envs.external import has_no_env
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.recording.direct import ReplaySpec
from pappus.replay.storage.memory import available_memory
from pappus.runtimes.disk_need import state_bytes
from pappus.runtimes.process_limits import PROCESS_BYTES
from pappus.telemetry.nvml import find_gpus
from pappus.telemetry.process_tree import held_bytes
from pappus.topologies.builders import replay_spec
from pappus.topologies.gorila import GorilaConfig
from pappus.topologies.program import Program, Run
from pappus.transports.memory import layout_bytes

SERVER_BYTES = 170 << 20
"""Pages of the fork server, which all roles share: Python, torch and what they import."""
LARGE = 0.5
"""The share of the free memory from which on a run is told what it takes."""
PROBED = 2
"""Envs that are made to see what one takes."""
MIB = 1 << 20


@dataclass(frozen=True)
class Need:
    """Bytes for one purpose; `least` of them surely."""

    purpose: str
    size: int
    least: int
    about: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """What a run takes of this machine's memory, and of each of its GPUs; and what is free, where that is known."""

    needs: Sequence[Need]
    free: int | None
    device_needs: Sequence[Need] = ()
    device_free: int | None = None

    @property
    def total(self) -> int:
        return sum(need.size for need in self.needs)

    @property
    def large(self) -> bool:
        return self.free is not None and self.total > LARGE * self.free

    def lines(self) -> list[str]:
        """The plan in words, the sum first."""
        lines = [f"memory: about {gib(self.total)}{_of(self.free)}", *_listed(self.needs)]
        if self.device_needs:
            total = sum(need.size for need in self.device_needs)
            lines += [f"memory of each GPU: about {gib(total)}{_of(self.device_free)}", *_listed(self.device_needs)]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, in bytes."""
        return {**asdict(self), "total": self.total}

    def check(self) -> None:
        """Raise `UserError` where the least does not fit."""
        for needs, free, where in (
            (self.needs, self.free, "on this machine or in its container"),
            (self.device_needs, self.device_free, "on the GPU"),
        ):
            least = sum(need.least for need in needs)
            if free is not None and least > free:
                largest = max(needs, key=lambda need: need.least)
                parts = ", ".join(f"{need.purpose} {gib(need.least)}" for need in needs if need.least >= MIB)
                raise UserError(
                    f"the run needs at least {gib(least)} of memory ({parts}) and {gib(free)} are free {where}; "
                    f"{REMEDIES[largest.purpose]}"
                )


QUEUES, TABLES, PROCESSES, LEARNING = "shared memory", "replay tables", "processes", "weights and optimizer"
ENVS, BATCHES = "envs", "batches"
REMEDIES = {
    QUEUES: "use fewer actors or envs_per_actor, or a shorter unroll_length",
    TABLES: "use a smaller --topology.replay.capacity",
    PROCESSES: "use fewer --actors with more --envs-per-actor",
    LEARNING: "use smaller --network.hidden-sizes or --network.core-size",
    ENVS: "use fewer --actors or --envs-per-actor",
    BATCHES: "use a smaller --batch-size",
}


def memory_plan(run: Run, program: Program, envs: bool = False, root: str = "/") -> MemoryPlan:
    """The plan of a run on this machine; `envs`: make some, to see what they take."""
    config, on_gpu = run.config, run.config.device.startswith("cuda")
    state, batch = state_bytes(run) + 4 * run.weights_size, _batch_bytes(run, program)
    of_learner = [
        Need(LEARNING, state, state, "with gradients"), Need(BATCHES, 2 * batch, batch * on_gpu, "without activations")
    ]
    needs = [_blocks(program), _tables(run, program), _processes(program, config.inline)]
    if not on_gpu:
        many = config.learners
        needs += [replace(need, size=many * need.size, least=many * need.least) for need in of_learner]
    needs += [_envs(run, program)] if envs else []
    gpus = find_gpus([int(config.device.partition(":")[2] or 0)]) if on_gpu else None
    free = gpus.free_bytes() if gpus is not None else []
    return MemoryPlan(
        [need for need in needs if need.size], available_memory(root), of_learner if on_gpu else (),
        free[0] if free else None,
    )


def _blocks(program: Program) -> Need:
    edges = {name: edge.memory()[0] for name, edge in program.edges.items()}
    largest = sorted(edges, key=lambda name: -edges[name])[:3]
    total = sum(edges.values())
    return Need(QUEUES, total, total, ", ".join(f"{name} {gib(edges[name])}" for name in largest))


def _processes(program: Program, inline: bool) -> Need:
    here = held_bytes(os.getpid())
    if inline:
        return Need(PROCESSES, here, 0, "this one, which is there already")
    count = len(program.groups())
    size = SERVER_BYTES + here + count * PROCESS_BYTES
    return Need(PROCESSES, size, count * PROCESS_BYTES, f"{count} of roles, the fork server and this one")


def _tables(run: Run, program: Program) -> Need:
    """All tables when they are full, and as full as the run surely makes them."""
    specs: list[ReplaySpec] = [
        edge.spec for role in program.roles for end in role.ends()
        if isinstance(edge := program.edges[end.edge], ReplayEdge) and end == edge.host()
    ]
    config, topology = run.config, run.config.topology
    if isinstance(topology, GorilaConfig) and topology.replay_memory == "local":
        specs += [replay_spec(run, topology.replay, config.envs_per_actor, topology.prefetch)] * config.actors
    ends_early = config.seconds is not None or config.target_return is not None or bool(config.cost.budget)
    steps = 0 if ends_early else config.steps
    full = sum(spec.row_bytes * spec.most_rows for spec in specs)
    least = sum(spec.row_bytes * min(spec.max_steps, steps // len(specs)) for spec in specs)
    return Need(TABLES, full, least, "when they are full")


def _batch_bytes(run: Run, program: Program) -> int:
    """One batch of a learner."""
    specs = [edge.spec for edge in program.edges.values() if isinstance(edge, ReplayEdge)]
    if specs:
        return sum(2 * spec.batch_size * spec.row_bytes for spec in specs)
    return layout_bytes(run.unroll_spec(run.config.batch_envs)) if not hasattr(run.algorithm, "experience") else 0


def _envs(run: Run, program: Program) -> Need:
    """Envs of all roles, as some that are made here take memory."""
    count = sum(spec.kind.steps_envs for spec in program.roles) * run.config.envs_per_actor
    if has_no_env(run.env) or not count:
        return Need(ENVS, 0, 0)
    before = held_bytes(os.getpid())
    with closing(make_env(run.env, PROBED, 0, replace(run.config.env_options, threads=1))) as made:
        made.reset()
        each = max(0, held_bytes(os.getpid()) - before) // PROBED
    return Need(ENVS, count * each, 0, f"{count:,} of about {gib(each)}")


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / MIB:.1f} MiB"


def _of(free: int | None) -> str:
    return "" if free is None else f" of {gib(free)} that are free"


def _listed(needs: Sequence[Need]) -> list[str]:
    width = max((len(need.purpose) for need in needs), default=0)
    abouts = [f"  ({need.about})" if need.about else "" for need in needs]
    rows = zip(needs, abouts, strict=True)
    return [f"  {need.purpose.ljust(width)}  {gib(need.size).rjust(9)}{about}" for need, about in rows]
