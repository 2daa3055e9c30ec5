"""The checkpoint that a run continues from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pappus.config import RunConfig
from pappus.errors import RunError, UserError
from pappus.settings import load_file
from pappus.telemetry.checkpoint import CheckpointStore, no_checkpoint, read_manifest
from pappus.telemetry.weights import stored_weights, weights_roles
from pappus.topologies.program import Program, Run


class Resumption(NamedTuple):
    """A checkpoint and its metadata."""

    checkpoint: Path
    metadata: dict[str, Any]


def find_resumable(
    store: CheckpointStore, run: Run, program: Program, fallback: CheckpointStore | None = None
) -> Resumption:
    """The newest checkpoint, be it in the fallback directory, if this run can continue from it."""
    newest = [path for one in (store, fallback) if one is not None and (path := one.latest()) is not None]
    if not newest:
        raise no_checkpoint(Path(run.config.run_dir))
    checkpoint = max(newest, key=lambda path: read_manifest(path)["metadata"].get("updates", 0))
    metadata = read_manifest(checkpoint)["metadata"]
    _check_metadata(checkpoint, metadata)
    if metadata["env"] != run.config.env:
        raise UserError(f"the run was trained on env {metadata['env']!r}, not {run.config.env!r}; start a new run")
    size = stored_weights(checkpoint).size
    if size != run.weights_size:
        raise UserError(
            f"the checkpoint holds {size} weights, but the network of this config has {run.weights_size}; "
            "resume with the network that was trained"
        )
    _check_weights_roles(checkpoint, run, program)
    return Resumption(checkpoint, metadata)


def time_left(config: RunConfig, metadata: dict[str, Any]) -> str:
    """What a resumed run has left of `--seconds`, which counts all its parts."""
    if config.seconds is None:
        return ""
    used = metadata.get("env_seconds", metadata["train_seconds"])
    if used < config.seconds:
        return f"; {used:.0f} s of --seconds {config.seconds:g} are used"
    return f"; all of --seconds {config.seconds:g} is used, so it ends; --seconds {used + config.seconds:.0f} goes on"


def _check_metadata(checkpoint: Path, metadata: dict[str, Any]) -> None:
    """Raise `RunError` unless it says how far the run had come."""
    kinds: dict[str, Any] = {
        "env": str, "steps": int, "updates": int, "wall_seconds": int | float, "train_seconds": int | float,
        "env_seconds": int | float, "best_return": int | float | None,
    }
    for name, kind in kinds.items():
        value = metadata.get(name, 0.0 if name == "env_seconds" else None)
        if not isinstance(value, kind) or (kind is int and not 0 <= value < 1 << 62):
            raise RunError(f"checkpoint {str(checkpoint)!r} says {name}={value!r:.60}; use another one, or start anew")


def _check_weights_roles(checkpoint: Path, run: Run, program: Program) -> None:
    """Weights and optimizer states can be resumed only by the roles that saved them."""
    expected, found = program.weights_roles, weights_roles(checkpoint)
    if found == expected:
        return
    begun = load_file(Path(run.config.run_dir) / "config.yaml").get("topology", {})
    words = [
        f"--topology.{name} {begun[name]}" for name in ("updates", "shards")
        if name in begun and begun[name] != getattr(run.config.topology, name, None)
    ]
    raise UserError(
        f"the checkpoint holds the weights of {', '.join(found)}, but this config has {', '.join(expected)}; resume "
        f"with {' '.join(words) or 'the topology settings that the run was started with'}"
    )
