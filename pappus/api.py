"""Pappus from Python: `train`, `resume`, `evaluate`, `load_policy`, `estimate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from pappus.beginnings import EnvLike, first_weights, name_of, with_data
from pappus.config import RunConfig, Settings
from pappus.configured import configured, same_system
from pappus.errors import UserError
from pappus.execution.description import check_traced, describe
from pappus.execution.directory import fallback_directory, new_directory, placed, recording_of
from pappus.execution.run import Execution
from pappus.hooks.callback import Callback
from pappus.judging.estimates import estimate
from pappus.judging.report import Estimate, Estimates
from pappus.machine import fit, machine_for, why_no_gpu
from pappus.origin import origin_of
from pappus.policy import TrainedPolicy
from pappus.presets import presets_for
from pappus.runs import Table
from pappus.runtimes.memory_need import memory_plan
from pappus.runtimes.process_limits import check_limits
from pappus.settings import override
from pappus.system import System
from pappus.systems import SYSTEMS, TOPOLOGIES, find_system, saved_config
from pappus.telemetry.doctor_file import read_diagnosis
from pappus.telemetry.files import locked
from pappus.telemetry.findings import Diagnosis
from pappus.telemetry.history import read_history
from pappus.telemetry.meter import meter_for
from pappus.telemetry.process_tree import ProcessTree
from pappus.telemetry.run_log import Summary
from pappus.telemetry.spending import check_measurable
from pappus.telemetry.terminal import Terminal
from pappus.trained import Evaluation, evaluate, load_policy
from pappus.transports.addresses import check_free as check_address
from pappus.validation import validate


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
    asked = config if resumed is None else None
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
        run = dataclasses.replace(placed(run, directory, fallback), first_weights=beginning)
        with locked(directory):
            summary, complete = Execution(
                system, run, directory, meter, notes, resumed is not None, began, recording, fallback, until, callbacks,
                terminal, asked,
            ).carry_out()
    return Result(directory, summary, run.env, system, complete)


__all__ = [
    "Estimate", "Estimates", "Evaluation", "Result", "System", "TrainedPolicy", "describe", "estimate", "evaluate",
    "load_policy", "resume", "train",
]
