"""Several runs side by side: seeds of one setting, or settings beside each other.

    pappus train ppo --env CartPole-v1 --seeds 1..5
    pappus train ppo --env CartPole-v1 --seeds 1,2,3 --vary optimizer.learning-rate=1e-3,3e-4 --jobs 2

Each member is a run in a folder and a process of its own; `jobs` of them at a time share the machine. `population.json`
holds the results, with the mean over seeds and its 95 % interval.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pappus.config import PageConfig
from pappus.errors import INCOMPLETE, UserError
from pappus.members import Member
from pappus.ops.intervals import interval
from pappus.page.folder import RunsFolder
from pappus.page.serving import served_meanwhile
from pappus.population_view import PopulationView, Row
from pappus.run_process import OUTPUT, start_run
from pappus.settings import load_file
from pappus.telemetry.files import last_line
from pappus.telemetry.processes import on_ending
from pappus.telemetry.run_log import DONE
from pappus.telemetry.terminal import Terminal
from pappus.transports.addresses import check_page
from pappus.trust import Asked, check_trust, remember

FILE = "population.json"
MEMBER = re.compile(r"[\w+-][\w.+-]*")
"""A member's name, which is also that of its folder."""
LOOK_SECONDS = 0.5
"""How often to look at the members."""
STOP_SECONDS = 1000.0
"""How long members may take to save and stop; each ends within its own `--supervision.grace-seconds`."""


@dataclass
class Population:
    """Members that are trained `jobs` at a time, and what is known of them."""

    directory: Path
    members: Sequence[Member]
    jobs: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    resumed: bool = False
    trust: bool = False
    """Members that go on run the code that their directories name, whoever wrote them."""
    page: PageConfig | None = None
    """How a page of all members is served meanwhile; None for no page."""

    def run(self, terminal: Terminal | None = None) -> int:
        """Train all; the exit code."""
        with on_ending(_stop_waiting), ExitStack() as over:
            self._write()
            terminal = terminal or Terminal()
            terminal.clear()
            if self.page is not None:
                over.enter_context(served_meanwhile(RunsFolder(self.directory), self.directory, self.page))
            return self._run(PopulationView(terminal, str(self.directory), self.jobs, self.rows))

    def _run(self, view: PopulationView) -> int:
        waiting = [member for member in self.members if self.summary(member).get("exit_reason") not in DONE]
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.jobs:
                    self._start(waiting.pop(0))
                view.update()
                time.sleep(LOOK_SECONDS)
                self._collect()
        except KeyboardInterrupt:
            view.say("pappus: each run saves and stops; Ctrl-C once more kills them")
            self._stop()
            view.close(self.recorded(), exit_code=130)
            view.say(f"resume with pappus train --resume {self.directory}")
            return 130
        self._write()
        view.update()
        code = self._report_codes()
        view.close([*self.verdict(), *self.recorded()], exit_code=code)
        return code

    def _report_codes(self) -> int:
        """Say which runs failed and which lost something to failing storage; the exit code."""
        failed = [name for name, code in self.codes.items() if code not in (0, INCOMPLETE)]
        incomplete = [name for name, code in self.codes.items() if code == INCOMPLETE]
        for names, what in ((failed, "failed"), (incomplete, "lost metrics, logs or their last checkpoint")):
            if names:
                log = self.directory / names[0] / OUTPUT
                print(f"pappus: {len(names)} of {len(self.members)} runs {what}; see {log}", file=sys.stderr)
        return 1 if failed else INCOMPLETE if incomplete else 0

    def _start(self, member: Member) -> None:
        """A run, or the rest of one that was begun. If this process is killed, so is it."""
        directory = self.directory / member.name
        self.running[member.name] = start_run(directory, member.words, self.trust, again=self.resumed)

    def _collect(self) -> None:
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                self.codes[name] = process.returncode
                del self.running[name]

    def _stop(self) -> None:
        """Ask all to save and stop, and wait; kill them if asked once more, or if that takes too long."""
        for process in self.running.values():
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for process in self.running.values():
                process.wait(max(0.0, deadline - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            self._collect()
            for name, process in self.running.items():
                print(f"pappus: {name} did not stop in time and is killed", file=sys.stderr)
                process.kill()
                process.wait()
        self._collect()
        self._write()

    def summary(self, member: Member) -> dict[str, Any]:
        """How a member's run ended; empty while it has not."""
        path = self.directory / member.name / "summary.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def rows(self) -> list[Row]:
        """What is known of every member."""
        return [self._row(member) for member in self.members]

    def _row(self, member: Member) -> Row:
        known, now = self.summary(member), {}
        if member.name in self.running:
            known, now = {}, last_line(self.directory / member.name / "metrics.jsonl")
        state = "trains" if member.name in self.running else str(known.get("exit_reason", "waits"))
        code = self.codes.get(member.name, 0)
        if code == -signal.SIGINT:  # we asked, before or after it could hear that
            state = str(known.get("exit_reason", "interrupted"))
        elif code:
            state = f"{state}, incomplete" if code == INCOMPLETE else f"failed ({code})"
        return Row(
            member.name, state, known.get("steps", now.get("step")),
            known.get("steps_per_second", now.get("charts/SPS")),
            known.get("episodic_return", now.get("charts/episodic_return")),
            known.get("eval_return", now.get("eval/episodic_return")), known.get("solved_at_step"),
        )

    def verdict(self) -> list[str]:
        """Mean and interval over the seeds of each setting."""
        lines = []
        for setting in dict.fromkeys(member.setting for member in self.members):
            found = [self.summary(member) for member in self.members if member.setting == setting]
            returns = [known["eval_return"] for known in found if known.get("eval_return") is not None]
            solved = [known["solved_at_step"] for known in found if known.get("solved_at_step") is not None]
            words = [f"greedy return {interval(returns)} over {len(returns)} seeds" if returns else "nothing finished"]
            if solved:
                words.append(f"solved {len(solved)} of {len(found)}, at {interval(solved)} steps")
            words += [f"{one} each" for one in _costs([known["cost"] for known in found if known.get("cost")], fmean)]
            lines.append(f"{setting or 'all'}: {'; '.join(words)}")
        return [*lines, *self._costs_in_all()]

    def recorded(self) -> list[str]:
        """What the data sets hold now that members recorded into; what each of them added is in its own output."""
        configs = [self.directory / member.name / "config.yaml" for member in self.members if member.name in self.codes]
        folders = dict.fromkeys(load_file(path).get("record") for path in configs if path.is_file())
        return [_totals(Path(folder)) for folder in folders if folder and _is_set(Path(folder))]

    def _costs_in_all(self) -> list[str]:
        """What all that have ended cost together, where that is more than one."""
        costs = [known["cost"] for member in self.members if (known := self.summary(member)).get("cost")]
        found = _costs(costs, sum) if len(costs) > 1 else []
        return [f"cost: {one} in all {len(costs)} runs" for one in found]

    def _write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        content = {
            "jobs": self.jobs, "members": [dataclasses.asdict(member) for member in self.members],
            "page": dataclasses.asdict(self.page) if self.page is not None else None,
            "results": {member.name: self.summary(member) for member in self.members}, "verdict": self.verdict(),
        }
        (self.directory / FILE).write_text(json.dumps(content, indent=1))
        remember(_asked(self.members, self.page))


def jobs_of(text: str | None) -> int:
    """Runs at a time, as asked for; 0 where nothing was."""
    if text is None:
        return 0
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--jobs {text} must be a number of runs, at least 1")
    return int(text)


def new_directory(given: str | None, system: str, env: str) -> Path:
    """A fresh folder for a population; one that holds a population, or a run, already is refused."""
    name = f"{system}-{re.sub('[/:]', '-', env)}-population-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(given or Path("runs") / name).resolve()
    if (directory / FILE).exists() or (directory / "config.yaml").exists():
        raise UserError(f"run_dir={str(directory)!r} holds runs already; give another, or --resume {directory}")
    return directory


def saved_population(directory: Path, trust: bool = False) -> Population:
    """The population of a folder. What it names are commands: `UserError` without `trust`, if this user did not give
    them here himself."""
    path = directory / FILE
    try:
        content = json.loads(path.read_text())
        members = [Member(one["name"], one["setting"], tuple(one["words"])) for one in content["members"]]
        jobs, known = int(content["jobs"]), content.get("page")
        page = None if known is None else PageConfig(**known)
        texts = [text for member in members for text in (member.name, member.setting, *member.words)]
        texts += [] if page is None else dataclasses.astuple(page)
        if jobs < 1 or not all(isinstance(text, str) for text in texts):
            raise ValueError("it holds no runs")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({error!r:.100}); start anew in another folder") from None
    for member in members:
        if not MEMBER.fullmatch(member.name):  # its folder may be emptied
            raise UserError(f"{str(path)!r}: {member.name!r} is no name of a run in its folder; start in another")
    if not trust:
        check_trust(f"population {str(directory)!r}", _asked(members, page))
    if page is not None:
        check_page(page)
    return Population(directory.resolve(), members, jobs, resumed=True, trust=trust, page=page)


def _asked(members: Sequence[Member], page: PageConfig | None) -> list[Asked]:
    """What only its reader may want of a population: its commands, and who may look at it."""
    runs = Asked("its runs", [list(member.words) for member in members], "runs commands")
    return [runs] if page is None else [runs, Asked("its page", dataclasses.asdict(page), "opens a port")]


def _costs(costs: Sequence[dict[str, Any]], together: Callable[[list[float]], float]) -> list[str]:
    """What runs cost, `together`: core hours, and money where there are prices."""
    found = {name: [cost[name] for cost in costs if name in cost] for name in ("core_hours", "money")}
    amounts = [f"{together(values):.3g} {name.replace('_', ' ')}" for name, values in found.items() if values]
    return [" and ".join(amounts)] if amounts else []


def _is_set(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()


def _totals(folder: Path) -> str:
    """`recorded: 318 episodes, 20,018 steps are in cart now`."""
    from pappus.data.metadata import raw_metadata

    known = raw_metadata(folder / "data")
    return f"recorded: {known['total_episodes']:,} episodes, {known['total_steps']:,} steps are in {folder} now"


def _stop_waiting(number: signal.Signals) -> None:
    raise KeyboardInterrupt
