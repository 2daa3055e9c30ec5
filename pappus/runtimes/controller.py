"""Decides what a run does next, from what its roles report: evaluate, save, stop. Runtimes carry it out.

    running ──steps done, time up, target confirmed, Ctrl-C──▶ saving ──▶ over
                                                                 │          ▲
                                                                 └─ steps done, time up: evaluating
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from pappus.config import RunConfig
from pappus.errors import StorageError
from pappus.hooks.beside import FAILED, Hooks
from pappus.hooks.callback import Evaluated
from pappus.settings import fingerprint
from pappus.telemetry.accounts import Ledger
from pappus.telemetry.checkpoint import CONFIG, CheckpointStore, run_directory
from pappus.telemetry.console import Console
from pappus.telemetry.evaluations import Evaluations
from pappus.telemetry.meter import Meter
from pappus.telemetry.metrics import Report
from pappus.telemetry.run_log import BUDGET, DONE, STOPPED, TIME, RunLog, Summary
from pappus.telemetry.run_seconds import RunSeconds
from pappus.telemetry.run_stats import RECENT_EPISODES, Fault, RunStats
from pappus.telemetry.saves import Saves
from pappus.telemetry.spending import Spending
from pappus.telemetry.storage import CHECKPOINTS

Phase: TypeAlias = Literal["running", "evaluating", "saving", "over"]
LOG_SECONDS = 1.0
DOCTOR_SECONDS = 5.0
"""How often the run directory says anew what the doctor found."""
STALL_SECONDS = 30.0
"""Without an update for so long, the log says what each role waits for."""
CONTAINED = ("clients_refused", "batches_skipped", "items_lost")
"""Counts for the summary, of what was kept from the weights, or was lost on the way to them."""
RETRY_UPDATES = 100
"""Updates between an evaluation that missed the target and the next attempt."""
LATE_SECONDS = 60.0
"""When time is up, whoever makes updates may finish the present one for so long, or for `LATE_UPDATES` times the
longest so far; one that hangs never will."""
LATE_UPDATES = 3.0
OVERDUE_SECONDS = 10.0
"""After that, for the decision to end the run without them."""


class Controls(Protocol):
    """What a runtime can be asked for."""

    def command(self, role: str, command: str, argument: int) -> None:
        """Send a command to a role."""

    def save(self, directory: Path) -> None:
        """Have the state written into `directory`, then call `Controller.saved`, or `save_failed` if it cannot be."""


class Watcher(Protocol):
    """Who is told what the run does, and shows it to others."""

    def update(self, phase: Phase, scalars: Mapping[str, float]) -> None:
        """The phase that the run is in, and what is worth a curve. It never raises."""


class Controller:
    """One run from start to summary."""

    def __init__(
        self, config: RunConfig, run_stats: RunStats, log: RunLog, console: Console, store: CheckpointStore,
        weights_roles: Sequence[str] = (), clock: Callable[[], float] = time.monotonic, began: float | None = None,
        fallback: CheckpointStore | None = None, hooks: Hooks | None = None, spending: Spending | None = None,
        page: Watcher | None = None,
    ) -> None:
        """`weights_roles` are the roles that save the weights, in the order of their shards. Checkpoints that cannot be
        written to `store` go to `fallback`. `hooks` hear what happens, `page` what the run does. `spending` knows what
        the run costs."""
        self._hooks, self._page = hooks or Hooks(), page
        self._spending = spending or Spending(run_stats, Meter(clock=clock, began=began))
        self._config, self._run_stats, self._log, self._console = config, run_stats, log, console
        self._clock, self._weights_roles = clock, list(weights_roles)
        stores = [store] if fallback is None else [store, fallback]
        self._saves, self._storage = Saves(stores, config.checkpoint.every_seconds, clock), log.storage
        self._controls: Controls
        self._evaluations = Evaluations(config, run_stats, clock)
        self._seconds = RunSeconds(clock, began)
        self._phase: Phase = "running"
        self._saving: Path | None = None
        self._learned = self._interrupted = self._last_save = False
        self._save_by = math.inf
        """When the last checkpoint is given up."""
        self._unsaved = False
        self._next_attempt = 0
        """Updates before the target may be tried again."""
        self._finishing_for = ""
        """Why roles that train were asked to finish: the exit reason to come."""
        self._wait_until = math.inf
        """When updates that should have ended with the time are not waited for any longer."""
        self._best_return: float | None = None
        self._newest: Path | None = None
        """The last checkpoint."""
        self._logged = self._diagnosed = clock()
        self._last_update = (0, clock())
        self._longest_update = 0.0
        self._steps_before = self._updates_before = 0
        self._resumed = ""
        """How the run goes on from a checkpoint."""
        self._telling = threading.Lock()
        """Of the thread that runs, and one beside it that says why that does not."""
        self.solved_at_step: int | None = None
        self.exit_reason = ""
        self._ledger: Ledger | None = None

    @property
    def finishing(self) -> bool:
        """Whether the run is ending: then roles need not make progress."""
        return self._phase != "running"

    @property
    def over(self) -> str:
        """Why the run has come to its end; empty where it has not, or may go on."""
        return self.exit_reason if self.exit_reason in DONE else ""

    def resume(self, metadata: dict[str, Any]) -> None:
        """Count on from a checkpoint."""
        self._run_stats.resume(metadata["steps"], metadata["updates"])
        self._steps_before, self._updates_before = metadata["steps"], metadata["updates"]
        self._best_return = metadata["best_return"]
        self._seconds.resume(metadata)
        self._evaluations.continue_from(metadata["steps"])

    def rewind(self, steps: int, updates: int) -> None:
        """A learner was restarted with an earlier state: its later updates do not count any more."""
        lost = self._run_stats.updates - updates
        self._run_stats.resume(steps, updates)
        self._next_attempt, self._last_update = min(self._next_attempt, updates), (updates, self._clock())
        self._evaluations.continue_from(steps)
        self.event(f"continues from {steps:,} steps; {lost:,} updates are lost")
        self._learned = False
        if self._phase == "saving" and self.exit_reason == "steps done":  # they are not, any more
            self._phase, self._last_save = "running", False
            self._seconds.go_on()
        if self._evaluations.state == "asked":  # for a version that may not exist any more
            self._evaluate()

    def keep_accounts(self, ledger: Ledger) -> None:
        """Where the roles count what becomes of their steps."""
        self._ledger = ledger

    def started(self, controls: Controls) -> None:
        self._controls = controls
        self._seconds.started()
        for text in self._spending.notes():
            self.event(text)
        self._saves.restart()
        self._hooks.tell("on_start", self._run_stats.env_steps)

    def report(self, report: Report) -> None:
        """A role's numbers."""
        if "updates" in report["counts"] and self._run_stats.updates == self._updates_before:
            self._seconds.updated_first(report["busy"])
        if report["counts"].get("env_steps"):
            self._seconds.stepped()
        self._run_stats.add(report)
        trains = not self._run_stats.kind(report["role"]).evaluates
        if trains and report["episodes"] and self._hooks.wants("on_episode"):
            self._hooks.tell("on_episode", self._run_stats.env_steps, report["episodes"], report["role"])
        if (score := self._evaluations.answer(report["gauges"])) is not None:
            self._tell_score(score)

    def _tell_score(self, score: float) -> None:
        self._logged -= LOG_SECONDS  # each has a line of its own
        evaluated = Evaluated(score, self._evaluations.deviation, self._evaluations.asked_at)
        self._hooks.tell("on_evaluation", self._run_stats.env_steps, evaluated)
        episodes = self._config.evaluation.episodes
        self.event(f"greedy evaluation over {episodes} episode{'s' * (episodes != 1)}: {score:.1f}")

    def event(self, text: str, role: str = "") -> None:
        """Something worth a line in log and view."""
        self._run_stats.event(text, role)

    def stalls(self, sentence: str) -> None:
        """Nothing moves, and why."""
        began = not self._run_stats.stall
        self._run_stats.stall = sentence
        if began:
            self._diagnose()

    def moves_again(self, seconds: float) -> None:
        """A stall is over, after so long."""
        self._run_stats.stall = ""
        self._run_stats.stalled_seconds += seconds
        self._diagnose()

    def speak(self) -> None:
        """Write and show what there is, from a thread beside the one that decides, which does not move."""
        self._tell()
        self._console.update()

    def continued(self, afresh: str = "") -> None:
        """The run goes on from a checkpoint: exactly, or `afresh` says why not."""
        fresh_start = self._config.topology.fresh_start
        self._resumed = f"{fresh_start} ({afresh})" if afresh else "exact"
        self.event(f"resumed: {self._resumed}")

    def role_finished(self, role: str) -> None:
        """A role has done all steps that the config asks for, and so has the run."""
        self._learned = True

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        """A role runs in that process now, on that node of a cluster."""
        self._run_stats.process(role, pid, node)

    def role_measured(self, role: str, memory: int, cpu: float) -> None:
        """Bytes that a role's process on another machine holds, and seconds that it computed."""
        self._run_stats.measured(role, memory, cpu)

    def role_restarted(self, role: str) -> None:
        """A role was restarted and has lost the commands that it got."""
        if self._run_stats.kind(role).evaluates and self._evaluations.state == "asked":
            self._evaluate()
        if self._finishing_for and self._phase == "running" and self._run_stats.kind(role).trains:
            self._controls.command(role, "finish", 0)

    def role_failed(self, role: str, what: Fault) -> None:
        """Its process died: in an env, because it hung, or otherwise."""
        self._run_stats.failed(role, what)

    def overdue(self) -> bool:
        """Whether time has been up for long, and no decision has come since: the only thread hangs. Others may ask."""
        limit = self._config.seconds
        if limit is None or not self._seconds.has_stepped or self.finishing or self._interrupted:
            return False
        patience = max(LATE_SECONDS, LATE_UPDATES * self._longest_update)
        return self._seconds.of_envs >= limit + patience + OVERDUE_SECONDS

    def interrupt(self) -> None:
        """End soon: what can be saved is saved within the grace."""
        self._interrupted = True
        self._save_by = min(self._save_by, self._clock() + self._config.supervision.saving_seconds)

    def decide(self) -> bool:
        """Take the next decisions; True when the run is over."""
        if self._evaluations.late():
            limit = self._config.evaluation.max_seconds
            self.event(f"the evaluation did not end within {limit:.0f} s and is left out")
        self._spending.look()
        if self._phase == "running":
            self._while_running()
        if self._phase == "saving" and self._saving is None:
            self._last_save = True  # a save that began before may lack the last updates
            self._save(patient=False)
        if self._phase == "saving" and self._clock() >= self._save_by:
            self._end_unsaved()
        if self._phase == "evaluating" and (self._evaluations.state != "asked" or self._interrupted):
            self._phase = "over"
            if self._evaluated_best() and self._newest is not None:
                self._mark_best(self._newest)  # it holds what was evaluated
        self._show()
        return self._phase == "over"

    def _while_running(self) -> None:
        if self._interrupted:
            self._end("interrupted")
        elif self._storage.failures and self._config.storage.on_failure == "stop":
            self._end("storage failed")
        elif self._hooks.failure:
            self._end(FAILED)
        elif self._hooks.stop:
            self.event(self._hooks.stop)
            self._end(STOPPED)
        elif self._target_confirmed():
            self._end("target reached")
        elif self._learned:
            self._end(self._finishing_for or "steps done")
        elif self._clock() >= self._wait_until:
            self.event(f"{self._finishing_for}, but the updates do not end: something hangs; the run ends without them")
            self._save_by = self._clock() + self._config.supervision.saving_seconds
            self._end(self._finishing_for)
        else:
            self._keep_up()

    def _end(self, reason: str) -> None:
        self.exit_reason, self._phase = reason, "saving"
        self._seconds.ended()
        self._spending.training_ended()
        self._run_stats.training_ended()
        self._diagnose()

    def _target_confirmed(self) -> bool:
        """A greedy evaluation reaches the target: one that was due, or that 100 training episodes gave reason for."""
        target, run_stats, evaluations = self._config.target_return, self._run_stats, self._evaluations
        if target is None:
            return False
        if evaluations.state == "answered":
            evaluations.state = "none"
            if evaluations.score is not None and evaluations.score >= target:
                self.solved_at_step = evaluations.asked_at
                return True
            self._next_attempt = run_stats.updates + RETRY_UPDATES
        mean = run_stats.episodic_return
        enough = run_stats.episodes >= RECENT_EPISODES and mean is not None and mean >= target
        if enough and evaluations.state == "none" and run_stats.updates >= self._next_attempt:
            self._evaluate()
            if evaluations.state == "none":  # no role evaluates: the training episodes decide
                self.solved_at_step = evaluations.asked_at
                return True
        return False

    def _keep_up(self) -> None:
        now = self._clock()
        if self._evaluations.due(timed=self._seconds.has_stepped):
            self._evaluate()
        self._watch_limits()
        if self._saving is None and (self._evaluated_best() or self._saves.due()):
            self._save()
        if self._run_stats.updates != self._last_update[0]:
            if self._last_update[0] != self._updates_before:
                self._longest_update = max(self._longest_update, now - self._last_update[1])
            self._last_update = (self._run_stats.updates, now)
        elif now - self._last_update[1] >= STALL_SECONDS:
            self._last_update = (self._run_stats.updates, now)
            if not self._run_stats.stall:  # that is a better explanation
                self.event(f"no update for {STALL_SECONDS:.0f} s: {self._run_stats.states()}")

    def _watch_limits(self) -> None:
        """When time or budget are used up, ask roles that train to finish, so that the weights do not change while they
        are saved and evaluated."""
        if self._finishing_for or not self._seconds.has_stepped:
            return
        if self._config.seconds is not None and self._seconds.of_envs >= self._config.seconds:
            self._finishing_for = TIME
        elif spent := self._spending.exhausted():
            self._finishing_for = BUDGET
            self.event(f"{BUDGET}: {spent}")
        if self._finishing_for:
            self._wait_until = self._clock() + max(LATE_SECONDS, LATE_UPDATES * self._longest_update)
            for role in self._run_stats.roles(lambda kind: kind.trains):
                self._controls.command(role, "finish", 0)

    def _limits_used(self) -> dict[str, float]:
        limit = self._config.seconds
        return self._spending.shares() | ({} if limit is None else {"seconds": self._seconds.of_envs / limit})

    def _evaluate(self) -> None:
        self._evaluations.ask(self._controls, self._seconds.of_envs, last=self.finishing)

    def _evaluated_best(self) -> bool:
        """Whether an evaluation that no checkpoint was marked for is the best."""
        return self._evaluations.unmarked and self._is_best(self._evaluations.score)

    def _save(self, patient: bool = True) -> None:
        try:
            self._saving = self._saves.begin(self._run_stats.env_steps, patient)
        except StorageError as error:
            return self.save_failed(str(error))
        self._controls.save(self._saving)

    def save_failed(self, reason: str) -> None:
        """A checkpoint cannot be written: it goes elsewhere, or the one before it has to do until the next attempt."""
        self._saving, elsewhere = None, self._saves.give_up()
        given_up = f"a checkpoint was abandoned: {reason}; the one before it is kept"
        if elsewhere:
            self._storage.failed(CHECKPOINTS, f"{given_up}, and new ones go to {elsewhere!r} until there is room")
            return self._save()
        again = "" if self._last_save else f", and the next is tried in {self._saves.wait():.0f} s"
        self._storage.failed(CHECKPOINTS, given_up + again)
        if self._last_save:
            self._unsaved = True
            self._storage.lose(CHECKPOINTS)
            self._after_last_save()

    def _end_unsaved(self) -> None:
        """The grace is over: whoever has to write the last checkpoint hangs, or takes too long."""
        self.event("the last checkpoint was not written in time; the one before it is kept")
        self._saving, self._unsaved, self._phase = None, True, "over"

    def _after_last_save(self) -> None:
        if self.exit_reason in ("steps done", TIME, BUDGET):
            self._phase = "evaluating"
            self._evaluate()
        else:
            self._phase = "over"

    def _mark_best(self, path: Path) -> None:
        try:
            self._saves.mark_best(path)
        except StorageError as error:
            self._storage.failed(CHECKPOINTS, f"the best checkpoint is not marked: {error}")

    def _is_best(self, mean: float | None) -> bool:
        return mean is not None and (self._best_return is None or mean >= self._best_return)

    def saved(
        self, directory: Path, progress: tuple[int, int] | None = None, about: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Commit the checkpoint; its path, or None if that failed. `progress`: the state's steps and updates, if the
        run continued since. `about`: what else the runtime says of the state."""
        steps, updates = progress or (self._run_stats.env_steps, self._run_stats.updates)
        judged = self._evaluations.score if self._evaluations.unmarked else None
        mean = self._run_stats.episodic_return if self._run_stats.plays else judged
        best = self._is_best(mean)
        best_return = mean if best else self._best_return
        try:
            path = self._saves.commit({
                "steps": steps, "updates": updates, "system": self._config.system,
                "env": self._config.env, "seed": self._config.seed, "episodic_return": mean,
                "best_return": best_return, "weights_roles": self._weights_roles, **self._seconds.to_dict(),
                "cost": self._spending.so_far().to_dict(),
                CONFIG: fingerprint(self._config), **(about or {}),
            })
        except StorageError as error:
            self.save_failed(str(error))
            return None
        self._saving, self._newest, self._best_return, self._evaluations.unmarked = None, path, best_return, False
        self._storage.fallback = str(run_directory(path)) if self._saves.away else ""
        if not self._saves.away:
            self._storage.works(CHECKPOINTS, f"checkpoints are written again: {path}")
        if best:
            self._mark_best(path)
        self._hooks.tell("on_checkpoint", steps, path)
        if self._last_save:
            self._after_last_save()
        return path

    def summary(self, exit_reason: str = "") -> Summary:
        run_stats, config, seconds = self._run_stats, self._config, self._seconds.to_dict()
        return Summary(
            system=config.system_name, env=config.env, seed=config.seed,
            steps=run_stats.env_steps, updates=run_stats.updates,
            wall_seconds=seconds["wall_seconds"], train_seconds=seconds["train_seconds"],
            steps_per_second=(run_stats.env_steps - self._steps_before) / max(self._seconds.of_training_here, 1e-9),
            episodic_return=run_stats.episodic_return, eval_return=self._evaluations.score,
            solved_at_step=self.solved_at_step, exit_reason=exit_reason or self.exit_reason,
            extras={
                "precision": config.precision, "verdict": run_stats.verdict(whole_run=True),
                "bytes_moved": run_stats.bytes_moved(), **self._accounts(),
                "cost": self._spending.to_dict(run_stats.env_steps, self.solved_at_step is not None),
                **run_stats.faults(),
                **{name: count for name in CONTAINED if (count := run_stats.count(name))},
                **{name: value for name in ("data", "init_from") if (value := getattr(config, name))},
                **({"resumed": self._resumed} if self._resumed else {}),
                **({"unsaved": True} if self._unsaved else {}), **self._storage.to_dict(),
                **({"hooks": losses} if (losses := self._hooks.losses()) else {}),
            },
        )

    def _accounts(self) -> dict[str, Any]:
        """What became of every step of this part of the run, once its processes have ended."""
        if self._ledger is None or not self._run_stats.plays:
            return {}
        return {"steps_before_resume": self._steps_before, "accounts": self._ledger.balance().to_dict()}

    def settle(self) -> None:
        """Write what still waits for room, and tell what is lost."""
        self._log.settle()
        self._tell()

    def _tell(self) -> None:
        with self._telling:  # two that take the news at a time would lose some of it
            for text in (*self._storage.news(), *self._hooks.news()):
                self.event(text)
            self._run_stats.storage = self._storage.line()
            for event in self._run_stats.new_events():
                self._log.event(event, at=event.time)
                self._console.event(event)

    def _diagnose(self) -> None:
        """Write down what the doctor says: lately, or once the training is over, of the whole run."""
        self._diagnosed = self._clock()
        self._log.write_doctor(self._run_stats.diagnosis(whole_run=self.finishing).to_dict() | {"over": self.finishing})

    def _show(self) -> None:
        now = self._clock()
        self._tell()
        if now - self._logged >= LOG_SECONDS or self._phase == "over":
            self._logged = now
            self._run_stats.own = self._hooks.metrics()
            self._run_stats.cost, self._run_stats.limits_seconds = self._spending.scalars(), self._seconds.of_envs
            self._run_stats.limits_used = self._limits_used()
            steps, scalars = self._run_stats.env_steps, self._run_stats.scalars() | self._evaluations.scalars
            written = self._log.write(steps, scalars)
            self._hooks.tell("on_metrics", steps, scalars, written)
            self._console.metrics(steps, written, scalars)
            if self._page is not None:
                self._page.update(self._phase, scalars)
            self._console.update()
        if now - self._diagnosed >= DOCTOR_SECONDS and not self.finishing:
            self._diagnose()
