"""A training on Ray from outside: what its user does to it, and what is left."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process_tools import Training, eventually

pytest.importorskip("ray")

WORDS = (
    "--env", "CartPole-v1", "--runtime", "ray", "--envs-per-actor", "8", "--evaluation.episodes", "1",
    "--checkpoint.every-seconds", "1",
)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """An endless run on a Ray of its own."""
    directory = tmp_path / "run"
    made = Training(directory, "impala", *WORDS, "--steps", str(10**12), "--run-dir", str(directory))
    try:
        made.until_it_learns(1000)
        yield made
    finally:
        made.end()


def test_ctrl_c_saves_and_stops_and_what_the_driver_leaves_when_it_is_killed_is_resumed(training: Training) -> None:
    checkpoints = training.directory / "checkpoints"
    eventually(lambda: list(checkpoints.glob("step-*")))
    training.known = {pid: title for pid, title in training.known.items() if not title.endswith("Agent")}
    training.process.send_signal(signal.SIGKILL)  # Ray's own agents take a minute to notice it, all else a second
    training.wait()
    training.nothing_is_left(30.0)
    again = Training(training.directory, "--resume", str(training.directory))
    try:
        eventually(lambda: again.process.poll() is not None or "resumed from" in again.output(), 60)
        before = again.steps()
        again.until_it_learns(before + 1000)
        again.interrupt()
        assert again.wait(60) == 130, again.output()
        assert again.summary()["exit_reason"] == "interrupted" and again.summary()["steps"] > before
        again.nothing_is_left(30.0)
    finally:
        again.end()
