"""Disks fill up and directories vanish, and runs go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pappus.cli import main
from pappus.errors import INCOMPLETE
from pappus.telemetry.checkpoint import CheckpointStore
from pappus.telemetry.patient_file import PatientFile
from tests.process_tools import Training, eventually

SMALL = [
    "train", "a2c", "--env", "CartPole-v1", "--runtime", "inline", "--envs-per-actor", "4", "--steps", "4000",
    "--network.hidden-sizes", "8", "--evaluation.episodes", "1",
]


def run(directory: Path, *words: str, system: str = "a2c") -> tuple[int, dict[str, Any]]:
    """The exit code and the summary."""
    code = main(["train", system, *SMALL[2:], "--run-dir", str(directory), *words])
    return code, json.loads((directory / "summary.json").read_text())


def rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are written, and tried again, at every opportunity."""
    monkeypatch.setattr("pappus.runtimes.controller.LOG_SECONDS", 0.0)
    monkeypatch.setattr("pappus.telemetry.patient_file.FIRST_RETRY", 0.0)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, often: None) -> Callable[[range], None]:
    """The disk is full for some of the attempts to write anything but events."""
    write, count = PatientFile._write, [0]

    def install(bad: range) -> None:
        def perhaps(file: PatientFile, record: bytes) -> None:
            count[0] += 1
            if count[0] in bad:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(file, record)

        monkeypatch.setattr(PatientFile, "_write", perhaps)

    return install


def test_metrics_that_cannot_be_written_for_a_while_are_all_there_in_the_end(
    tmp_path: Path, failing: Callable[[range], None], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(range(5, 25))
    code, summary = run(tmp_path / "run")
    assert code == 0 and summary["exit_reason"] == "steps done"
    assert sum(summary["storage"]["failures"].values()) == 20 and not summary["storage"]["lost"]
    shown = capsys.readouterr().out
    assert shown.count("metrics.jsonl' cannot be written: No space left on device") == 1
    assert shown.count("metrics.jsonl' is written again") == 1 and "Traceback" not in shown
    steps = [row["step"] for row in rows(tmp_path / "run")]
    assert steps == sorted(steps) and steps[-1] == summary["steps"]


def test_metrics_beyond_what_may_wait_are_lost_and_the_exit_code_says_so(
    tmp_path: Path, failing: Callable[[range], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pappus.telemetry.patient_file.WAITING_BYTES", 5000)
    failing(range(5, 40))
    code, summary = run(tmp_path / "run")
    assert code == INCOMPLETE and summary["exit_reason"] == "steps done"
    assert summary["storage"]["lost"]["metrics.jsonl"] > 0
    assert rows(tmp_path / "run")[-1]["step"] == summary["steps"], "those of after are there"


def test_with_stop_a_failure_ends_the_run_with_a_checkpoint(
    tmp_path: Path, failing: Callable[[range], None]
) -> None:
    failing(range(5, 8))
    code, summary = run(tmp_path / "run", "--on-storage-failure", "stop", "--steps", "1000000000")
    assert code == INCOMPLETE and summary["exit_reason"] == "storage failed"
    assert CheckpointStore(tmp_path / "run" / "checkpoints").latest() is not None


def test_a_run_directory_that_is_removed_is_made_anew_and_can_be_resumed(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pappus.runtimes.controller import Controller

    directory, decide, count = tmp_path / "run", Controller.decide, [0]

    def remove_once(controller: Controller) -> bool:
        count[0] += 1
        if count[0] == 5:
            shutil.rmtree(directory)
        return decide(controller)

    monkeypatch.setattr(Controller, "decide", remove_once)
    code, summary = run(directory)
    assert code == INCOMPLETE and summary["exit_reason"] == "steps done"
    assert summary["storage"]["lost"]["metrics.jsonl"] > 0
    assert "was removed or moved while the run wrote to it" in capsys.readouterr().out
    assert main(["train", "--resume", str(directory), "--steps", "5000"]) == 0


@pytest.mark.parametrize("system", ["a2c", "apex-dqn"])
def test_a_failed_checkpoint_goes_to_the_fallback_from_which_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    directory = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("pappus.telemetry.checkpoint.Path.mkdir", refusing(directory / "checkpoints"))
        code, summary = run(directory, "--fallback-dir", str(tmp_path / "spare"), system=system)
    spare = str(tmp_path / "spare" / "run")
    assert code == 0 and summary["storage"] == {"failures": {"checkpoints": 1}, "lost": {}, "fallback": spare}
    assert CheckpointStore(tmp_path / "spare" / "run" / "checkpoints").latest() is not None
    assert not any((directory / "checkpoints").glob("step-*"))
    assert main(["train", "--resume", str(directory), "--steps", "6000"]) == 0
    assert json.loads((directory / "summary.json").read_text())["steps"] >= 6000
    assert any((directory / "checkpoints").glob("step-*")), "there is room again"
    assert main(["train", "--resume", str(tmp_path / "spare" / "run"), "--steps", "6000"]) == 0
    logs = [(where / "log.txt").read_text() for where in (directory, tmp_path / "spare" / "run")]
    assert not any("starts with empty tables" in text for text in logs)


def test_a_fallback_that_is_the_run_itself_or_another_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spare" / "run").mkdir(parents=True)
    (tmp_path / "spare" / "run" / "config.yaml").touch()
    for spare, words in ((tmp_path, "is where the run itself is"), (tmp_path / "spare", "holds a run already")):
        assert main([*SMALL, "--run-dir", str(tmp_path / "run"), "--fallback-dir", str(spare)]) == 2
        assert words in capsys.readouterr().err


def refusing(folder: Path) -> Callable[..., None]:
    """`Path.mkdir` of a disk that has no room in a folder."""
    make = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **named: Any) -> None:
        if path.is_relative_to(folder) and path != folder:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(path, *arguments, **named)

    return mkdir


def test_a_directory_that_cannot_be_written_from_the_start_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pappus.telemetry.checkpoint.Path.mkdir", refusing(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    assert main([*SMALL, "--run-dir", str(tmp_path / "run")]) == 2
    assert "cannot be written: No space left on device; give another directory" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mount needs root: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command")
def test_a_full_disk_costs_a_replay_run_nothing_when_there_is_room_again(tmp_path: Path, small_disk: Path) -> None:
    directory = small_disk / "run"
    words = ["apex-dqn", "--env", "CartPole-v1", "--steps", "100000000", "--seconds", "10", "--run-dir", str(directory)]
    words += ["--topology.replay.capacity", "2000", "--checkpoint.every-seconds", "1", "--evaluation.episodes", "1"]
    training = Training(tmp_path / "run", *words)
    training.directory = directory
    try:
        training.until_it_learns()
        eventually(lambda: no_room_and_given_up(training, small_disk))
        (small_disk / "ballast").unlink()
        eventually(lambda: "checkpoints are written again" in training.output())
        assert training.wait(60) == 0, training.output()
        assert training.summary()["exit_reason"] == "time is up" and not training.summary()["storage"]["lost"]
        assert "died" not in training.output() and "Traceback" not in training.output()
        training.nothing_is_left()
    finally:
        training.end()


def no_room_and_given_up(training: Training, disk: Path) -> bool:
    """Takes the room again that an older checkpoint leaves when it is removed."""
    fill(disk / "ballast")
    return "a checkpoint was abandoned" in training.output()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with pytest.raises(OSError, match="No space left"), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command")
def test_replay_tables_that_never_fit_on_the_disk_stay_in_memory_and_time_ends_the_run(
    tmp_path: Path, small_disk: Path
) -> None:
    directory = small_disk / "run"
    fill(small_disk / "ballast")
    os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - 500_000)
    words = ["apex-dqn", "--env", "CartPole-v1", "--steps", "1000000000", "--seconds", "4", "--run-dir", str(directory)]
    training = Training(tmp_path / "run", *words, "--checkpoint.every-seconds", "1", "--evaluation.episodes", "1")
    training.directory = directory
    try:
        assert training.wait(60) == INCOMPLETE, training.output()
        assert training.summary()["exit_reason"] == "time is up"
        assert training.summary()["storage"]["lost"] == {"checkpoints": 1}
        assert "died" not in training.output() and training.output().count("a checkpoint was abandoned: replay") == 1
    finally:
        training.end()
