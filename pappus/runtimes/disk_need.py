"""What a run's checkpoints will take on the disk, estimated before it begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from pappus.config import OptimizerConfig
from pappus.edges.replay import ReplayEdge
from pappus.roles.replay_server import FOLDER, KEPT
from pappus.topologies.builders import build_replay_server, replay_spec
from pappus.topologies.gorila import GorilaConfig
from pappus.topologies.program import Program, Run


def disk_warning(run: Run, program: Program, directory: Path) -> str:
    """A sentence if the checkpoints will not fit beside what is on the disk already; empty if they will."""
    weights, tables = state_bytes(run), table_bytes(run, program)
    kept = run.config.checkpoint.keep_last + 2  # the best, and the one that is being written
    needed = kept * weights + (KEPT + 1) * tables
    written = sum(_size(directory / name) for name in ("checkpoints", FOLDER))
    free = shutil.disk_usage(directory).free + written  # of a resumed run: new ones replace those
    if needed <= free:
        return ""
    parts = f"{kept} × {_gib(weights)} of weights and optimizer"
    parts += f", {KEPT + 1} × {_gib(tables)} of full tables" if tables else ""
    remedy = ", or use a smaller --topology.replay.capacity" if tables else ", or use a smaller --checkpoint.keep-last"
    return (
        f"checkpoints will take up to {_gib(needed)} ({parts}), and {str(directory)!r} has room for {_gib(free)}: make "
        f"room, give a --fallback-dir on another disk{remedy}"
    )


def state_bytes(run: Run) -> int:
    """Weights, what the optimizer knows of each, and a target network where there is one."""
    has_target = getattr(run.algorithm, "target_updates", None) is not None
    copies = 1 + _statistics(run.config.optimizer) + has_target
    return 4 * run.weights_size * copies


def table_bytes(run: Run, program: Program) -> int:
    """Rows of all tables that are saved, when they are as full as they get in this run."""
    specs = [
        edge.spec for role in program.roles if role.build is build_replay_server for end in role.ends()
        if isinstance(edge := program.edges[end.edge], ReplayEdge)
    ]
    topology, config = run.config.topology, run.config
    if isinstance(topology, GorilaConfig) and topology.replay_memory == "local" and config.inline:
        specs += [replay_spec(run, topology.replay, config.envs_per_actor, topology.prefetch)] * config.actors
    return sum(spec.row_bytes * min(spec.max_steps, run.config.steps) for spec in specs)


def _statistics(optimizer: OptimizerConfig) -> int:
    """Numbers that an optimizer keeps for each weight."""
    if optimizer.name in ("adam", "radam"):
        return 2
    return 1 + (optimizer.name == "rmsprop") * ((optimizer.momentum > 0) + optimizer.centered)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
