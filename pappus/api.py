"""Pappus from Python: `train`, `resume`, `evaluate`, `load_policy`."""

from __future__ import annotations

import dataclasses
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pappus.config import RunConfig, load_file, override, to_yaml
from pappus.envs.vector import env_spec
from pappus.errors import UserError
from pappus.networks.flat import FlatParameters
from pappus.precision import choose_precision
from pappus.runtimes.controller import Controller
from pappus.runtimes.inline import InlineRuntime
from pappus.runtimes.local import LocalRuntime
from pappus.systems import find_system, presets_for, saved_config
from pappus.telemetry.checkpoint import CheckpointStore
from pappus.telemetry.console import Console
from pappus.telemetry.run_log import RunLog
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.summary import Summary
from pappus.topologies.program import Program
from pappus.topologies.run import Run
from pappus.trained import Evaluation, TrainedPolicy, evaluate, load_policy, stored_weights, weights_roles
from pappus.validation import validate, validate_memory

EnvLike = str | Callable[..., Any]


@dataclass(frozen=True)
class Result:
    """How a run ended, and where it is."""

    directory: Path
    summary: Summary
    env: EnvLike

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The newest policy of the run; it keeps its memory between calls until its `reset`."""
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
    return execute(config, env or config.env, directory.resolve())


def configure(system: str, env: str, settings: dict[str, Any], file: Path | None = None) -> RunConfig:
    """The resolved config: defaults < preset < file < settings."""
    written = load_file(file) if file is not None else {}
    env = env or str(written.get("env", ""))
    config = dataclasses.replace(find_system(system).defaults, env=env)
    for preset in presets_for(system, env):
        config = override(config, preset.settings, f"preset {preset.envs}")
    config = override(config, written, str(file))
    return override(config, settings)


def env_name(env: EnvLike) -> str:
    """How an env is called in configs and logs."""
    return env if isinstance(env, str) else f"{env.__module__}:{getattr(env, '__qualname__', type(env).__name__)}"


def execute(config: RunConfig, env: EnvLike, resumed: Path | None = None, began: float | None = None) -> Result:
    """Run a resolved config to its end."""
    validate(config)
    run = describe(config, env)
    directory = resumed or new_directory(config)
    with locked(directory):
        run = dataclasses.replace(
            run, directory=directory, config=dataclasses.replace(run.config, run_dir=str(directory))
        )
        return _execute(run, directory, resumed is not None, began)


def describe(config: RunConfig, env: EnvLike) -> Run:
    """What follows from a config before anything is written or started: env, network, precision, memory."""
    spec = env_spec(env, config.env_options)
    algorithm = find_system(config.system).algorithm(config.algorithm, spec, config.network)
    network: Any = algorithm.build_network()
    config = dataclasses.replace(
        config, precision=choose_precision(config, algorithm, spec), topology=config.topology.settled(config)
    )
    run = Run(config, env, spec, algorithm, network.state_spec, FlatParameters(network).size)
    program = find_system(config.system).topology(run)
    validate_memory({name: edge.memory()[0] for name, edge in program.edges.items()})
    return run


def _execute(run: Run, directory: Path, resumed: bool, began: float | None) -> Result:
    config = run.config
    store = CheckpointStore(directory / "checkpoints", config.checkpoint.keep_last)
    checkpoint = find_resumable(store, run) if resumed else None
    metadata = store.verify(checkpoint)["metadata"] if checkpoint else None
    (directory / "config.yaml").write_text(to_yaml(config))
    program = find_system(config.system).topology(run)
    run_stats = RunStats(config, program.kinds)
    with RunLog(directory, resume_step=metadata["steps"] if metadata else None) as log:
        console = Console(run_stats, directory)
        controller = Controller(
            config, run_stats, log, console, store, program.weights_roles, began=began or time.monotonic()
        )
        for warning in store.warnings:
            controller.event(warning)
        if metadata:
            controller.resume(metadata)
            controller.event(f"resumed from {checkpoint} at {metadata['steps']:,} steps")
        try:
            _drive(program, config, controller, checkpoint, metadata["updates"] if metadata else 0)
        except BaseException as error:
            reason = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            log.event(f"{type(error).__name__}: {error}")
            log.write_summary(controller.summary(reason))
            console.close(None)
            raise
        summary = controller.summary()
        log.write_summary(summary)
        console.close(summary)
    return Result(directory, summary, run.env)


def _drive(
    program: Program, config: RunConfig, controller: Controller, checkpoint: Path | None, incarnation: int
) -> None:
    """`incarnation` counts on where a resumed run stood, so that it does not repeat what its first part saw."""
    if config.inline:
        InlineRuntime(program, controller, incarnation).run(checkpoint)
    elif config.runtime == "ray":
        from pappus.runtimes.ray_cluster import RayRuntime

        RayRuntime(program, controller, config, incarnation).run(checkpoint)
    else:
        LocalRuntime(program, controller, config.supervision, incarnation).run(checkpoint)


def find_resumable(store: CheckpointStore, run: Run) -> Path:
    """The newest checkpoint, if this run can go on from it."""
    checkpoint = store.latest()
    if checkpoint is None:
        raise UserError(f"{str(run.directory)!r} holds no checkpoint to resume from; start it anew without --resume")
    metadata = store.verify(checkpoint)["metadata"]
    if metadata["env"] != run.config.env:
        raise UserError(f"the run was trained on env {metadata['env']!r}, not {run.config.env!r}; start a new run")
    size = stored_weights(checkpoint).size
    if size != run.weights_size:
        raise UserError(
            f"the checkpoint holds {size} weights, but the network of this config has {run.weights_size}; "
            "resume with the network that was trained"
        )
    _check_weights_roles(checkpoint, run)
    return checkpoint


def _check_weights_roles(checkpoint: Path, run: Run) -> None:
    """Weights and optimizer state can be resumed only by the roles that saved them."""
    saving_roles = find_system(run.config.system).topology(run).weights_roles
    found = weights_roles(checkpoint)
    if found == saving_roles:
        return
    begun = saved_config(Path(run.config.run_dir)).topology
    named = {name: getattr(begun, name) for name in ("updates", "shards") if hasattr(begun, name)}
    words = [
        f"--topology.{name} {value}" for name, value in named.items()
        if value != getattr(run.config.topology, name, None)
    ]
    raise UserError(
        f"the checkpoint holds the weights of {', '.join(found)}, which {', '.join(saving_roles)} of this config cannot go "
        f"on with; resume with {' '.join(words) or 'the topology settings that the run was begun with'}"
    )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Two runs must not write to one directory."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{str(directory)!r} is in use by a running process; wait for its end or stop it") from None
        yield


def new_directory(config: RunConfig) -> Path:
    """A fresh directory for a run; one that holds a run already is refused."""
    env = config.env.replace("/", "-").replace(":", "-")
    name = f"{config.system}-{env}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(config.run_dir or Path("runs") / name)
    while not config.run_dir and directory.exists():  # another run began in the same second
        directory = directory.with_name(f"{directory.name}+")
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
