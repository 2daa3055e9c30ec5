"""Inline runs are resumed to the bit, wherever they were stopped; and `pappus verify` sees whether a run repeats."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import pappus
from benchmarks.resume_hashes import CASES, Stopped
from pappus.cli import main
from pappus.names import PAIRS
from pappus.telemetry.checkpoint import CheckpointStore

SMALL: dict[str, Any] = {
    "runtime": "inline", "envs_per_actor": 2, "unroll_length": 4, "actors": 1, "network.hidden_sizes": (8,),
    "evaluation.episodes": 1,
}


def test_every_system_is_among_the_cases() -> None:
    assert {case.system for case in CASES.values()} >= {*PAIRS, "ppo@seed"}


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_stopped_at_random_ends_as_an_uninterrupted_one(tmp_path: Path, name: str) -> None:
    stopped = Stopped(name, tmp_path)
    stops = sorted(random.Random(name).sample(range(1, stopped.rounds), 2))
    assert stopped.differences(*stops) == [], f"stopped after {stops} rounds"


class Interrupting(gym.Wrapper):  # type: ignore[type-arg]
    """Sends SIGINT to its own process, as Ctrl-C does, at one of its steps."""

    at = 0
    steps = 0

    def step(self, action: Any) -> Any:
        Interrupting.steps += 1
        if Interrupting.steps == self.at:
            signal.raise_signal(signal.SIGINT)
        return self.env.step(action)


def interrupting() -> gym.Env[Any, Any]:
    return Interrupting(gym.make("CartPole-v1"))


@pytest.mark.parametrize("system", ["impala", "dqn"])
def test_a_run_that_ctrl_c_ended_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    given = {**SMALL, "steps": 1200}
    if system == "dqn":
        given |= {"batch_size": 8, "topology.replay.warm_up": 50, "topology.replay.capacity": 400}
    whole = pappus.train(system, interrupting, given, run_dir=tmp_path / "whole")
    monkeypatch.setattr(Interrupting, "steps", 0)
    monkeypatch.setattr(Interrupting, "at", 777)
    part = pappus.train(system, interrupting, given, run_dir=tmp_path / "part")
    assert part.summary.exit_reason == "interrupted" and part.summary.steps < whole.summary.steps
    pappus.resume(tmp_path / "part", interrupting)
    hashes = [manifest_of(tmp_path / name)["metadata"]["state_sha256"] for name in ("whole", "part")]
    assert hashes[0] == hashes[1]


def manifest_of(run: Path) -> dict[str, Any]:
    checkpoint = CheckpointStore(run / "checkpoints").latest()
    assert checkpoint is not None
    content: dict[str, Any] = json.loads((checkpoint / "checkpoint.json").read_text())
    return content


class Hidden(gym.Wrapper):  # type: ignore[type-arg]
    """Draws rewards from the global generator, which no checkpoint holds."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = self.env.step(action)
        return observation, random.random(), *rest


class Opaque(gym.Wrapper):  # type: ignore[type-arg]
    """Has an attribute whose state nobody knows."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.handle = object()


def hidden() -> gym.Env[Any, Any]:
    return Hidden(gym.make("CartPole-v1"))


def opaque() -> gym.Env[Any, Any]:
    return Opaque(gym.make("CartPole-v1"))


def ends_of(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["verify", *map(str, words), "--trust"])
    output = capsys.readouterr()
    return code, (output.out + output.err).splitlines()[-1]


def test_a_run_that_repeats_itself_is_equal_from_any_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    given = {**SMALL, "batch_size": 8, "topology.replay.warm_up": 50}
    pappus.train("dqn", "CartPole-v1", {**given, "checkpoint.every_seconds": 1e-3}, steps=700, run_dir=run)
    *_, before, last = (path.name for path in CheckpointStore(run / "checkpoints").in_order())
    code, line = ends_of(capsys, run)
    assert (code, line) == (
        0, f"equal: {before} leads to {last} again, to the bit (actor-0, edges, learner, replay)"
    )
    assert ends_of(capsys, run, "--from", "start")[0] == 0
    code, line = ends_of(capsys, run, "--from", last)
    assert code == 2 and "is the newest checkpoint" in line
    code, line = ends_of(capsys, run, "--from", "step-1")
    assert code == 2 and "is no checkpoint of the run" in line


def test_the_first_difference_of_a_run_that_does_not_repeat_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    pappus.train("impala", f"{__name__}:hidden", SMALL, steps=300, run_dir=run)
    code, line = ends_of(capsys, run, "--from", "start")
    assert code == 1 and " differs from what the start leads to here: actor-0: " in line


def test_a_run_that_cannot_be_repeated_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pappus.train("impala", f"{__name__}:opaque", SMALL, steps=100, run_dir=tmp_path / "opaque")
    code, line = ends_of(capsys, tmp_path / "opaque")
    assert code == 2 and "handle is a object, whose state is unknown); every file of 1 checkpoints" in line
    result = pappus.resume(tmp_path / "opaque", steps=200, trust=True)
    told = str(result.summary.to_dict()["resumed"])
    assert told.startswith("envs start new episodes") and "whose state is unknown" in told
    pappus.train("impala", "CartPole-v1", SMALL, steps=100, run_dir=tmp_path / "other")
    pappus.resume(tmp_path / "other", settings={"optimizer.learning_rate": 1e-5}, steps=200)
    code, line = ends_of(capsys, tmp_path / "other", "--from", "start")
    assert code == 2 and "resumed with other settings since" in line
