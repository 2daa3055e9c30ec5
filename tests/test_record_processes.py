"""Recording runs whose parts die, or that die as a whole: an episode is in the data set or not, never half."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import minari
import numpy as np
import pytest

from pappus.cli import main
from pappus.data.assemble import assemble
from pappus.data.dataset import Dataset, open_dataset
from pappus.errors import UserError
from tests.process_tools import Training, eventually

Start = Callable[..., Training]
ENDLESS = ["--env", "CartPole-v1", "--steps", "1000000000", "--evaluation.episodes", "1", "--runtime", "local"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(tmp_path: Path, data: Path) -> Iterator[Start]:
    started: list[Training] = []

    def begin(system: str, *words: str) -> Training:
        directory = tmp_path / "run"
        started.append(
            Training(directory, system, *ENDLESS, *words, "--run-dir", str(directory), "--record", str(data))
        )
        return started[-1]

    yield begin
    for training in started:
        training.end()


def episodes_are_whole(dataset: Dataset) -> None:
    """They begin where CartPole begins and, unless they were cut off, end where it ends."""
    for episode in dataset.read(range(dataset.num_episodes)):
        assert np.abs(episode.observation[0]).max() <= 0.05
        outside = np.abs(episode.observation[:, [0, 2]]) > [2.4, np.deg2rad(12)]
        assert not outside[:-1].any() and outside[-1].any() == episode.terminated
        assert episode.truncated == (episode.length == 500 and not episode.terminated)


def parts_of(data: Path, role: str) -> list[Path]:
    return list((data / "parts").glob(f"{role}.*"))


def test_an_actor_of_central_inference_that_is_killed_leaves_no_half_episode(start: Start, data: Path) -> None:
    training = start("seed-vtrace", "--actors", "1", "--envs-per-actor", "4", "--batch-size", "4")
    eventually(lambda: parts_of(data, "inference"), 60)
    training.until_it_learns()
    os.kill(training.pid("actor-0"), signal.SIGKILL)
    eventually(lambda: len(parts_of(data, "inference")) == 2, 60)
    training.interrupt()
    assert training.wait() == 130
    dataset = open_dataset(data)
    episodes_are_whole(dataset)
    assert f"recorded {dataset.num_episodes:,} episodes, {dataset.num_steps:,} steps" in training.output()
    going_on = [one for one in dataset.read(range(dataset.num_episodes)) if not (one.terminated or one.truncated)]
    assert 0 < len(going_on) <= 4, "those of the living, cut off by the end of the run"


def test_what_is_left_of_a_killed_actor_and_a_killed_run_is_whole_and_goes_on(
    start: Start, data: Path, tmp_path: Path
) -> None:
    training = start(
        "impala", "--actors", "1", "--envs-per-actor", "4", "--batch-size", "4", "--checkpoint.every-seconds", "0.3"
    )
    eventually(lambda: parts_of(data, "actor-0"), 60)
    with pytest.raises(UserError, match="still being recorded"):
        open_dataset(data)
    os.kill(training.pid("actor-0"), signal.SIGKILL)
    eventually(lambda: len(parts_of(data, "actor-0")) == 2, 60)
    training.until_it_learns()
    eventually(lambda: list((tmp_path / "run" / "checkpoints").glob("step-*")))
    training.process.kill()
    training.wait()
    training.nothing_is_left()

    dataset = open_dataset(data)
    assert dataset.num_episodes > 0 and not (data / "parts").exists()
    episodes_are_whole(dataset)
    assert all(one.terminated or one.truncated for one in dataset.read(range(dataset.num_episodes)))
    assert minari.MinariDataset(data / "data").total_episodes == dataset.num_episodes

    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", str(training.steps() + 5000)]) == 0
    assert assemble(data) == (0, 0), "the end of the run has done it"
    assert open_dataset(data).num_episodes > dataset.num_episodes
    episodes_are_whole(open_dataset(data))
