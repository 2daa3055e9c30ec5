"""Parts of a run that learns from data die: what was read is there once, or is read again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pappus.cli import main
from tests.data_tools import record
from tests.process_tools import Training, eventually


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    data = record(tmp_path / "data", "CartPole-v1", 400)
    words = ["--runtime", "local", "--steps", "1000000000", "--evaluation.every-steps", "1000000000"]
    begun = Training(
        tmp_path / "run", "dqn@offline", "--data", str(data), *words, "--batch-size", "16", "--evaluation.episodes",
        "1", "--run-dir", str(tmp_path / "run"),
    )
    yield begun
    begun.end()


def newest(run: Path, name: str) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
    return next((float(line[name]) for line in reversed(lines) if name in line), 0.0)


def test_a_killed_reader_reads_nothing_twice_and_a_lost_table_is_read_again(training: Training) -> None:
    training.until_it_learns(100)
    items = newest(training.directory, "replay/inserts")
    os.kill(training.pid("reader-0"), signal.SIGKILL)
    eventually(lambda: "reader-0: reader-0 died" in training.output())
    training.pid("reader-0")
    training.until_it_learns(training.steps() + 400)
    assert newest(training.directory, "replay/inserts") == items, "the table has everything"
    os.kill(training.pid("replay"), signal.SIGKILL)
    eventually(lambda: training.output().count("reader-0: read ") == 2)
    training.until_it_learns(training.steps() + 400)
    assert newest(training.directory, "replay/size") == items
    training.interrupt()
    assert training.wait() == 130
    enough = training.summary()["steps"] + 50
    assert main(["train", "--resume", str(training.directory), "--steps", str(enough)]) == 0
    assert training.summary()["steps"] == enough
    assert "resumed: data is read again" in (training.directory / "log.txt").read_text()
