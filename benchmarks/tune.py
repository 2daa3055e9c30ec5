"""Does `pappus tune` find what is fast, from a bad start, within a minute?

For each case: `pappus tune` as a command, with a config that is bad for the env; then every setting of the grid (all
that tuning may choose from, or so many of them, evenly) as a real run; then what tuning chose and the best of the grid
three times more, in turn. The ratio is between these last figures: the best of many noisy ones looks better than it is.

    python -m benchmarks.tune --cases cartpole --grid 20
    python -m benchmarks.tune --out tuning.json        # all five; what was interrupted goes on from that file

MinAtar needs `pip install minatar`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pappus.accelerator import one_thread
from pappus.api import configure
from pappus.config import RunConfig
from pappus.envs.gym_backend import is_one_by_one
from pappus.machine import fit, this_machine
from pappus.runtimes.forkserver import ForkServer
from pappus.system import System
from pappus.systems import find_system
from pappus.tuning.candidates import Setting, Space
from pappus.tuning.measuring import measure_env
from pappus.tuning.window import watch

BAD = {"actors": 2, "envs_per_actor": 2, "runtime": "local"}
ROUNDS = 3
"""Times that the choice and the best of the grid are measured again."""


class Case(NamedTuple):
    """A system on an env, and the config that it starts with."""

    system: str
    env: str
    start: dict[str, Any]


CASES = {
    "cartpole": Case("impala", "CartPole-v1", BAD),
    "sleeping": Case("impala", "benchmarks.synthetic:sleeping", {}),  # the preset is bad enough
    "minatar": Case("impala", "benchmarks.minatar:breakout", BAD),
    "frames": Case("impala", "benchmarks.synthetic:frames", BAD),
    "pendulum": Case("ppo", "Pendulum-v1", {"actors": 4, "envs_per_actor": 4, "runtime": "local"}),
}


def tuned(case: Case, seconds: float, folder: Path) -> tuple[dict[str, Any], float]:
    """What `pappus tune` prints as JSON, and how long the command took."""
    start, out = folder / "start.yaml", folder / "tuned.yaml"
    start.write_text(json.dumps(case.start) if case.start else "{}")
    words = ["tune", case.system, "--env", case.env, "--seconds", f"{seconds:g}", "--json", "--out", str(out)]
    words += ["--config", str(start)] if case.start else []
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pappus", *words], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout), time.monotonic() - began


def grid_of(reference: RunConfig, system: System, most: int, window: float) -> tuple[list[Setting], int]:
    """All settings that tuning may choose from, but those in which envs that are stepped one after the other sleep
    longer than a window for a single update, and how many these are; of more than `most`, so many, evenly spread."""
    with one_thread():
        cost = measure_env(reference.env, reference.env_options)
    one_by_one = is_one_by_one(reference.env, reference.env_options)
    replays = system.algorithm.learns_from_replay
    settings = Space(reference, this_machine().cores, replays, cost.waits, one_by_one).settings()
    steps = reference.topology.items_per_update(reference) * reference.unroll_length

    def asleep(setting: Setting) -> float:
        at_once = setting.actors if setting.runtime == "local" else 1
        return 0.0 if setting.threads or not cost.waits else steps * cost.asleep.each / at_once

    left = [setting for setting in settings if asleep(setting) < window]
    hopeless = len(settings) - len(left)
    return ([left[i * len(left) // most] for i in range(most)] if len(left) > most else left), hopeless


def run_case(
    case: Case, arguments: argparse.Namespace, state: dict[str, Any], save: Callable[[], None]
) -> dict[str, Any]:
    """The figures of one case. `state` is what was found so far, which goes on from there: the grid of a large machine
    need not be measured at once."""
    if "report" not in state:
        with tempfile.TemporaryDirectory() as folder:
            state["report"], state["tune_seconds"] = tuned(case, arguments.seconds, Path(folder))
        save()
    system = find_system(case.system)
    reference = fit(configure(system, case.env), case.env, system)[0]

    def rate(setting: Setting) -> tuple[float, float]:
        seen = watch(setting.applied(reference), case.env, system, arguments.window)
        if seen.interrupted:
            raise KeyboardInterrupt
        text = f"{case.env}: {setting}: {seen.rate:,.0f} (others: {seen.others:.1f} cores)"
        print(text, file=sys.stderr, flush=True)
        return seen.rate, seen.others

    choice, grid = Setting(**state["report"]["choice"]["setting"]), state.setdefault("grid", {})
    settings, state["hopeless"] = grid_of(reference, system, arguments.grid, arguments.window)
    with ForkServer.shared():
        for setting in settings:
            if str(setting) not in grid:
                grid[str(setting)] = rate(setting)
                save()
        best = max(settings, key=lambda setting: grid[str(setting)][0])
        again: dict[Setting, list[float]] = {choice: [], best: []}
        for _ in range(ROUNDS):
            for setting, rates in again.items():
                rates.append(rate(setting)[0])
    means = {setting: fmean(rates) for setting, rates in again.items()}
    start = state["report"]["start"]
    return {
        **state, "system": case.system, "env": case.env, "cores": this_machine().cores, "gpu": this_machine().gpu,
        "start": case.start, "start_rate": fmean(start["measured"]) if start["measured"] else None,
        "start_predicted": start["predicted"], "choice": str(choice), "choice_rate": means[choice], "best": str(best),
        "best_rate": means[best], "ratio": means[choice] / means[best], "again": {str(k): v for k, v in again.items()},
        "others": fmean(others for _, others in grid.values()), "commit": commit(),
        "processor": platform.processor() or "CPU",
    }


def commit() -> str:
    """What was measured."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def show(results: dict[str, dict[str, Any]]) -> None:
    """One row for each case."""
    table = Table(title="pappus tune beside the best of a grid, env steps per second")
    columns = ("case", "start", "tuned", "best of the grid", "settings", "ratio", "seconds")
    for column in columns:
        table.add_column(column, justify="left" if column in ("case", "tuned", "best of the grid") else "right")
    for name, one in results.items():
        start = one["start_rate"] or one["start_predicted"]
        table.add_row(
            f"{name}: {one['system']}", f"{start:,.0f}", f"{one['choice_rate']:,.0f} ({one['choice']})",
            f"{one['best_rate']:,.0f} ({one['best']})", str(len(one["grid"])), f"{one['ratio']:.2f}",
            f"{one['tune_seconds']:.0f}",
        )
    Console(width=170).print(table)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of pappus tune")
    parser.add_argument("--window", type=float, default=2.5, help="seconds of a run of the grid")
    parser.add_argument("--grid", type=int, default=40, help="settings of the grid, at most")
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    arguments = parser.parse_args(words)
    results: dict[str, dict[str, Any]] = {}
    if arguments.out is not None and arguments.out.exists():
        results = json.loads(arguments.out.read_text())

    def save() -> None:
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")

    for name in arguments.cases:
        begun = results.setdefault(name, {}) if "ratio" not in results.get(name, {}) else {}
        results[name] = begun
        results[name] = run_case(CASES[name], arguments, begun, save)
        save()
    show({name: one for name, one in results.items() if "ratio" in one})


if __name__ == "__main__":
    main()
