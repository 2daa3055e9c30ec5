"""Pappus from Python: `train`, `resume`, `evaluate`, `load_policy`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.config import RunConfig, load_file, override, to_yaml
from pappus.envs.vector import env_spec
from pappus.errors import UserError
from pappus.networks.flat import FlatWeights
from pappus.precision import choose_precision
from pappus.runtimes.conductor import Conductor
from pappus.runtimes.inline import InlineRuntime
from pappus.runtimes.local import LocalRuntime
from pappus.systems import find_system, preset_for, saved_config
from pappus.telemetry.board import Board
from pappus.telemetry.checkpoint import CheckpointStore
from pappus.telemetry.console import Console
from pappus.telemetry.run_log import RunLog
from pappus.telemetry.summary import Summary
from pappus.topologies.run import Run
from pappus.trained import Evaluation, TrainedPolicy, evaluate, load_policy
from pappus.validation import validate

EnvLike = str | Callable[..., Any]


@dataclass(frozen=True)
class Result:
    """How a run ended, and where it is."""

    directory: Path
    summary: Summary
    env: EnvLike

    @property
    def policy(self) -> TrainedPolicy:
        """The newest policy of the run."""
        return load_policy(self.directory, env=None if isinstance(self.env, str) else self.env)


def train(system: str, env: EnvLike, **settings: Any) -> Result:
    """Train `system` on `env` and wait for the end.

    Settings are those of the command line, with underscores: `steps=1_000_000, core="lstm"`,
    `algorithm={"entropy_cost": 0.02}` or `**{"algorithm.entropy_cost": 0.02}`. `env` may be a function that makes one.
    """
    return execute(configure(system, env_name(env), settings), env)


def resume(run: str | Path, env: EnvLike | None = None, **settings: Any) -> Result:
    """Go on with a run from its newest checkpoint, with some settings changed if you like."""
    directory = Path(run)
    config = override(saved_config(directory), settings)
    return execute(config, env or config.env, directory)


def configure(system: str, env: str, settings: dict[str, Any], file: Path | None = None) -> RunConfig:
    """The resolved config: defaults < preset < file < settings."""
    config = dataclasses.replace(find_system(system).defaults, env=env)
    preset = preset_for(system, env)
    if preset is not None:
        config = override(config, preset.settings, f"preset {preset.envs}")
    if file is not None:
        config = override(config, load_file(file), str(file))
    return override(config, settings)


def env_name(env: EnvLike) -> str:
    """How an env is called in configs and logs."""
    return env if isinstance(env, str) else f"{env.__module__}:{getattr(env, '__qualname__', type(env).__name__)}"


def execute(config: RunConfig, env: EnvLike, resumed: Path | None = None, began: float | None = None) -> Result:
    """Run a resolved config to its end."""
    validate(config)
    run, checkpoint, store = prepare(config, env, resumed)
    assert run.directory is not None
    metadata = store.verify(checkpoint)["metadata"] if checkpoint else None
    board = Board(run.config)
    with RunLog(run.directory, resume_step=metadata["steps"] if metadata else None) as log:
        console = Console(board, run.directory)
        conductor = Conductor(run.config, board, log, console, store, began=began or time.monotonic())
        for warning in store.warnings:
            conductor.event(warning)
        if metadata:
            conductor.resume(metadata)
            conductor.event(f"resumed from {checkpoint} at {metadata['steps']:,} steps")
        program = find_system(config.system).topology(run)
        runtime = (
            InlineRuntime(program, conductor) if config.runtime == "inline"
            else LocalRuntime(program, conductor, config.supervision)
        )
        try:
            runtime.run(checkpoint)
        except BaseException as error:
            reason = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            log.event(f"{type(error).__name__}: {error}")
            log.write_summary(conductor.summary(reason))
            console.close(None)
            raise
        summary = conductor.summary()
        log.write_summary(summary)
        console.close(summary)
    return Result(run.directory, summary, env)


def prepare(config: RunConfig, env: EnvLike, resumed: Path | None) -> tuple[Run, Path | None, CheckpointStore]:
    """Everything that can fail before a run starts: its directory, env, network and checkpoint."""
    spec = env_spec(env, config.env_options)
    algorithm = find_system(config.system).algorithm(config.algorithm, spec, config.network)
    network: Any = algorithm.build_network()
    config = dataclasses.replace(config, precision=choose_precision(config, algorithm, spec))
    directory = resumed or new_directory(config)
    config = dataclasses.replace(config, run_dir=str(directory))
    store = CheckpointStore(directory / "checkpoints", config.checkpoint.keep_last)
    checkpoint = None
    if resumed:
        checkpoint = store.latest()
        if checkpoint is None:
            raise UserError(f"{str(directory)!r} holds no checkpoint to resume from; start it anew without --resume")
    (directory / "config.yaml").write_text(to_yaml(config))
    run = Run(config, env, spec, algorithm, network.state_spec, FlatWeights(network).size, directory)
    return run, checkpoint, store


def new_directory(config: RunConfig) -> Path:
    """A fresh directory for a run; one that holds a run already is refused."""
    env = config.env.replace("/", "-").replace(":", "-")
    name = f"{config.system}-{env}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(config.run_dir or Path("runs") / name)
    if (directory / "config.yaml").exists():
        raise UserError(
            f"run_dir={str(directory)!r} holds a run already; give another, or go on with --resume {directory}"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run_dir={str(directory)!r} cannot be made: {error.strerror}") from None
    return directory.resolve()


__all__ = ["Evaluation", "Result", "TrainedPolicy", "evaluate", "load_policy", "resume", "train"]
