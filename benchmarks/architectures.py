"""The architectures of the literature beside each other: one env, one budget of time, one of env steps.

    python -m benchmarks.architectures --out runs/architectures                        # everything: about 45 minutes
    python -m benchmarks.architectures --out DIR --envs cartpole --systems a3c impala --seeds 1 2 3 --seconds 20
    python -m benchmarks.architectures --out DIR --plot-only                           # table and plots once more

One run at a time has the whole machine for `--seconds` from its first env step on, however many steps that makes. Its
evaluator plays greedily by the clock, so a fast system pays for as many evaluations as a slow one, and when `--steps`
were made; what the return was then is read off that curve. Settings are the presets that a user gets by the system's
name, without the fall of the step size, which would need to know in advance how many steps there will be.

Every run that ends is a line of DIR/results.jsonl. The same command again goes on with those that are missing or
failed. The exit code is 1 if any run failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.architecture_report import Result, plot, table
from benchmarks.architecture_runs import measure
from benchmarks.throughput import provenance

SYSTEMS = (
    "a3c", "a2c", "ppo", "appo", "impala", "seed-vtrace", "gorila-dqn", "apex-dqn", "r2d2", "seed-r2d2",
)
RESULTS = "results.jsonl"
FOREVER = 1_000_000_000
"""Steps that nobody makes in the time."""
PATIENCE = 120.0
"""Seconds that a run may take to start, save and evaluate, beside its budget."""
LAST_LINES = 12


@dataclass(frozen=True)
class Task:
    """An env, and what is enough to tell the systems apart on it with two cores."""

    env: str
    seconds: float
    steps: int
    every_seconds: float
    """Between two evaluations: so long that they take a few percent of the machine."""
    episodes: int


TASKS = {
    "cartpole": Task("CartPole-v1", 20.0, 100_000, 1.5, 10),
    "breakout": Task("benchmarks.minatar:breakout", 60.0, 200_000, 5.0, 20),
}


def command(task: Task, system: str, seed: int, seconds: float, steps: int, directory: Path) -> list[str]:
    """One run, which nothing but time ends, and in which nothing but evaluations interrupts the work."""
    return [
        sys.executable, "-m", "pappus", "train", system, "--env", task.env, "--seed", str(seed),
        "--seconds", str(seconds), "--steps", str(FOREVER), "--optimizer.no-anneal",
        "--evaluation.every-steps", "0", "--evaluation.every-seconds", str(task.every_seconds),
        "--evaluation.at-steps", *(str(steps // part) for part in (4, 2, 1)),
        "--evaluation.episodes", str(task.episodes), "--checkpoint.every-seconds", "3600", "--run-dir", str(directory),
    ]


def run(name: str, system: str, seed: int, seconds: float, steps: int, parent: Path) -> Result:
    """Train once; what came of it, be it that it failed."""
    directory = parent / f"{name}-{system}-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    result = Result(env=name, system=system, seed=seed, budget=seconds)
    output = directory / "output.txt"
    with output.open("wb") as file:
        words = command(TASKS[name], system, seed, seconds, steps, directory)
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        code = _wait(process, seconds + PATIENCE)
    if code:
        lines = output.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return result._replace(failed=f"exit code {code}", last_lines=lines)
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)  # replay tables are large
    try:
        return result._replace(**measure(directory))
    except (KeyError, ValueError) as error:
        return result._replace(failed=f"nothing can be measured of it: {error}")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit code; a run that takes too long, or that nobody wants any more, is asked to stop and then killed."""
    try:
        return process.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as reason:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if isinstance(reason, KeyboardInterrupt):
            raise
        return process.returncode or 1


def read_results(path: Path) -> dict[tuple[str, str, int, float], Result]:
    """The newest line of every run."""
    lines = path.read_text().splitlines() if path.is_file() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {(one.env, one.system, one.seed, one.budget): one for one in results}


def missing(arguments: argparse.Namespace, done: Path) -> Iterator[tuple[str, str, int, float]]:
    """What is still to be run; seed by seed, so that an early end leaves something to compare."""
    known = read_results(done)
    for name in arguments.envs:
        for seed in arguments.seeds:
            for system in arguments.systems:
                key = (name, system, seed, arguments.seconds or TASKS[name].seconds)
                if key not in known or known[key].failed:
                    yield key


def train_all(arguments: argparse.Namespace, path: Path) -> None:
    """Run what is missing, one after the other, and say how each went."""
    tasks = list(missing(arguments, path))
    for number, (name, system, seed, seconds) in enumerate(tasks, 1):
        began = time.monotonic()
        steps = arguments.steps or TASKS[name].steps
        result = run(name, system, seed, seconds, steps, arguments.out / "runs")
        with path.open("a") as file:
            file.write(json.dumps(result._asdict()) + "\n")
        how = result.failed or f"return {result.curve[-1][2]:.1f} after {result.curve[-1][0]:,.0f} steps"
        took = time.monotonic() - began
        print(f"{number}/{len(tasks)} {name} {system} seed {seed}: {how} ({took:.0f} s)", flush=True)


def report(arguments: argparse.Namespace, path: Path) -> int:
    """Tables on the terminal, pictures in their folder; 1 if something failed."""
    known, failed = read_results(path), 0
    for name in arguments.envs:
        task, seconds = TASKS[name], arguments.seconds or TASKS[name].seconds
        chosen = [
            one for system in arguments.systems for (env, of, _, budget), one in known.items()
            if (env, of, budget) == (name, system, seconds)
        ]
        if not chosen:
            continue
        print(f"\n{task.env}, {seconds:g} s\n\n{table(chosen, seconds, arguments.steps or task.steps)}")
        plot(name, chosen, arguments.plots)
        for one in (one for one in chosen if one.failed):
            failed += 1
            print(f"\n{one.system} seed {one.seed} failed: {one.failed}", *one.last_lines, sep="\n    ")
    print(f"\n{provenance()}")
    return 1 if failed else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results and runs")
    parser.add_argument("--envs", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, help="of training per run (default: 20 for cartpole, 60 for breakout)")
    parser.add_argument("--steps", type=int, help="at which returns are compared (default: 100,000 and 200,000)")
    parser.add_argument("--plots", type=Path, default=Path("docs"), metavar="DIR", help="where pictures go")
    parser.add_argument("--plot-only", action="store_true", help="run nothing")
    arguments = parser.parse_args(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / RESULTS
    if not arguments.plot_only:
        train_all(arguments, path)
    return report(arguments, path)


if __name__ == "__main__":
    sys.exit(main())
