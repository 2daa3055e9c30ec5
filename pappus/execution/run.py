"""A run in its directory, from the first line of its log to its summary."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pappus.config import RunConfig
from pappus.data.specs import data_notes
from pappus.envs.gym_backend import is_one_by_one
from pappus.errors import CallbackError, install_line
from pappus.execution.directory import begin_trace, open_log, open_stores
from pappus.execution.resumption import Resumption, find_resumable, time_left
from pappus.hooks.beside import Hooks
from pappus.hooks.callback import Callback
from pappus.hooks.find import hooks_for
from pappus.machine import with_actors
from pappus.origin import plain_config
from pappus.page.running import page_beside
from pappus.runtimes.controller import Controller
from pappus.runtimes.disk_need import disk_warning
from pappus.runtimes.forkserver import ForkServer
from pappus.runtimes.inline import InlineRuntime
from pappus.runtimes.local import LocalRuntime
from pappus.system import System
from pappus.telemetry.console import Console
from pappus.telemetry.meter import Meter
from pappus.telemetry.run_log import RunLog, Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.spending import Spending, spent_before
from pappus.telemetry.terminal import Terminal
from pappus.topologies.program import Program, Run
from pappus.trust import asked_by, remember

if TYPE_CHECKING:
    from pappus.record import RunRecording


class Ended(NamedTuple):
    """How a run ended."""

    summary: Summary
    complete: bool
    """Whether everything that it had to write is in its directory."""


@dataclass(frozen=True)
class Execution:
    """A described run with its own directory, and what is needed to carry it out."""

    system: System
    run: Run
    directory: Path
    meter: Meter
    notes: Sequence[str] = ()
    """Lines of the log that were known before it was opened."""
    resumed: bool = False
    began: float | None = None
    """When the command was given."""
    recording: RunRecording | None = None
    fallback: Path | None = None
    """Where checkpoints go that the directory cannot take."""
    until: int | None = None
    """Rounds of the inline runtime after which it is interrupted."""
    callbacks: Sequence[Callback | str] = ()
    terminal: Terminal | None = None
    asked: RunConfig | None = None
    """The config before what it leaves to the run was settled; None of a resumed run, whose file says only what it came
    to."""

    def carry_out(self) -> Ended:
        """To its end, or to the error that ends it."""
        run, config, directory = self.run, self.run.config, self.directory
        program = self.system.topology.build(run)
        stores = open_stores(directory, self.fallback, config)
        start = find_resumable(stores[0], run, program, stores[1]) if self.resumed else None
        steps = start.metadata["steps"] if start else None
        hooks = hooks_for(config, directory, self.callbacks, steps)
        spent = spent_before(directory, start.metadata) if start else None
        (directory / "summary.json").unlink(missing_ok=True)  # of an earlier part: if this one is killed, there is none
        remember(asked_by(config, self.system.defaults))
        run_stats = RunStats(
            config, program.kinds, usual=usual_config(self.system, config),
            one_by_one=is_one_by_one(run.env, config.env_options),
        )
        with open_log(directory, config, steps) as log, ExitStack() as beside:
            if self.terminal is not None:
                self.terminal.clear()  # the page's address is a line of its own
            page = beside.enter_context(page_beside(run_stats, program, directory, self.system, self.asked))
            console = Console(run_stats, directory, terminal=self.terminal)
            controller = Controller(
                config, run_stats, log, console, stores[0], program.weights_roles, began=self.began,
                fallback=stores[1], hooks=hooks, spending=Spending(run_stats, self.meter, spent), page=page,
            )
            telling = Telling(controller, log, console, hooks)
            for text in (*self._notes(program), *stores[0].warnings):
                controller.event(text)
            try:
                self._drive(program, controller, start)
            except BaseException as error:
                telling.failed(error)
                raise
            summary = telling.ended(self.recording)
        if hooks.failure:
            raise CallbackError(hooks.failure)
        return Ended(summary, not log.storage.lost)

    def _notes(self, program: Program) -> Iterator[str]:
        """What is worth a line before the run begins."""
        yield from self.notes
        if self.run.first_weights is not None:
            yield f"starts from the weights of {self.run.first_weights}"
        yield from data_notes(self.run.config)
        yield from filter(None, (disk_warning(self.run, program, self.directory), numba_note(self.run.config)))

    def _drive(self, program: Program, controller: Controller, start: Resumption | None) -> None:
        """A resumed run begins a new incarnation, so that it does not repeat the random numbers of its past."""
        config = self.run.config
        checkpoint, incarnation = None, 0
        if start is not None:
            checkpoint, incarnation = start.checkpoint, start.metadata["updates"]
            controller.resume(start.metadata)
            left = time_left(config, start.metadata)
            controller.event(f"resumed from {checkpoint} at {start.metadata['steps']:,} steps{left}")
        drive(config, program, controller, checkpoint, incarnation, begin_trace(self.directory, config), self.until)


class Telling(NamedTuple):
    """The parts that report how a run ended."""

    controller: Controller
    log: RunLog
    console: Console
    hooks: Hooks

    def failed(self, error: BaseException) -> None:
        """It was stopped by Ctrl-C, or by its first error."""
        what = f"{type(error).__name__}: {error}"
        self.log.event(what)
        self.controller.settle()
        summary = self.controller.summary("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        self.log.write_summary(summary)
        self.hooks.end(summary)
        self.controller.settle()
        self.console.close(summary, what)

    def ended(self, recording: RunRecording | None) -> Summary:
        """It came to its end; what it recorded becomes a data set."""
        self.controller.settle()
        summary = self.controller.summary()
        self.log.write_summary(summary)
        if recording is not None:
            line = recording.finish()
            self.log.event(line)
            self.console.event(line)
        self.hooks.end(summary)
        if self.hooks.failure:
            self.log.event(self.hooks.failure)
        if losses := self.hooks.losses():
            summary = dataclasses.replace(summary, extras={**summary.extras, "hooks": losses})
            self.log.write_summary(summary)
        self.controller.settle()
        self.console.close(summary)
        return summary


def drive(
    config: RunConfig, program: Program, controller: Controller, checkpoint: Path | None = None, incarnation: int = 0,
    trace: Path | None = None, until: int | None = None,
) -> None:
    """Let the config's runtime run the program."""
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


def usual_config(system: System, config: RunConfig) -> RunConfig | None:
    """What the presets alone would give with so many actors; `actors` itself is as they say."""
    plain = plain_config(system, config)
    if plain is None:
        return None
    fitted = with_actors(dataclasses.replace(plain, actors=config.actors))
    return dataclasses.replace(fitted, actors=plain.actors)


def numba_note(config: RunConfig) -> str:
    """What it costs that numba is missing; empty where it is there, or not needed."""
    if not hasattr(config.topology, "replay") or importlib.util.find_spec("numba") is not None:
        return ""
    return (
        "numba is not installed: replay is slower without it; apex-dqn on CartPole in one thread made 3,300 to 3,900 "
        f"updates in 8 s instead of 5,000 to 6,500. To have it, run {install_line('replay')}"
    )
