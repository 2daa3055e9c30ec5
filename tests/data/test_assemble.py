"""Parts become a data set that Minari reads; killed anywhere, assembling loses nothing and repeats nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest

import pappus.data.assemble as assembling
from pappus.cli import main
from pappus.config import AtariOptions, EnvOptions
from pappus.data import dataset as datasets
from pappus.data import hdf5_writer, recorder, storage
from pappus.data.assemble import RecordedEnv, _publish, assemble, begin_recording
from pappus.data.dataset import open_dataset
from pappus.data.hdf5_writer import Hdf5Writer
from pappus.data.parts import Part
from pappus.data.recorder import Recording
from pappus.data.spaces import recorded_spaces
from pappus.envs.vector import VectorEnv, make_env
from pappus.errors import UserError
from pappus.record import RunRecording, about_env

TAXI = next(name for name in gym.registry if name.startswith("Taxi-"))
"""It gives masks in its infos."""


class Killed(BaseException):
    """Stands for kill -9."""


def played(env: VectorEnv, directory: Path, steps: int, name: str = "actor-0") -> None:
    """Record random actions."""
    recording, random = Recording(directory), np.random.default_rng(0)
    recorded = recording.recorder(name, env.num_envs, env.seeds)
    recorded.begin(env.reset())
    spec, shape = env.spec.action, (env.num_envs, *env.spec.action.array.shape)
    for _ in range(steps):
        choices = random.integers(0, spec.choices or 1, (*shape, 1) if len(spec.choices) == 1 else shape)
        action = choices.reshape(shape) if spec.choices else random.normal(size=shape).astype(np.float32)
        recorded.record(action, {}, env.step(action))
    recording.close()


def begun(env_id: str, directory: Path, envs: int = 4, **options: Any) -> VectorEnv:
    chosen = EnvOptions(**options)
    env = make_env(env_id, envs, 5, chosen)
    directory.mkdir(parents=True, exist_ok=True)
    Recording(directory).close()
    begin_recording(directory, about_env(env_id, env_id, chosen, env.spec))
    return env


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {}), ("Pendulum-v1", {}), ("FrozenLake-v1", {}), ("Blackjack-v1", {}), (TAXI, {}),
        ("CartPole-v1", {"last_inputs": True}), ("Pendulum-v1", {"last_inputs": True}),
        ("Pendulum-v1", {"kwargs": {"g": 1.0}}), ("MountainCarContinuous-v0", {}), ("ALE/Pong-v5", {}),
    ],
)
def test_minari_reads_what_was_recorded_and_all_of_it_lies_in_its_spaces(
    env_id: str, options: dict[str, Any], tmp_path: Path
) -> None:
    if env_id.startswith("ALE/"):
        pytest.importorskip("ale_py")
    env = begun(env_id, tmp_path, **options)
    played(env, tmp_path, 30)
    added = assemble(tmp_path)
    found = minari.MinariDataset(tmp_path / "data")
    assert added is not None and (found.total_episodes, found.total_steps) == added and added.steps > 0
    ours = open_dataset(tmp_path)
    assert ours.spec == env.spec and ours.metadata["pappus"]["clipped_rewards"] == env_id.startswith("ALE/")
    for episode in found.iterate_episodes():
        rows = range(len(episode.rewards))
        for t in (*rows, len(episode.rewards)):
            assert found.observation_space.contains(at(episode.observations, t))
        assert all(found.action_space.contains(at(episode.actions, t)) for t in rows)


def at(nest: Any, t: int) -> Any:
    """Row t as a single env would show it."""
    if isinstance(nest, dict):
        return {key: at(part, t) for key, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(at(part, t) for part in nest)
    return nest[t]


def test_a_seed_that_is_recorded_repeats_the_episode(tmp_path: Path) -> None:
    env = begun("FrozenLake-v1", tmp_path)
    played(env, tmp_path, 60)
    assemble(tmp_path)
    dataset = open_dataset(tmp_path)
    known = [one for one in dataset.read(range(dataset.num_episodes)) if one.seed is not None]
    assert len(known) == 4, "the first of every env"
    single = gym.make("FrozenLake-v1")
    for episode in known:
        single.reset(seed=episode.seed)
        shown = [single.step(int(action))[0] for action in episode.action]
        assert shown == episode.observation[1:].tolist()


def no_more(place: Any, name: str, after: int = 0) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original, calls = getattr(place, name), iter(range(after))

        def killed(*arguments: Any, **named: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return original(*arguments, **named)

        monkeypatch.setattr(place, name, killed)

    return patch


@pytest.mark.parametrize("continued", [False, True], ids=["new set", "continued set"])
@pytest.mark.parametrize(
    "kill",
    [
        no_more(datasets, "new_storage"), no_more(hdf5_writer.Hdf5Writer, "add", 2),
        no_more(hdf5_writer.os, "replace"), no_more(storage, "write_json"), no_more(assembling, "_remove_parts"),
    ],
    ids=["at the start", "while writing", "before the file is replaced", "before the totals", "before the parts go"],
)
def test_killed_anywhere_it_ends_with_every_episode_once(
    kill: Callable[[pytest.MonkeyPatch], None], continued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, calm = tmp_path / "place", tmp_path / "calm"
    for number in range(1 + continued):
        played(begun("CartPole-v1", place), place, 40, f"actor-{number}")
        if number < continued:
            assemble(place)
    shutil.copytree(place, calm)
    with monkeypatch.context() as patch:
        kill(patch)
        patch.setattr(hdf5_writer.Hdf5Writer, "close", lambda self: self._file.close())  # nobody cleans up
        with suppress(Killed):
            assemble(place)
    assert contents(place) == contents(calm)
    assert not (place / "parts").exists() and not list(place.glob("**/*.new"))


def contents(directory: Path) -> list[str]:
    """All episodes, as Minari reads them."""
    ours, found = open_dataset(directory), minari.MinariDataset(directory / "data")
    assert ours.stored_episodes() == ours.num_episodes == found.total_episodes
    assert ours.num_steps == sum(len(one) for one in found.iterate_episodes())
    return [str((one.observations, one.terminations)) for one in found.iterate_episodes()]


def test_what_is_not_over_is_not_assembled(tmp_path: Path) -> None:
    env = begun("CartPole-v1", tmp_path)
    played(env, tmp_path, 10)
    living = Recording(tmp_path)
    assert assemble(tmp_path) is None
    with pytest.raises(UserError, match="still being recorded"):
        open_dataset(tmp_path)
    living.close()
    assert open_dataset(tmp_path).num_episodes > 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_part_is_kept_and_said_and_what_can_be_read_of_it_is_in_the_data_set(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recorder, "MOST_ROWS", 8)
    for name in ("header", "middle"):
        played(begun("CartPole-v1", tmp_path), tmp_path, 100, name)
    paths = {path.name.split(".")[0]: path for path in (tmp_path / "parts").glob("*.part")}
    middle = Part(paths["middle"]).blocks[6].offset
    for name, place in (("header", 20), ("middle", middle)):
        with paths[name].open("r+b") as file:
            file.seek(place)
            file.write(b"?" * 8)
    damaged = {path.name: path.read_bytes() for path in paths.values()}
    with monkeypatch.context() as patch, suppress(Killed):
        if killed:
            no_more(assembling, "_remove_parts")(patch)
        assemble(tmp_path)
    dataset = open_dataset(tmp_path)
    assert 100 < dataset.num_steps < 48 * 4 and dataset.num_episodes == dataset.stored_episodes()
    said = capsys.readouterr().err
    assert "is damaged: its header is damaged" in said and "bytes are damaged and cannot be read; what could be" in said
    kept = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    assert kept == {f"{name}.damaged": content for name, content in damaged.items()}
    played(begun("CartPole-v1", tmp_path), tmp_path, 20)
    added = assemble(tmp_path)
    assert added is not None and added.episodes > 0, "what was kept is in nobody's way"


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"\xff", b"{}"])
def test_a_spec_that_is_damaged_gets_a_sentence(
    raw: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    recording = RunRecording(tmp_path, RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env)))
    played(env, tmp_path, 30)
    (tmp_path / "parts" / "spec.json").write_bytes(raw)
    assert "could not be completed" in recording.finish()
    assert main(["data", "info", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert "spec.json', which says what the parts beside it hold, cannot be read" in error and "\n" not in error
    assert main(["data", "list", str(tmp_path)]) == 0
    assert "problem: " in (shown := capsys.readouterr().out) and "spec.json', which says what" in shown
    assert list((tmp_path / "parts").glob("*.part")), "they are kept"


@pytest.mark.parametrize("left", ["parts", "data"])
def test_another_env_is_refused(left: str, tmp_path: Path) -> None:
    env = begun("CartPole-v1", tmp_path)
    if left == "data":
        played(env, tmp_path, 20)
        assemble(tmp_path)
    other = make_env("Acrobot-v1", 1, 0, EnvOptions())
    about = RecordedEnv("Acrobot-v1", *recorded_spaces(other.spec, other))
    with pytest.raises(UserError, match=r"its env is CartPole-v1, and that of this run Acrobot-v1; give another"):
        RunRecording(tmp_path, about)


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ({"kwargs": {"sutton_barto_reward": True}}, {}, r"its kwargs is {}, and that of this run {'sutton"),
        ({}, {"kwargs": {"size": (1, 2)}}, r"its kwargs is {'size': \[1, 2\]}, and that of this run {}"),
        (
            {"atari": AtariOptions(life_loss_ends_episode=True)}, {},
            "its life_loss_ends_episode is False, and that of this run True",
        ),
    ],
)
@pytest.mark.parametrize("left", ["parts", "data"])
def test_the_same_env_with_other_options_is_refused(
    left: str, mine: dict[str, Any], theirs: dict[str, Any], words: str, tmp_path: Path
) -> None:
    env = make_env("CartPole-v1", 4, 5, EnvOptions())

    def about(options: dict[str, Any]) -> RecordedEnv:
        own = {"env_options": dataclasses.asdict(EnvOptions(**options)), "clipped_rewards": False}
        return RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env), own=own)

    recording = RunRecording(tmp_path, about(theirs))
    if left == "data":
        played(env, tmp_path, 20)
        recording.finish()
    RunRecording(tmp_path, about(theirs)).release()
    with pytest.raises(UserError, match=words):
        RunRecording(tmp_path, about(mine))


def test_clipped_rewards_are_not_recorded_beside_others(tmp_path: Path) -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    plain, clipped = (
        RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env), own={"clipped_rewards": clips})
        for clips in (False, True)
    )
    RunRecording(tmp_path, clipped).release()
    with pytest.raises(UserError, match="its clipped_rewards is True, and that of this run False; give another folder"):
        RunRecording(tmp_path, plain)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    about = RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env))
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        RunRecording(tmp_path / "file" / "set", about)
    assert os.listdir(tmp_path) == ["file"]


def test_folders_of_others_are_refused_and_never_removed(tmp_path: Path) -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    about = RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env))
    for name in ("parts", "data"):
        mine = tmp_path / name / name / "mine.txt"
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        with pytest.raises(UserError, match=f"has a folder '{name}' that is not of a data set; give another folder"):
            RunRecording(tmp_path / name, about)
        assert mine.read_text() == "mine"


def test_the_draft_of_a_run_that_begins_now_is_not_taken_for_somebody_elses_file(tmp_path: Path) -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    about = RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / ".spec.json.123.partial").write_text("{")  # between the writing and the renaming of a draft
    RunRecording(tmp_path, about).release()
    assert "spec.json" in os.listdir(tmp_path / "parts")


def test_runs_that_begin_together_agree_on_what_they_record(tmp_path: Path) -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    about = RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env))
    first = RunRecording(tmp_path, about)
    _publish(tmp_path, about)  # as one that saw no spec a moment ago
    with pytest.raises(UserError, match="its env is CartPole-v1"):
        _publish(tmp_path, dataclasses.replace(about, env="other"))
    assert sorted(os.listdir(tmp_path / "parts")) == ["spec.json"]
    first.release()


def test_a_disk_that_is_full_at_the_end_keeps_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("CartPole-v1", 1, 0, EnvOptions())
    recording = RunRecording(tmp_path, RecordedEnv("CartPole-v1", *recorded_spaces(env.spec, env)))
    played(env, tmp_path, 30)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Hdf5Writer, "add", full)
        assert "could not be completed: [Errno 28] No space left on device; its parts are kept" in recording.finish()
    assert open_dataset(tmp_path).num_episodes > 0
