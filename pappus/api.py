"""Pappus from Python: `train`, `resume`, `evaluate`, `load_policy`, `estimate`."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from pappus.beginnings import EnvLike, first_weights, name_of, with_data
from pappus.config import RunConfig, Settings
from pappus.configured import configured, same_system
from pappus.core import Algorithm
from pappus.data.dataset import open_dataset
from pappus.data.no_env import SPEC_FILE
from pappus.data.specs import check_spec, data_notes, spec_of
from pappus.envs.external import PREFIX, is_external
from pappus.envs.gym_backend import is_one_by_one
from pappus.errors import CallbackError, RunError, UserError, install_line
from pappus.hooks.callback import Callback
from pappus.hooks.find import TENSORBOARD, hooks_for
from pappus.judging.estimates import estimate
from pappus.judging.report import Estimate, Estimates
from pappus.machine import fit, machine_for, why_no_gpu, with_actors
from pappus.networks.flat import FlatParameters
from pappus.origin import origin_of, plain_config
from pappus.page.running import page_beside
from pappus.policy import TrainedPolicy
from pappus.precision import choose_precision
from pappus.presets import presets_for
from pappus.runs import Table
from pappus.runtimes.controller import Controller
from pappus.runtimes.disk_need import disk_warning
from pappus.runtimes.forkserver import ForkServer
from pappus.runtimes.inline import InlineRuntime
from pappus.runtimes.local import LocalRuntime
from pappus.runtimes.memory_need import MemoryPlan, memory_plan
from pappus.runtimes.process_limits import check_limits
from pappus.settings import load_file, override, to_yaml
from pappus.system import System
from pappus.systems import SYSTEMS, TOPOLOGIES, find_system, saved_config
from pappus.telemetry.checkpoint import CheckpointStore, no_checkpoint, read_manifest
from pappus.telemetry.console import Console
from pappus.telemetry.doctor_file import read_diagnosis
from pappus.telemetry.files import locked
from pappus.telemetry.findings import Diagnosis
from pappus.telemetry.history import read_history
from pappus.telemetry.meter import Meter, meter_for
from pappus.telemetry.process_tree import ProcessTree
from pappus.telemetry.run_folders import check_free
from pappus.telemetry.run_log import RunLog, Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.spending import Spending, check_measurable, spent_before
from pappus.telemetry.terminal import Terminal
from pappus.telemetry.weights import stored_weights, weights_roles
from pappus.topologies.program import Program, Run
from pappus.trained import Evaluation, evaluate, load_policy
from pappus.transports.addresses import check_free as check_address
from pappus.trust import asked_by, remember
from pappus.validation import validate

if TYPE_CHECKING:
    from pappus.record import RunRecording

@dataclass(frozen=True)
class Result:
    """How a run ended, and where it is."""

    directory: Path
    summary: Summary
    env: EnvLike
    system: System
    complete: bool = True
    """Whether everything that the run had to write is in its directory: no metrics, logs or checkpoint were lost."""

    @cached_property
    def metrics(self) -> Table:
        """What metrics.jsonl holds, as columns: `result.metrics["charts/episodic_return"]`."""
        return Table(dict(read_history(self.directory).columns))

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What the doctor says of the whole run: its findings, and the one change that would make it faster."""
        return read_diagnosis(self.directory)[0]

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The newest policy of the run. It keeps its recurrent state between calls, until `reset`."""
        env = None if isinstance(self.env, str) else self.env
        return load_policy(self.directory, env=env, system=self.system, trust=True)


def train(
    system: str | System, env: EnvLike = "", settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback | str] = (), **named: Unpack[Settings],
) -> Result:
    """Train a system on an env, and return when the run has ended.

    `system` is a name, a pair such as `"ppo@seed"`, `"module:name"`, or a `System`. `env` is a Gymnasium id, or a
    function that makes an env. Settings are those of the command line: by name (`steps=1_000_000, core="lstm"`), as
    config objects (`optimizer=OptimizerConfig(learning_rate=3e-4)`), or dotted, in a mapping
    (`{"algorithm.entropy_cost": 0.02}`). `callbacks` see the run while it goes on; each is a `Callback`, or
    `"module:name"`.
    """
    name = name_of(env)
    given: dict[str, Any] = {**(settings or {}), **named}
    chosen = system_here(system, configure(system, name, given), given)
    config = configure(chosen, name, given)
    return execute(config, config.env if isinstance(env, str) else env, system=chosen, callbacks=callbacks)


def resume(
    run: str | Path, env: EnvLike | None = None, system: System | None = None,
    settings: Mapping[str, Any] | None = None, trust: bool = False, callbacks: Sequence[Callback | str] = (),
    **named: Unpack[Settings],
) -> Result:
    """Continue a run from its newest checkpoint, with the settings that you change. Give `env`, `system` and
    `callbacks` again where they were Python values; `trust` what its config asks for, if you did not ask for it in this
    folder before."""
    directory = Path(run)
    found, config = saved_config(directory, system, trust=trust, without=() if env is None else ("env",))
    config = same_system(override(config, {**(settings or {}), **named}), found)
    if isinstance(env, str) and env != config.env:
        raise UserError(f"the run was trained on env {config.env!r}, not {env!r}; start a new run")
    return execute(config, env or config.env, directory.resolve(), system=found, callbacks=callbacks)


def configure(
    system: str | System, env: str, settings: Mapping[str, Any] | None = None, file: Path | None = None,
    trust: bool = False,
) -> RunConfig:
    """The resolved config: defaults < preset < file < settings."""
    return configured(find_system(system), env, settings, file, trust)


def system_here(asked: str | System, config: RunConfig, given: Iterable[str]) -> System:
    """The system that was asked for. Where the learner can compute on a GPU, presets for a GPU apply. If it was asked
    for by name, it takes the topology that these want (`ppo` becomes `ppo@seed`), unless settings of its own topology
    are given."""
    system = find_system(asked)
    on_gpu = dataclasses.replace(system, on_gpu=True)
    special = [preset for preset in presets_for(on_gpu, config.env) if preset.on_gpu]
    if not special or config.device == "cpu" or why_no_gpu(config):
        return system
    if config.device == "auto" and not machine_for(config).gpu:
        return system
    wanted = [preset.topology for preset in special if preset.topology]
    named = isinstance(asked, str) and asked in SYSTEMS
    own = any(name.partition(".")[0] in ("topology", "system") for name in given)
    if not wanted or not named or own:
        return on_gpu
    pair = f"{system.algorithm.name}@{wanted[-1]}"
    return dataclasses.replace(on_gpu, topology=TOPOLOGIES[wanted[-1]], found_as=pair)


def execute(
    config: RunConfig, env: EnvLike, resumed: Path | None = None, began: float | None = None,
    system: System | None = None, until: int | None = None, callbacks: Sequence[Callback | str] = (),
    terminal: Terminal | None = None,
) -> Result:
    """Run a resolved config to its end; `system` where its name does not find it. `until`: in the inline runtime,
    interrupt it after so many rounds. `terminal` is that of the command."""
    tree = ProcessTree(whole=began is not None, alone=config.runtime == "ray")
    system = system or find_system(config.system)
    notes = origin_of(system, config) if resumed is None else []
    config, env = with_data(config, env)
    config, chosen = fit(config, env, system)
    notes += [f"auto: {chosen}"] if chosen else []
    validate(config)
    check_measurable(config, meter := meter_for(config, tree, began))
    if config.page_server.listen:
        check_address(config.page_server.listen)
    if not config.inline and config.runtime != "ray":
        check_limits(config)
    run = describe(config, env, system)
    if config.runtime != "ray":  # nodes of a cluster have memory of their own, and reserve it
        plan = memory_plan(run, system.topology.build(run))
        plan.check()
        notes += plan.lines() if plan.large else []
    if config.trace:
        check_traced(run, system, resumed is not None)
    beginning = first_weights(run) if config.init_from and resumed is None else None
    with recording_of(run) as recording:
        directory = resumed or new_directory(config)
        fallback = fallback_directory(config, directory, resumed is not None)
        record = str(Path(config.record).resolve()) if config.record else ""
        where = "" if fallback is None else str(fallback.parent)  # as found from any working directory
        storage = dataclasses.replace(config.storage, fallback_dir=where or config.storage.fallback_dir)
        config = dataclasses.replace(run.config, run_dir=str(directory), record=record, storage=storage)
        run = dataclasses.replace(run, directory=directory, config=config, first_weights=beginning)
        with locked(directory):
            again = resumed is not None
            return _execute(
                system, run, directory, again, began, notes, meter, recording, fallback, until, callbacks, terminal
            )


def check_traced(run: Run, system: System, resumed: bool) -> None:
    """Raise `UserError` for a run that cannot be traced."""
    from pappus.trace import origin
    from pappus.trace.products import VARIABLE, same_products

    origin.check_config(run.config, resumed)
    program = system.topology.build(run)
    origin.check_program(run.config.system_name, program.kinds.values(), program.edges.values())
    if VARIABLE not in os.environ:  # the processes of roles must have it from their start
        ForkServer.discard()
        same_products()


def begin_trace(directory: Path, config: RunConfig) -> Path | None:
    """The folder of the run's trace, if it is traced."""
    if not config.trace:
        return None
    from pappus.trace import origin

    return origin.begin(directory, to_yaml(config))


@contextmanager
def recording_of(run: Run) -> Iterator[RunRecording | None]:
    """The recording that the run's config asks for; `UserError` where that is impossible. A run that fails leaves its
    parts: they are taken up when it is resumed, or completed by whoever opens the data set."""
    if not run.config.record:
        yield None
        return
    from pappus.record import RunRecording, about_env

    config = run.config
    about = about_env(run.env, config.env, config.env_options, run.env_spec, system=config.system_name)
    recording = RunRecording(Path(config.record).resolve(), about)
    try:
        yield recording
    finally:
        recording.release()


def describe(config: RunConfig, env: EnvLike, system: System | None = None) -> Run:
    """What follows from a config before anything is written or started: env, network, precision, memory."""
    system = system or find_system(config.system)
    config, _ = fit(config, env, system)
    spec = spec_of(env, config.env_options)
    if config.data:
        check_spec(open_dataset(config.data), env, spec, config.env_options)
    algorithm = system.algorithm.make(config.algorithm, spec, config.network)
    network: Any = _first_network(algorithm)
    config = dataclasses.replace(
        config, precision=choose_precision(config, algorithm, spec), topology=config.topology.settled(config)
    )
    return Run(config, env, spec, algorithm, network.state_spec, FlatParameters(network).layout)


def plan_memory(config: RunConfig, env: EnvLike, system: System) -> MemoryPlan:
    """What a run of a resolved config would take of this machine's memory. Nothing is written or started."""
    config, env = with_data(config, env)
    config, _ = fit(config, env, system)
    validate(config)
    check_measurable(config, meter_for(config, ProcessTree(), None))
    run = describe(config, env, system)
    return memory_plan(run, system.topology.build(run), envs=True)


def _first_network(algorithm: Algorithm) -> Any:
    """A fresh network; `UserError` for one that does not fit into memory."""
    try:
        return algorithm.build_network()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            "the network does not fit into memory; use smaller --network.hidden-sizes, --network.core-size or "
            "--algorithm.head-size"
        ) from None


def _execute(
    system: System, run: Run, directory: Path, resumed: bool, began: float | None, notes: Sequence[str], meter: Meter,
    recording: RunRecording | None = None, fallback: Path | None = None, until: int | None = None,
    callbacks: Sequence[Callback | str] = (), terminal: Terminal | None = None,
) -> Result:
    config = run.config
    program = system.topology.build(run)
    store, spare = open_stores(directory, fallback, config)
    checkpoint, metadata = find_resumable(store, run, program, spare) if resumed else (None, None)
    hooks = hooks_for(config, directory, callbacks, metadata["steps"] if metadata else None)
    before = spent_before(directory, metadata) if metadata else None
    (directory / "summary.json").unlink(missing_ok=True)  # of an earlier part: if this one is killed, there is none
    remember(asked_by(config, system.defaults))
    threads = is_one_by_one(run.env, config.env_options)
    run_stats = RunStats(config, program.kinds, usual=usual_config(system, config), one_by_one=threads)
    with open_log(directory, config, metadata["steps"] if metadata else None) as log, ExitStack() as ended:
        if terminal is not None:
            terminal.clear()  # the page's address is a line of its own
        page = ended.enter_context(page_beside(run_stats, program, directory, system))
        console = Console(run_stats, directory, terminal=terminal)
        controller = Controller(
            config, run_stats, log, console, store, program.weights_roles, began=began or time.monotonic(),
            fallback=spare, hooks=hooks, spending=Spending(run_stats, meter, before), page=page,
        )
        begins = [] if run.first_weights is None else [f"begins with the weights of {run.first_weights}"]
        small = [text] if (text := disk_warning(run, program, directory)) else []
        slow = [text] if (text := numba_note(config)) else []
        notes = (*notes, *begins, *data_notes(config.data), *store.warnings, *small, *slow)
        for text in notes:
            controller.event(text)
        if metadata:
            controller.resume(metadata)
            controller.event(f"resumed from {checkpoint} at {metadata['steps']:,} steps{time_left(config, metadata)}")
        try:
            trace = begin_trace(directory, config)
            _drive(run.config, program, controller, checkpoint, metadata["updates"] if metadata else 0, trace, until)
        except BaseException as error:
            reason = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
            log.event(f"{type(error).__name__}: {error}")
            controller.settle()
            log.write_summary(summary := controller.summary(reason))
            hooks.end(summary)
            controller.settle()
            console.close(summary, f"{type(error).__name__}: {error}")
            raise
        controller.settle()
        summary = controller.summary()
        log.write_summary(summary)
        if recording is not None:
            line = recording.finish()
            log.event(line)
            console.event(line)
        hooks.end(summary)
        if hooks.failure:
            log.event(hooks.failure)
        if losses := hooks.losses():
            summary = dataclasses.replace(summary, extras={**summary.extras, "hooks": losses})
            log.write_summary(summary)
        controller.settle()
        console.close(summary)
    if hooks.failure:
        raise CallbackError(hooks.failure)
    return Result(directory, summary, run.env, system, complete=not log.storage.lost)


def usual_config(system: System, config: RunConfig) -> RunConfig | None:
    """What the presets alone would give with so many actors; `actors` itself is as they say."""
    plain = plain_config(system, config)
    if plain is None:
        return None
    fitted = with_actors(dataclasses.replace(plain, actors=config.actors))
    return dataclasses.replace(fitted, actors=plain.actors)


def time_left(config: RunConfig, metadata: dict[str, Any]) -> str:
    """What a resumed run has left of `--seconds`, which counts all its parts."""
    if config.seconds is None:
        return ""
    used = metadata.get("env_seconds", metadata["train_seconds"])
    if used < config.seconds:
        return f"; {used:.0f} s of --seconds {config.seconds:g} are used"
    return f"; all of --seconds {config.seconds:g} is used, so it ends; --seconds {used + config.seconds:.0f} goes on"


def numba_note(config: RunConfig) -> str:
    """What it costs that numba is missing; empty where it is there, or not needed."""
    if not hasattr(config.topology, "replay") or importlib.util.find_spec("numba") is not None:
        return ""
    return (
        "numba is not installed: replay is slower without it; apex-dqn on CartPole in one thread made 3,300 to 3,900 "
        f"updates in 8 s instead of 5,000 to 6,500. To have it, run {install_line('replay')}"
    )


def open_stores(
    directory: Path, fallback: Path | None, config: RunConfig
) -> tuple[CheckpointStore, CheckpointStore | None]:
    """The run's checkpoints, and those in its fallback directory, from which it can be resumed as from its own."""
    try:
        store = CheckpointStore(directory / "checkpoints", config.checkpoint.keep_last)
        if fallback is None:
            return store, None
        spare = CheckpointStore(fallback / "checkpoints", config.checkpoint.keep_last)
        (fallback / "config.yaml").write_text(to_yaml(config))
    except OSError as error:
        raise UserError(f"{error.filename!r} cannot be written: {error.strerror}; give another directory") from None
    return store, spare


def open_log(directory: Path, config: RunConfig, resume_step: int | None) -> RunLog:
    """The run's log, with its config; a directory that cannot be written when the run begins is refused."""
    try:
        log = RunLog(directory, resume_step=resume_step, tensorboard=TENSORBOARD in config.hooks.loggers)
        log.keep("config.yaml", to_yaml(config))
        if is_external(config.env):
            log.keep(SPEC_FILE, Path(config.env.removeprefix(PREFIX)).read_text())
    except OSError as error:
        raise UserError(
            f"run_dir={str(directory)!r} cannot be written: {error.strerror}; make room, or give another --run-dir"
        ) from None
    return log


def _drive(
    config: RunConfig, program: Program, controller: Controller, checkpoint: Path | None, incarnation: int,
    trace: Path | None = None, until: int | None = None,
) -> None:
    """`incarnation` continues where a resumed run stood, so that it does not repeat the random numbers of its past."""
    if config.inline:
        ForkServer.discard()
        inline = InlineRuntime(program, controller, incarnation, config.supervision)
        controller.keep_accounts(inline.ledger)
        inline.run(checkpoint, until)
    elif config.runtime == "ray":
        from pappus.runtimes.ray_cluster import RayRuntime

        RayRuntime(program, controller, config, incarnation).run(checkpoint)
    else:
        local = LocalRuntime(program, controller, config.supervision, incarnation, trace)
        controller.keep_accounts(local.ledger)
        local.run(checkpoint)


def find_resumable(
    store: CheckpointStore, run: Run, program: Program, fallback: CheckpointStore | None = None
) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint, be it in the fallback directory, and its metadata, if this run can continue from it."""
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
    return checkpoint, metadata


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


def fallback_directory(config: RunConfig, directory: Path, resumed: bool) -> Path | None:
    """Where the run's checkpoints go that its own directory cannot take; None where that is nowhere else."""
    if not config.storage.fallback_dir:
        return None
    fallback = Path(config.storage.fallback_dir).resolve() / directory.name
    if resumed:
        return None if fallback == directory else fallback
    if fallback == directory:
        raise UserError(f"fallback_dir={config.storage.fallback_dir!r} is where the run itself is; give another disk")
    if (fallback / "config.yaml").exists():
        raise UserError(f"{str(fallback)!r}, the fallback directory, holds a run already; give another --fallback-dir")
    return fallback


def _folder_name(text: str) -> str:
    """`<lambda>` of a script is `lambda`: what a shell can take without quotes."""
    return re.sub(r"[^\w.+@=-]+", "-", text.removeprefix("__main__:").replace("<locals>.", "")).strip("-") or "env"


def new_directory(config: RunConfig) -> Path:
    """A fresh directory for a run; one that holds a run already is refused."""
    short = config.env.removesuffix("/data").rpartition("/")[2] if config.env.startswith("data:") else config.env
    env, system = (_folder_name(text) for text in (short, config.system_name))
    name = f"{system}-{env}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(config.run_dir or Path("runs") / name)
    while not config.run_dir and directory.exists():  # another run began in the same second
        directory = directory.with_name(f"{directory.name}+")
    check_free(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run_dir={str(directory)!r} cannot be made: {error.strerror}") from None
    return directory.resolve()


__all__ = [
    "Estimate", "Estimates", "Evaluation", "Result", "System", "TrainedPolicy", "estimate", "evaluate", "load_policy",
    "resume", "train",
]
