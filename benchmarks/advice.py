"""Is the doctor's advice right? Bad starts, each followed by the same run with the one change that the doctor proposes.

    python -m benchmarks.advice                        # every case, then the healthy runs
    python -m benchmarks.advice --only sleeping limiter --seconds 6
    python -m benchmarks.advice --healthy              # runs that should get no advice

A case holds if the speed rises by at least half of what was promised. Commands are those of a user, each in a process
of its own. A run that other programs disturbed, as the doctor itself says, is repeated a few times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pappus.telemetry.doctor_file import read_diagnosis
from pappus.telemetry.findings import Change, Diagnosis
from pappus.telemetry.wording import aligned

ENVS = "benchmarks.faulty_envs"
FEW = "--actors 1 --envs-per-actor 8"
ROOT = Path(__file__).parent.parent
QUIET = {
    "--steps": "1_000_000_000", "--evaluation.episodes": "1", "--evaluation.max-seconds": "2", "--log": "none",
    "--seed": "7",
}
"""What all runs have that do not say otherwise."""


@dataclass(frozen=True)
class Case:
    """A bad start, and what the doctor should find."""

    finding: str
    words: str


CASES = {
    "sleeping": Case("sleeping env", f"impala --env {ENVS}:sleeping {FEW}"),
    "sleeping-replay": Case("sleeping env", f"dqn --env {ENVS}:sleeping {FEW} --topology.replay.warm-up 100"),
    "sleeping-inline": Case("sleeping env", f"ppo --env {ENVS}:sleeping {FEW} --unroll-length 16"),
    "computing": Case("slow env", f"impala --env {ENVS}:computing {FEW}"),
    "computing-inline": Case("slow env", f"ppo --env {ENVS}:computing {FEW} --unroll-length 16"),
    "uneven": Case("uneven env", f"impala --env {ENVS}:uneven --actors 1 --envs-per-actor 16"),
    "small-steps": Case("small steps", "impala --env CartPole-v1 --envs-per-actor 2"),
    "tiny-queue": Case("tiny queue", "impala --env CartPole-v1 --queue-size 1"),
    "limiter": Case("rate limiter", "apex-dqn --env CartPole-v1 --topology.replay.samples-per-insert 64"),
    "tolerance": Case("tight limiter", "apex-dqn --env CartPole-v1 --topology.replay.tolerance 1"),
    "inline": Case("one thread", "impala --env CartPole-v1 --runtime inline"),
    "evaluator": Case(
        "evaluator", "impala --env CartPole-v1 --evaluation.every-seconds 0.1 --evaluation.episodes 400"
    ),
}
MOST_TRIES = 4
HEALTHY = ("impala", "ppo", "apex-dqn", "seed-vtrace", "dqn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, help="these cases alone")
    parser.add_argument("--healthy", action="store_true", help="the healthy runs alone")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run (default: 6)")
    arguments = parser.parse_args()
    if not arguments.healthy:
        rows = [["case", "finding", "change", "before", "after", "promised", "gained", "kept"]]
        for name in arguments.only or CASES:
            rows.append(_tried(name, CASES[name], arguments.seconds))
            print(" | ".join(rows[-1]), flush=True)
        print(*aligned(rows), sep="\n")
    if arguments.healthy or not arguments.only:
        for system in HEALTHY:
            found, speed = _run(f"{system} --env CartPole-v1".split(), arguments.seconds)
            said = "ADVICE" if found.change else "silent"
            print(f"{system:12} {speed:12,.0f} steps/s  {said}: {found.text}", flush=True)


def _tried(name: str, case: Case, seconds: float) -> list[str]:
    words = case.words.split()
    found, before = _run(words, seconds)
    named = found.top.what if found.top.what == case.finding else f"{found.top.what} (NOT {case.finding})"
    if found.change is None or found.change.gain is None:
        return [name, named, "none", f"{before:,.0f}", "", "", "", "NO ADVICE"]
    changed, environment = _changed(words, found.change)
    _, after = _run(changed, seconds, environment)
    promised, gained = found.change.gain, after / max(before, 1e-9)
    kept = (gained - 1) / (promised - 1)
    return [
        name, named, found.change.words, f"{before:,.0f}", f"{after:,.0f}", f"{promised:.2f} ×", f"{gained:.2f} ×",
        f"{kept:.0%}{'' if kept >= 0.5 else ' FAILS'}",
    ]


def _changed(words: Sequence[str], change: Change) -> tuple[list[str], dict[str, str]]:
    """The same command with the change."""
    changed, environment = list(words), {}
    for name, value in change.options:
        option = f"--{name}"
        if name.isupper():
            environment[name] = value
        elif option in changed:
            changed[changed.index(option) + 1] = value
        else:
            changed += [option, value]
    return changed, environment


def _run(words: Sequence[str], seconds: float, environment: dict[str, str] | None = None) -> tuple[Diagnosis, float]:
    """What the doctor says of a run, and its speed."""
    for _ in range(MOST_TRIES):
        found, speed = _run_once(words, seconds, environment)
        if not any(finding.sentence.startswith("other programs") for finding in found.findings):
            break
        print("disturbed by other programs", file=sys.stderr, flush=True)
    return found, speed


def _run_once(
    words: Sequence[str], seconds: float, environment: dict[str, str] | None = None
) -> tuple[Diagnosis, float]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        usual = [word for option, value in QUIET.items() if option not in words for word in (option, value)]
        command = [sys.executable, "-m", "pappus", "train", *words, *usual, "--seconds", str(seconds)]
        command += ["--run-dir", str(run)]
        told = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True
        )
        if told.returncode:
            raise SystemExit(f"{' '.join(command)}\n{told.stdout}\n{told.stderr}")
        return read_diagnosis(run)[0], _speed(run)


def _speed(run: Path) -> float:
    """Env steps per second from the first line of the metrics with some to the first with all: the first batch was
    collected before the first update, and no step comes after the last one."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["step"])
    last = next(line for line in lines if line["step"] == lines[-1]["step"])
    if last["time"] > first["time"]:
        return float((last["step"] - first["step"]) / (last["time"] - first["time"]))
    return float(json.loads((run / "summary.json").read_text())["steps_per_second"])


if __name__ == "__main__":
    main()
