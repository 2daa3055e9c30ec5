"""One command for the whole life of a run: schedulers repeat it until it is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pappus.cli import main

SMALL = "--runtime inline --envs-per-actor 2 --unroll-length 10 --network.hidden-sizes 8 --evaluation.episodes 1"


def command(directory: Path, steps: int, *more: str) -> int:
    words = ["train", "ppo", "--env", "CartPole-v1", *SMALL.split(), "--steps", str(steps)]
    return main([*words, "--run-dir", str(directory), "--resume-or-start", *more])


def summary(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return content


def test_the_same_command_starts_a_run_and_finds_it_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert command(run, 200) == 0
    first = (run / "summary.json").read_bytes()
    capsys.readouterr()
    assert command(run, 200) == 0
    said = f"is finished: steps done after {summary(run)['steps']} steps; nothing is left to do"
    assert said in capsys.readouterr().out
    assert (run / "summary.json").read_bytes() == first


def test_a_run_that_was_interrupted_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "settings.yaml"
    file.write_text("optimizer: {learning_rate: 0.002}\n")
    assert command(run, 200, "--config", str(file)) == 0
    (run / "summary.json").write_text(json.dumps(summary(run) | {"exit_reason": "interrupted"}))
    assert command(run, 200, "--config", str(file)) == 0
    assert "resumed from" in (run / "log.txt").read_text()
    assert summary(run)["exit_reason"] == "steps done" and "learning_rate: 0.002" in (run / "config.yaml").read_text()


def test_a_finished_run_of_which_more_is_asked_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command(run, 200) == 0 and command(run, 400) == 0
    assert summary(run)["steps"] >= 400


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").touch()
    (run / "config.yaml").write_text("system: ppo\nenv: CartPole-v1\n")
    (run / "metrics.jsonl").write_text('{"step": 77}\n')
    (run / "log.txt").write_text("what happened\n")
    (run / "job.sh").write_text("the user's own")
    assert command(run, 200) == 0
    assert summary(run)["steps"] >= 200 and '"step": 77' not in (run / "metrics.jsonl").read_text()
    assert (run / "log.txt").read_text().startswith("what happened") and (run / "job.sh").exists()


def test_a_part_that_is_killed_leaves_no_summary_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert command(run, 200) == 0

    def dies(*_: object) -> None:
        assert not (run / "summary.json").exists(), "or the next command would take the run for finished"
        raise KeyboardInterrupt

    monkeypatch.setattr("pappus.execution.run.drive", dies)
    assert command(run, 400) == 130


def test_a_folder_of_something_else_is_refused_and_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("learning_rate: 1\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "mine.pt").write_text("weeks of work")
    assert command(tmp_path, 200) == 2
    assert "has a config.yaml that is of no run; give another --run-dir" in capsys.readouterr().err
    assert (tmp_path / "checkpoints" / "mine.pt").read_text() == "weeks of work"


def test_a_run_whose_checkpoint_is_in_its_fallback_goes_on_from_there(tmp_path: Path) -> None:
    run, spare = tmp_path / "run", tmp_path / "spare"
    assert command(run, 200, "--fallback-dir", str(spare)) == 0
    (spare / "run" / "checkpoints").rmdir()
    (run / "checkpoints").rename(spare / "run" / "checkpoints")
    assert command(run, 400, "--fallback-dir", str(spare)) == 0
    assert "resumed from" in (run / "log.txt").read_text() and summary(run)["steps"] >= 400
