"""Asynchronous runs in which actors are killed are replayed in one thread to the same weights."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from pappus.cli import main
from pappus.telemetry.checkpoint import CheckpointStore, read_manifest
from pappus.telemetry.weights import stored_weights
from pappus.trace.products import VARIABLE
from tests.process_tools import Training, eventually

SMALL = ["--steps", "1000000000", "--evaluation.episodes", "2", "--actors", "2", "--envs-per-actor", "8", "--trace"]
Start = Callable[..., Training]


@pytest.fixture(autouse=True)
def _as_it_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, os.environ.get(VARIABLE, ""))  # torch is loaded already


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Training] = []

    def begin(*words: str) -> Training:
        started.append(Training(tmp_path / "run", *words, "--run-dir", str(tmp_path / "run")))
        return started[-1]

    yield begin
    for training in started:
        training.end()


def entries(training: Training, life: str) -> int:
    """Entries that a life of a role has written so far."""
    path = training.directory / "trace" / f"{life}.log"
    return path.read_text().count("\n") if path.exists() else 0


def end(training: Training) -> None:
    training.interrupt()
    assert training.wait() == 130, training.output()


def saved(training: Training) -> tuple[int, str]:
    """The update at which a run was saved last, and the sha256 of its weights."""
    checkpoint = CheckpointStore(training.directory / "checkpoints").latest()
    assert checkpoint is not None
    return read_manifest(checkpoint)["metadata"]["updates"], hashlib.sha256(stored_weights(checkpoint)).hexdigest()


def trained(start: Start, *words: str) -> Training:
    """A run of which one actor was killed, its successor went on, and so did the learner."""
    training = start(*words, "--env", "CartPole-v1", *SMALL)
    eventually(lambda: entries(training, "actor-1.0") > 6 and entries(training, "learner.0") > 10, 60)
    os.kill(training.pid("actor-1"), signal.SIGKILL)
    eventually(lambda: entries(training, "actor-1.1") > 6)
    before = entries(training, "learner.0")
    eventually(lambda: entries(training, "learner.0") > before + 20)
    end(training)
    return training


@pytest.mark.parametrize("words", [["impala"], ["apex-dqn", "--topology.replay.warm-up", "200"]], ids=" ".join)
def test_a_run_with_a_killed_actor_is_replayed_to_the_same_weights(
    start: Start, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    training = trained(start, *words)
    assert main(["replay-run", str(training.directory)]) == 0
    said = capsys.readouterr().out
    assert "of which 1 died and were replaced" in said and said.endswith("has made all updates of the run\n")
    assert f"update {training.summary()['updates']}: same weights" in said
    update, sha = saved(training)
    assert main(["replay-run", str(training.directory), "--until-update", str(update)]) == 0
    assert f"update {update}: same weights (sha256 {sha})" in capsys.readouterr().out, "those of the checkpoint"


def test_a_changed_trace_is_explained(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    training = trained(start, "impala")
    log = training.directory / "trace" / "actor-0.0.log"
    whole = log.read_text()
    log.write_text(re.sub(r"commit \d+", "commit 5", whole, count=1))
    assert main(["replay-run", str(training.directory)]) == 1
    assert "actor-0 made another unroll 0 than in the run" in capsys.readouterr().err
    log.write_text("\n".join(whole.splitlines()[:4]) + "\n")
    assert main(["replay-run", str(training.directory)]) == 1
    assert "no role can continue as the trace says" in capsys.readouterr().err
    facts = training.directory / "trace" / "trace.json"
    facts.write_text(re.sub(r'"torch": "[^"]*"', '"torch": "0.1"', facts.read_text()))
    assert main(["replay-run", str(training.directory)]) == 2
    assert "the trace was made with torch '0.1'" in capsys.readouterr().err


class Unrepeatable(gymnasium.Env[Any, Any]):
    """Its rewards come from nowhere."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), float(os.urandom(1)[0]), False, False, {}


def test_an_env_that_does_not_repeat_itself_is_named(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    training = start("impala", "--env", "tests.test_trace_processes:Unrepeatable", *SMALL)
    eventually(lambda: entries(training, "learner.0") > 10, 60)
    end(training)
    assert main(["replay-run", str(training.directory), "--trust"]) == 1
    assert "made another unroll 0 than in the run (its actions or rewards differ)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["seed-vtrace"], "decides by the clock which requests share a forward pass"),
        (["gorila-dqn"], "while parameter servers change them"),
        (["a3c", "--actors", "2"], "its workers change one memory without a lock"),
        (["impala", "--runtime", "inline"], "an inline run is deterministic"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_reason(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words, "--env", "CartPole-v1", "--trace", "--run-dir", str(tmp_path / "run")]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_run_without_a_trace_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("system: impala\n")
    assert main(["replay-run", str(tmp_path)]) == 2
    assert "has no trace; train with --trace to get one" in capsys.readouterr().err
