"""`pappus verify RUN`: is a run what its config makes of its checkpoints?

    checkpoint A ──same config, the same number of rounds──▶ state here
                                                               ║ equal, leaf by leaf?
    checkpoint A ──the run, as it went ──────────────────▶ checkpoint B

The re-run has a folder of its own, and changes nothing of the run. Only the inline runtime repeats itself; of other
runs the files of checkpoints are compared with their hashes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.api import execute
from pappus.config import HooksConfig, RunConfig, StorageConfig
from pappus.errors import RunError, UserError, closest
from pappus.replay.service.checkpoint import difference as tables_difference
from pappus.roles.replay_server import FOLDER
from pappus.settings import fingerprint, to_yaml
from pappus.system import System
from pappus.systems import saved_config
from pappus.telemetry.checkpoint import AFRESH, CONFIG, HASHES, ROUNDS, CheckpointStore, load_state, read_manifest
from pappus.telemetry.files import versions
from pappus.telemetry.state_digest import difference, leaves

START = "start"
"""In place of a checkpoint: the beginning of the run."""
TABLES = "sha256"
"""The leaf of a state that stands for tables beside the checkpoint."""
NEVER = 1e9
"""Seconds."""


@dataclass(frozen=True)
class Verdict:
    """What was found, in a sentence or two."""

    exit_code: int
    text: str


def verify_run(directory: Path, start: str, trust: bool, say: Callable[[str], None]) -> Verdict:
    """Re-run from checkpoint `start` (empty: the last but one) to the next one, and compare all state."""
    system, config = saved_config(directory, trust=trust)
    checkpoints = CheckpointStore(directory / "checkpoints").in_order()
    first, second = stretch(checkpoints, start)
    if why := obstacle(first, second, config):
        whole = f"every file of {len(checkpoints)} checkpoints is as it was written"
        return Verdict(2, f"not verified: {why}; {whole}")
    rounds = read_manifest(second)["metadata"][ROUNDS]
    with tempfile.TemporaryDirectory(prefix="pappus-verify-") as scratch:
        say(f"re-runs {_name(first)} → {second.name}, {rounds - _rounds(first):,} rounds, in {scratch}")
        copy = repeated(system, config, directory, first, rounds, Path(scratch) / directory.name)
        found = compare(second, copy)
    if found:
        here = f"{second.name} differs from what {_name(first)} leads to here"
        return Verdict(1, f"{here}: {found}{_other_versions(second)}")
    names = ", ".join(sorted(read_manifest(second)["metadata"][HASHES]))
    return Verdict(0, f"equal: {_name(first)} leads to {second.name} again, to the bit ({names})")


def stretch(checkpoints: list[Path], start: str) -> tuple[Path | None, Path]:
    """The checkpoint to begin with (None: the start) and the one to compare with; `UserError` if there are none."""
    if not checkpoints:
        raise UserError("the run's own directory has no checkpoint; verify the run in its --fallback-dir")
    names = [path.name for path in checkpoints]
    if start == START or (not start and len(names) == 1):
        return None, checkpoints[0]
    wanted = start or names[-2]
    if wanted not in names:
        raise UserError(f"--from {start!r} is no checkpoint of the run{closest(start, names)}; use {', '.join(names)}")
    if wanted == names[-1]:
        raise UserError(f"--from {start!r} is the newest checkpoint, with none to compare after it; use an older one")
    return checkpoints[names.index(wanted)], checkpoints[names.index(wanted) + 1]


def obstacle(first: Path | None, second: Path, config: RunConfig) -> str:
    """Why the way from one checkpoint to the other cannot be repeated; empty if it can."""
    for path in (first, second):
        metadata = {} if path is None else read_manifest(path)["metadata"]
        if path is not None and ROUNDS not in metadata:
            return f"{path.name} is of another runtime than inline, or of an older version, and cannot be repeated"
        if metadata.get(AFRESH):
            return f"{path.name if path else ''} does not hold all state ({metadata[AFRESH]})"
    if config.device != "cpu":
        return f"device={config.device!r} adds in an order of its own"
    if read_manifest(second)["metadata"].get(CONFIG) != fingerprint(config):
        return f"the run was resumed with other settings since {second.name}"
    if _rounds(first) >= _rounds(second):
        return f"the run did not go from {_name(first)} to {second.name}"
    return ""


def repeated(
    system: System, config: RunConfig, directory: Path, first: Path | None, rounds: int, scratch: Path
) -> Path:
    """Run from a checkpoint until so many rounds are over; the new checkpoint."""
    config = dataclasses.replace(
        config, run_dir=str(scratch), record="", seconds=None, target_return=None, storage=StorageConfig(),
        hooks=HooksConfig(loggers=()),
        checkpoint=dataclasses.replace(config.checkpoint, every_seconds=NEVER, keep_last=2),
    )
    if first is not None:
        _copy(directory, first, scratch)
        (scratch / "config.yaml").write_text(to_yaml(config))
    with contextlib.redirect_stdout(io.StringIO()):
        execute(config, config.env, None if first is None else scratch, system=system, until=rounds)
    newest = CheckpointStore(scratch / "checkpoints").latest()
    if newest is None or _rounds(newest) != rounds:
        raise RunError(f"the re-run ended after {_rounds(newest):,} of {rounds:,} rounds; run pappus verify again")
    return newest


def _copy(directory: Path, checkpoint: Path, scratch: Path) -> None:
    """A checkpoint, and the tables that it refers to."""
    shutil.copytree(checkpoint, scratch / "checkpoints" / checkpoint.name)
    for role in read_manifest(checkpoint)["metadata"][HASHES]:
        for name, _ in leaves(load_state(checkpoint, role)):
            if name.rpartition(".")[2] != TABLES:
                continue
            tables = tables_of(checkpoint, role, name)
            if not tables.is_dir():
                raise UserError(f"tables of {checkpoint.name} were removed; begin with a newer checkpoint")
            shutil.copytree(tables, scratch / tables.relative_to(directory))


def tables_of(checkpoint: Path, role: str, leaf: str) -> Path:
    """The folder of the tables for which `leaf` of a role's state stands."""
    state, within = load_state(checkpoint, role), checkpoint.parent.parent / FOLDER
    *parents, _ = leaf.split(".")
    for key in parents:
        state, within = state[key], within / role
    return within / str(state["folder"])


def compare(one: Path, two: Path) -> str:
    """The first difference of two checkpoints, as `learner: weights`; empty if they are equal."""
    ours, theirs = (read_manifest(path)["metadata"][HASHES] for path in (one, two))
    for role in sorted(ours.keys() | theirs.keys()):
        if role not in ours or role not in theirs:
            return f"only one of them has {role}"
        if ours[role] != theirs[role]:
            return f"{role}: {_first_difference(one, two, role)}"
    return ""


def _first_difference(one: Path, two: Path, role: str) -> str:
    leaf = difference(load_state(one, role), load_state(two, role))
    if leaf.rpartition(".")[2] != TABLES:
        return leaf
    tables = [tables_of(path, role, leaf) for path in (one, two)]
    found = tables_difference(*tables) if all(path.is_dir() for path in tables) else "removed since"
    return f"{leaf.removesuffix(TABLES)}tables, {found}"


def _rounds(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(read_manifest(checkpoint)["metadata"].get(ROUNDS, 0))


def _name(checkpoint: Path | None) -> str:
    return "the start" if checkpoint is None else checkpoint.name


def _other_versions(checkpoint: Path) -> str:
    """Another machine or library may round otherwise."""
    there: dict[str, Any] = read_manifest(checkpoint)["versions"]
    here = versions()
    others = [f"{name} {there[name]} (here {here.get(name)})" for name in there if there[name] != here.get(name)]
    return f"; it was written with {', '.join(others)}" if others else ""
