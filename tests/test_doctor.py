"""Faults put into short real runs: the doctor names each, also on a machine that does other things meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import pappus
from benchmarks.faulty_envs import computing, sleeping, uneven
from pappus.cli import main
from pappus.errors import UserError
from pappus.telemetry.doctor_file import read_doctor
from pappus.telemetry.findings import Diagnosis
from pappus.telemetry.processes import usable_cores
from pappus.telemetry.usage import ThreadClock

SECONDS = 1.2
MOST_TRIES = 3
"""A loaded machine may hide a fault from one look."""
SMALL: dict[str, Any] = {
    "steps": 1_000_000_000, "hooks.loggers": ("none",), "evaluation.episodes": 1, "evaluation.max_seconds": 1.0,
    "network.hidden_sizes": (16,), "actors": 1,
}
SPIN = "while True: pass"
FIRST = -10
"""Niceness."""

pytestmark = pytest.mark.skipif(ThreadClock().read()[1] is None, reason="the kernel has no schedstat")


@contextmanager
def ahead() -> Iterator[None]:
    """Processes that are started meanwhile get cores before those of other tests, where that is allowed."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


def looked_at(
    folder: Path, system: str, env: str | Callable[..., Any], expected: str,
    priority: Callable[[], AbstractContextManager[None]] = ahead, **settings: Any,
) -> Diagnosis:
    """What the doctor says of a short run; longer ones if it does not say what is expected."""
    for number in range(1, 1 + MOST_TRIES):
        asked = SMALL | {"seconds": number * SECONDS, "run_dir": str(folder / str(number))} | settings
        with priority():
            found = pappus.train(system, env, asked).diagnosis
        if names(found, expected):
            break
    return found


def names(found: Diagnosis, what: str) -> bool:
    """Whether it is what matters most; where other programs disturb the run, as the diagnosis says itself, they may."""
    disturbed = any(finding.sentence.startswith("other programs") for finding in found.findings)
    return what in [finding.what for finding in found.findings[: None if disturbed else 1]]


@contextmanager
def stolen_cores() -> Iterator[None]:
    """Other programs compute on all cores, with the priority of the run: with a higher one it would make no update."""
    thieves = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2 * usable_cores())]
    try:
        yield
    finally:
        for thief in thieves:
            thief.kill()
            thief.wait()


def test_an_env_that_sleeps_is_told_from_one_that_computes(tmp_path: Path) -> None:
    asleep = looked_at(tmp_path / "a", "impala", sleeping, "sleeping env", envs_per_actor=2, unroll_length=5)
    busy = looked_at(tmp_path / "b", "impala", computing, "slow env", envs_per_actor=2, unroll_length=5)
    assert names(asleep, "sleeping env") and names(busy, "slow env"), (asleep, busy)
    assert asleep.change is not None and dict(asleep.change.options).keys() == {"actors"}
    assert asleep.change.gain is not None and asleep.change.gain > 1.5


def test_an_env_that_is_slow_now_and_then_is_named(tmp_path: Path) -> None:
    found = looked_at(tmp_path, "impala", uneven, "uneven env", envs_per_actor=8, unroll_length=5)
    assert names(found, "uneven env"), found


def test_a_slow_learner_is_named(tmp_path: Path) -> None:
    found = looked_at(tmp_path, "appo", "CartPole-v1", "slow learner", **{"algorithm.epochs": 16})
    assert names(found, "slow learner"), found


def test_a_tiny_queue_is_named(tmp_path: Path) -> None:
    found = looked_at(tmp_path, "impala", "CartPole-v1", "tiny queue", queue_size=1)
    assert names(found, "tiny queue"), found


def test_a_limiter_that_holds_the_actors_back_is_named(tmp_path: Path) -> None:
    settings = {"topology.replay.samples_per_insert": 256.0, "topology.replay.warm_up": 100}
    found = looked_at(tmp_path, "apex-dqn", "CartPole-v1", "rate limiter", **settings)
    assert names(found, "rate limiter"), found
    (limiter,) = (finding for finding in found.findings if finding.what == "rate limiter")
    assert limiter.evidence[0].startswith("actor-0 waits")
    told, balance = limiter.evidence[1].split("; both sides would be busy at ")
    assert told == "every item is sampled 256 times"
    assert float(balance.replace(",", "")) < 128, "the ratio holds them back; the preset has 8"


def test_cores_that_other_programs_take_are_named_and_nothing_is_advised(tmp_path: Path) -> None:
    with stolen_cores():
        found = looked_at(tmp_path, "impala", "CartPole-v1", "starved cores", nullcontext)
    assert (found.top.what, found.change) == ("starved cores", None)
    assert "other programs" in found.text


def test_an_evaluator_that_steals_a_core_is_named(tmp_path: Path) -> None:
    settings = {"evaluation.every_seconds": 0.05, "evaluation.episodes": 2000, "evaluation.max_seconds": 1.0}
    found = looked_at(tmp_path, "impala", "CartPole-v1", "evaluator", **settings)
    assert names(found, "evaluator"), found


def test_the_command_tells_what_the_run_directory_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    result = pappus.train("dqn", "CartPole-v1", SMALL | {"steps": 1500, "run_dir": str(run)})
    assert main(["doctor", str(run)]) == 0
    told = capsys.readouterr().out
    assert result.diagnosis.top.sentence in told and "where the time goes" in told
    assert main(["doctor", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == read_doctor(run)
    assert read_doctor(run)["over"]
    assert json.loads((run / "summary.json").read_text())["verdict"] == result.diagnosis.text


def test_a_run_without_a_diagnosis_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"is no run: it has no config\.yaml; give the run directory"):
            read_doctor(path)
    for name in ("seed-2", "seed-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("system: impala\n")
    with pytest.raises(UserError, match=r"give one of the runs in it, such as .*/seed-1"):
        read_doctor(tmp_path)
    (tmp_path / "config.yaml").write_text("system: impala\n")
    with pytest.raises(UserError, match=r"has no doctor\.json: a run writes it some seconds after its first update"):
        read_doctor(tmp_path)
    (tmp_path / "doctor.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        read_doctor(tmp_path)


def test_a_file_that_cannot_be_written_does_not_end_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    os.makedirs(run / "doctor.json")
    result = pappus.train("dqn", "CartPole-v1", SMALL | {"steps": 1100, "run_dir": str(run)})
    assert result.complete
