"""Callbacks, loggers and metrics of envs in whole runs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from pappus.api import configure
from pappus.cli import main
from pappus.errors import CallbackError, UserError
from pappus.execution.run import numba_note
from pappus.hooks.callback import CurrentRun, Episode
from tests.hooks.my_hooks import Lines, Measuring, Misspelt, Notes, Raises

TINY: dict[str, Any] = {
    "runtime": "inline", "envs_per_actor": 4, "steps": 400, "evaluation.episodes": 2, "log": ["none"],
    "network.hidden_sizes": [8], "unroll_length": 5,
}
NAME = "tests.hooks.my_hooks"


def test_a_callback_hears_of_everything_and_adds_metrics(tmp_path: Path) -> None:
    notes = Notes()
    result = pappus.train("impala", "CartPole-v1", callbacks=[notes], run_dir=tmp_path / "run", **TINY)
    assert notes.events == [
        "start CartPole-v1", "checkpoint True", "evaluation True", "end steps done True",
    ]
    assert notes.episodes > 0 and notes.metrics[-1]["charts/updates"] == result.summary.updates
    assert result.metrics["callback/half"][-1] == 0.5 and result.metrics["mine/third"][-1] == 1 / 3
    assert "callback/never" not in result.metrics


def test_a_callback_stops_the_run_which_is_finished_then(tmp_path: Path) -> None:
    words = ["train", "impala", "--env", "CartPole-v1", "--runtime", "inline", "--steps", "2M", "--log", "none"]
    words += ["--callback", f"{NAME}:Stops", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit_reason"] == "stopped by a callback" and summary["steps"] < 2_000_000
    assert "stops the run: enough" in (tmp_path / "run" / "log.txt").read_text()
    assert any((tmp_path / "run" / "checkpoints").iterdir())
    assert main([*words, "--resume-or-start"]) == 0, "a scheduler need not start it again"


def test_a_callback_that_raises_ends_the_run_with_its_traceback_after_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match=r"(?s)callback Raises failed in on_checkpoint:\nTraceback.*boom"):
        pappus.train("impala", "CartPole-v1", callbacks=[Raises()], run_dir=tmp_path / "run", **TINY)
    assert "boom" in (tmp_path / "run" / "log.txt").read_text()
    assert any((tmp_path / "run" / "checkpoints").glob("step-*"))
    settings = {**TINY, "hooks.on_error": "log"}
    result = pappus.train("impala", "CartPole-v1", callbacks=[Raises()], run_dir=tmp_path / "logged", **settings)
    assert result.summary.exit_reason == "steps done"
    assert result.summary.extras["hooks"] == {"callback Raises": {"errors": 1}}


class Interrupts(pappus.Callback):
    """What the interrupt button of a notebook does."""

    def on_episode(self, run: CurrentRun, episode: Episode) -> None:
        if run.directory.name == "run":
            os.kill(os.getpid(), signal.SIGINT)
            run.directory = run.directory.parent


def test_an_interrupt_of_the_process_that_trains_saves(tmp_path: Path) -> None:
    settings = {**TINY, "steps": 10_000_000}
    result = pappus.train("impala", "CartPole-v1", callbacks=[Interrupts()], run_dir=tmp_path / "run", **settings)
    assert result.summary.exit_reason == "interrupted" and any((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(("callback", "sentence"), [
    (Misspelt(), "has on_episodes, which is never called; did you mean 'on_episode'"),
    (Notes, "Notes is a class; give an object: Notes()"), (3, "has none of on_start"),
    (f"{NAME}:Nobody", "has no 'Nobody'"), (f"{NAME}:Episode", "cannot be made without arguments"),
])
def test_a_callback_that_cannot_work_is_refused(callback: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        pappus.train("impala", "CartPole-v1", callbacks=[callback], run_dir=tmp_path / "run", **TINY)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_an_own_logger_gets_what_metrics_jsonl_gets(tmp_path: Path) -> None:
    settings = {**TINY, "log": [f"{NAME}:Lines"]}
    pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **settings)
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert Lines.seen[0] == "CartPole-v1" and Lines.seen[-1] == "steps done"
    assert [{"step": step, "time": time, **metrics} for step, time, metrics in Lines.seen[1:-1]] == written


@pytest.mark.parametrize(("name", "sentence"), [
    ("Refuses", "Refuses cannot begin: RuntimeError: no account"), ("Half", "has no method 'write'"),
])
def test_a_logger_that_cannot_work_refuses_the_run(name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **{**TINY, "log": [f"{NAME}:{name}"]})


REPLAY = {"batch_size": 8, "topology.replay.warm_up": 20}


@pytest.mark.parametrize(("system", "settings"), [
    ("impala", {}), ("ppo", {}), ("a3c", {}), ("apex-dqn", REPLAY), ("gorila-dqn", REPLAY), ("seed-vtrace", {}),
    ("dqn", REPLAY),
])
def test_metrics_of_envs_arrive_in_every_topology(system: str, settings: dict[str, Any], tmp_path: Path) -> None:
    named = {**TINY, **settings, "env_options.metrics": ["flag"]}
    result = pappus.train(system, Measuring, run_dir=tmp_path / "run", **named)
    metrics = result.metrics
    assert np.nanmax(metrics["env/success"]) == np.nanmin(metrics["env/success"]) == 0.75
    assert 0.4 < metrics["env/flag"][-1] < 0.6 and "env/word" not in metrics


def test_what_a_config_of_a_stranger_names_is_not_run(tmp_path: Path) -> None:
    result = pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **TINY)
    config = result.directory / "config.yaml"
    config.write_text(config.read_text().replace("callbacks: []", "callbacks: [strange:Callback]"))
    with pytest.raises(UserError, match=r"asks for hooks.callbacks='strange:Callback', which runs code"):
        pappus.resume(result.directory, steps=800)


def test_a_run_starts_with_the_config_of_another(tmp_path: Path) -> None:
    first = pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **TINY).directory
    words = ["train", "--config", str(first / "config.yaml"), "--run-dir", str(tmp_path / "again")]
    words += ["--runtime", "inline"]  # as it is there; the words alone say early that no process will be started
    assert main(words) == 0
    ours, theirs = (pappus.runs.load(path).config for path in (first, tmp_path / "again"))
    assert {**ours, "run_dir": ""} == {**theirs, "run_dir": ""}


def test_a_resumed_run_says_what_is_left_of_its_seconds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pappus.train("impala", "CartPole-v1", run_dir=run, **{**TINY, "steps": 10**9, "seconds": 0.2})
    used = json.loads((run / "summary.json").read_text())["steps"]
    again = pappus.resume(run)
    assert again.summary.exit_reason == "time is up" and "all of --seconds 0.2 is used" in (run / "log.txt").read_text()
    assert again.summary.steps - used < used, "it has not its time anew"


def test_without_numba_a_run_with_replay_says_what_that_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure("dqn", "CartPole-v1")
    assert numba_note(config) == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "3,300 to 3,900 updates in 8 s instead of 5,000 to 6,500" in numba_note(config)
    assert "replay]" in numba_note(config) and numba_note(configure("ppo", "CartPole-v1")) == ""


def test_envs_of_python_have_folder_names_for_shells_and_sentences_for_what_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium as gym

    monkeypatch.chdir(tmp_path)
    result = pappus.train("impala", lambda: gym.make("CartPole-v1"), **TINY)
    assert result.directory.name.startswith("impala-tests.hooks.test_runs-test_envs_of_python")
    assert not set("<>:/ ") & set(result.directory.name)
    with pytest.raises(UserError, match=r"an env instance, .*give env='CartPole-v1'"):
        pappus.train("impala", gym.make("CartPole-v1"), **TINY)
    with pytest.raises(UserError, match="env=3 is not an env"):
        pappus.train("impala", 3, **TINY)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"takes no argument 'sutton_barto'.*did you mean 'sutton_barto_reward'"):
        pappus.train("impala", "CartPole-v1", {"env_options.kwargs": {"sutton_barto": True}}, **TINY)
