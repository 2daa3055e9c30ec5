"""When the newest weights are played greedily, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from pappus.config import RunConfig
from pappus.telemetry.run_stats import RunStats


class Commands(Protocol):
    """Where roles are told what to do."""

    def command(self, role: str, command: str, argument: int) -> None:
        """Send a command to a role."""


class Evaluations:
    """One at a time: none ──ask──▶ asked ──the evaluator's answer, or none in time──▶ answered."""

    def __init__(self, config: RunConfig, run_stats: RunStats, clock: Callable[[], float]) -> None:
        self._settings, self._inline, self._run_stats, self._clock = config.evaluation, config.inline, run_stats, clock
        self.state: Literal["none", "asked", "answered"] = "none"
        self.score: float | None = None
        """The mean return of the last one; None if it did not end in time."""
        self.deviation = 0.0
        """Of its episodes' returns."""
        self.asked_at = 0
        """Env steps, when the last one was asked for."""
        self.scalars: dict[str, float] = {}
        """What the log says beside a score."""
        self.unmarked = False
        """The last score was not weighed yet for the best checkpoint; in runs without training episodes."""
        self._next = self._settings.every_steps
        self._at_steps = sorted(self._settings.at_steps)
        self._next_time = 0.0
        self._version, self._seconds, self._patience = 0, 0.0, 0.0

    def continue_from(self, steps: int) -> None:
        """The run goes on from there, forth or back."""
        every = self._settings.every_steps
        self._next = (steps // every + 1) * every if every else 0
        self._at_steps = [number for number in self._at_steps if number > steps]

    def due(self, timed: bool) -> bool:
        """Whether one is due by steps, or if `timed` by time; it is said once."""
        steps, every = self._run_stats.env_steps, self._settings.every_steps
        if self.state == "asked":
            return False
        if self._at_steps and steps >= self._at_steps[0]:
            self._at_steps = [number for number in self._at_steps if number > steps]
        elif every and steps >= self._next:
            self._next += every
        elif self._settings.every_seconds and timed and self._clock() >= self._next_time:
            self._next_time = self._clock() + self._settings.every_seconds
        else:
            return False
        return True

    def ask(self, controls: Commands, seconds: float, last: bool) -> None:
        """Have the newest weights played, if the program has a role for that. `seconds` of the run have passed, and
        after the `last` one nothing else needs the cores."""
        self._version, self.asked_at, self._seconds = self._run_stats.updates, self._run_stats.env_steps, seconds
        self._patience = self._clock() + self._settings.max_seconds
        evaluators = self._run_stats.roles(lambda kind: kind.evaluates)
        for role in evaluators:
            if last and not self._inline:
                controls.command(role, "use_all_cores", 0)
            controls.command(role, "from_version", self._version)
            controls.command(role, "evaluate", self._settings.episodes)
        self.state = "asked" if evaluators else "none"

    def answer(self, gauges: Mapping[str, float]) -> float | None:
        """The score, if a role's report has it: of the weights that were asked for."""
        if self.state != "asked" or gauges.get("eval/version", -1) < self._version:
            return None
        self.state, self.score = "answered", gauges["eval/episodic_return"]
        self.deviation = gauges.get("eval/episodic_return_std", 0.0)
        self.unmarked = not self._run_stats.plays
        self.scalars = {"eval/step": self.asked_at, "eval/seconds": self._seconds}
        return self.score

    def late(self) -> bool:
        """Whether one is given up now: a greedy policy may never end an episode."""
        if self.state != "asked" or self._clock() < self._patience:
            return False
        self.state, self.score = "answered", None
        return True
