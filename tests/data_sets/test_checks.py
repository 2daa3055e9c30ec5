"""Bad data gets one sentence that names the place: before training for a set, while reading for an episode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from pappus.api import configure
from pappus.cli import main
from pappus.config import EnvOptions
from pappus.data.checks import check_dataset, differences
from pappus.data.content import Content
from pappus.data.dataset import Dataset, DatasetWriter, open_dataset
from pappus.data.episode_checks import structure_problems
from pappus.data.facts import best_episodes
from pappus.data.metadata import DataFormat
from pappus.data.specs import check_spec, data_notes
from pappus.envs.spaces import action_converter
from pappus.envs.vector import env_spec
from pappus.errors import UserError
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec
from tests.data_sets.kinds import FORMATS, KINDS, episodes_of, spec_of, written

VECTOR, THREE = KINDS["vector"]


def metadata_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "data" / "metadata.json").read_text())
    return found


def refused(directory: Path) -> str:
    """What training says of a set: before it starts, and as it reads."""
    with pytest.raises(UserError) as caught:
        dataset = open_dataset(directory)
        check_dataset(dataset)
        list(dataset.read(range(dataset.num_episodes)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


METADATA: list[tuple[dict[str, Any], str]] = [
    ({"total_episodes": "three"}, "total_episodes='three'; it must be a whole number"),
    ({"data_format": "csv"}, "data_format='csv'; readable are hdf5, arrow, parquet"),
    ({"minari_version": ["0.5.4"]}, "was written by Minari ['0.5.4'], which"),
    ({"minari_version": "0.3.1"}, "was written by Minari 0.3.1"),
    ({"observation_space": "{}"}, "has no readable observation_space"),
    ({"action_space": None}, "has no readable action_space"),
    ({"action_space": json.dumps({"type": "Graph"})}, "has no readable action_space"),
    ({"action_space": json.dumps({"type": "MultiBinary", "n": 3})}, "cannot be learned from: its action is MultiBi"),
    ({"total_episodes": 0}, "is empty: it has 0 episodes"),
    ({"total_episodes": 9}, "should have 9 episodes, but its files hold 3"),
]


@pytest.mark.parametrize(("changes", "sentence"), METADATA, ids=[sentence for _, sentence in METADATA])
def test_wrong_metadata(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    written(tmp_path)
    content = {key: value for key, value in {**metadata_of(tmp_path), **changes}.items() if value is not None}
    (tmp_path / "data" / "metadata.json").write_text(json.dumps(content))
    assert sentence in refused(tmp_path)


@pytest.mark.parametrize(
    ("raw", "sentence"), [(b"{", "is no JSON"), (b"[1]", "holds a list"), (b"\xff", "is no JSON")]
)
def test_metadata_that_is_no_json(raw: bytes, sentence: str, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "data" / "metadata.json").write_bytes(raw)
    assert sentence in refused(tmp_path)


@pytest.mark.parametrize("data_format", FORMATS)
def test_files_that_are_cut_short_or_gone(data_format: DataFormat, tmp_path: Path) -> None:
    written(tmp_path, "vector", data_format)
    name = "main_data.hdf5" if data_format == "hdf5" else f"1/part-0.{data_format}"
    file = tmp_path / "data" / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "cannot be" in refused(tmp_path)
    file.write_bytes(b"x" * len(whole))
    assert "cannot be" in refused(tmp_path)
    file.write_bytes(b"")
    assert str(tmp_path) in refused(tmp_path)
    file.unlink()
    assert "not complete" in refused(tmp_path)
    assert main(["data", "info", str(tmp_path)]) in (1, 2)


@pytest.mark.parametrize("data_format", FORMATS)
def test_damage_anywhere_is_a_sentence_or_harmless(data_format: DataFormat, tmp_path: Path) -> None:
    written(tmp_path, "dict", data_format)
    rng, files = np.random.default_rng(0), sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for _ in range(20):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        place = int(rng.integers(len(whole)))
        file.write_bytes(whole[:place] + rng.bytes(64) + whole[place + 64 :])
        with contextlib.suppress(UserError):
            dataset = open_dataset(tmp_path)
            check_dataset(dataset)
            list(dataset.read(range(dataset.num_episodes)))
        assert main(["data", "info", str(tmp_path)]) in (0, 1, 2)
        file.write_bytes(whole)


def without(name: str) -> Callable[[Any], None]:
    def change(group: Any) -> None:
        del group[name]

    return change


def with_column(name: str, column: Any) -> Callable[[Any], None]:
    def change(group: Any) -> None:
        if name in group:
            del group[name]
        group[name] = column

    return change


EPISODES: list[tuple[str, Callable[[Any], None], str]] = [
    ("vector", without("rewards"), "episode 2 has no 'rewards'"),
    ("vector", without("observations"), "episode 2 has no 'observations'"),
    ("dict", without("observations/inner/a"), "episode 2 has no 'a'"),
    ("vector", with_column("observations", np.zeros((7, 3), np.float32)), "has 7 observations, but must have 8"),
    ("vector", with_column("actions", np.zeros(8, np.int64)), "has 8 actions, but must have 7"),
    ("vector", with_column("terminations", np.zeros(8, bool)), "has terminations of shape [8]"),
    ("vector", with_column("truncations", np.arange(7) == 3), "goes on after step 3, which ended it"),
    ("vector", with_column("observations", np.zeros((8, 4), np.float32)), "has observations of shape [4]"),
    ("vector", with_column("observations", np.array([b"x"] * 8)), "has observations of shape []"),
    ("vector", with_column("rewards", np.zeros((7, 2))), "has rewards of shape [7, 2]"),
    ("vector", with_column("rewards", np.zeros(0)), "is empty: it has no steps"),
    ("vector", with_column("actions", np.zeros(7)), "has actions of type float64, but their space is Discrete(3)"),
    ("vector", with_column("actions", np.full(7, 3)), "takes action 3 at step 0, outside Discrete(3)"),
    ("float64", with_column("actions", np.full(7, 2)), "takes action 2 at step 0, outside Discrete(2, start=5)"),
    ("bounds", with_column("actions", np.zeros((7, 2), np.int64)), "has actions of type int64"),
    ("bounds", with_column("actions", np.full((7, 2), 2.0)), "has 2 in actions[0] at step 0, outside -3 to 1"),
    ("pictures", with_column("observations", np.zeros((8, 36, 40), np.float32)), "has observations of type float32"),
    ("pictures", with_column("observations", np.full((8, 36, 40), 300)), "from 300 to 300, which uint8"),
    ("vector", with_column("rewards", np.full(7, np.nan)), "has nan in rewards at step 0"),
    ("vector", with_column("rewards", np.full(7, 1e300)), "has inf in rewards at step 0"),
    ("vector", with_column("infos/log_prob", np.full(7, -np.inf)), "has -inf in infos/log_prob at step 0"),
    ("vector", with_column("infos/log_prob", np.zeros((7, 2))), "has infos/log_prob of shape [7, 2]"),
    ("vector", with_column("infos/log_prob", np.zeros(3)), "has infos/log_prob of shape [3]"),
    ("vector", with_column("infos/log_prob", np.array([b"x"] * 7)), "has infos/log_prob of shape [7] and type |S1"),
    ("vector", with_column("infos/log_prob", np.full(8, 0.5)), "has 0.5 in infos/log_prob at step 0, but no choice"),
    ("bounds", with_column("infos/policy_action", np.zeros((8, 5))), "infos/policy_action of shape [8, 5]"),
    ("bounds", with_column("infos/policy_action", np.zeros(8)), "has infos/policy_action of shape [8]"),
    ("bounds", with_column("infos/policy_action", np.full((8, 2), b"x")), "of shape [8, 2] and type |S1; there must"),
    ("bounds", with_column("infos/policy_action", np.ones((8, 2))), "infos/policy_action that mean 1 in actions[0] at"),
    ("vector", with_column("actions", 1), "has a lone value of actions, but must have 7"),
    ("bounds", with_column("actions", np.full((7, 2), np.nan, np.float32)), "has nan in actions[0] at step 0"),
    ("multi-discrete", with_column("observations", np.full(8, 99)), "has 99 in observations at step 0, outside -1 to"),
    ("multi-discrete", with_column("observations", np.full(8, -3)), "has -3 in observations at step 0, outside"),
    ("dict", with_column("observations/inner/b", np.arange(8)), "has 3 in observations/inner/b at step 3, outside"),
    ("tuple", with_column("observations/_index_1", np.full((8, 2), 4)), "has 4 in observations/1[0] at step 0"),
    ("multi-discrete", with_column("actions", np.full((7, 2), 2)), "takes action [2, 2] at step 0, outside"),
]


@pytest.mark.filterwarnings("error:overflow")
@pytest.mark.parametrize(("kind", "change", "sentence"), EPISODES, ids=[sentence for *_, sentence in EPISODES])
def test_bad_episodes(kind: str, change: Callable[[Any], None], sentence: str, tmp_path: Path) -> None:
    import h5py

    written(tmp_path, kind)
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "a") as file:
        change(file["episode_2"])
    said = refused(tmp_path)
    assert sentence in said and "episode 2" in said
    assert main(["data", "info", str(tmp_path)]) == 1


@pytest.mark.parametrize("rewards", [1.0, np.zeros((7, 2)), np.array([b"x"] * 7)], ids=["lone", "pairs", "text"])
def test_rewards_by_which_steps_are_counted_must_be_one_number_each(rewards: Any, tmp_path: Path) -> None:
    import h5py

    written(tmp_path)
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "a") as file:
        with_column("rewards", rewards)(file["episode_2"])
    with pytest.raises(UserError, match=r"episode 2 has rewards of shape .*; there must be one number per step"):
        best_episodes(open_dataset(tmp_path), 0.5)
    assert main(["data", "list", str(tmp_path)]) == 0


def test_where_actions_are_choices_no_other_column_is_taken_for_them(tmp_path: Path) -> None:
    import h5py

    expected = [episode.action for episode in written(tmp_path).read(range(3))]
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "a") as file:
        with_column("infos/policy_action", np.full((8, 3), 0.4))(file["episode_2"])
    found = [episode.action for episode in open_dataset(tmp_path).read(range(3))]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_an_action_that_its_mask_forbids(tmp_path: Path) -> None:
    episodes = episodes_of(*KINDS["masks"])
    episodes[1].action[0] = [0, 1]
    episodes[1].observation["action_mask"][0] = [1, 1, 1, 0, 1]
    written(tmp_path, "masks", "hdf5", episodes)
    assert "episode 1 takes action 1 at step 0, which its mask forbids" in refused(tmp_path)


def test_a_column_that_is_missing_in_arrow(tmp_path: Path) -> None:
    import pyarrow

    written(tmp_path, "vector", "arrow")
    file = tmp_path / "data" / "0" / "part-0.arrow"
    table = pyarrow.ipc.open_file(file.read_bytes()).read_all().drop_columns(["rewards"])
    with pyarrow.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table)
    assert "episode 0 has no 'rewards'" in refused(tmp_path)


def test_numbers_may_be_stored_wider_than_their_space() -> None:
    flags = np.zeros(2, bool)
    wide = Content(0, np.zeros((3, 3)), np.zeros(2, np.int32), np.ones(2, np.int64), flags, flags, {})
    assert not list(structure_problems(wide, VECTOR, THREE))


def test_a_set_without_episodes_and_a_folder_without_a_set(tmp_path: Path) -> None:
    DatasetWriter(tmp_path / "new", spec_of(VECTOR, THREE), VECTOR, THREE)
    assert "is empty" in refused(tmp_path / "new")
    assert "is no data set" in refused(tmp_path)


BASE = EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(3))
OTHERS: list[tuple[EnvSpec, str]] = [
    (EnvSpec(ArraySpec((4,), "float32"), BASE.action), "its observation is float32 [3], the env's float32 [4]"),
    (EnvSpec(ArraySpec((3,), "uint8"), BASE.action), "its observation is float32 [3], the env's uint8 [3]"),
    (EnvSpec({"a": BASE.observation}, BASE.action), "its observation has no keys, the env's the keys a"),
    (EnvSpec(BASE.observation, DiscreteAction(2)), "its actions are one of 3, the env's one of 2"),
    (EnvSpec(BASE.observation, ContinuousAction((2,))), "its actions are one of 3, the env's real numbers [2]"),
    (EnvSpec(BASE.observation, BASE.action, 4), "it was recorded to be seen one frame at once, the env shows 4 frames"),
]


@pytest.mark.parametrize(("env", "sentence"), OTHERS, ids=[sentence for _, sentence in OTHERS])
def test_what_differs_from_the_env_is_named(env: EnvSpec, sentence: str) -> None:
    assert list(differences(BASE, env)) == [sentence]


def test_other_bounds_of_the_actions_are_named(tmp_path: Path) -> None:
    dataset = written(tmp_path, "bounds")
    assert not check_dataset(dataset, dataset.spec, action_space=KINDS["bounds"][1])
    with pytest.raises(UserError, match=r"does not fit the env: its actions lie in Box\(\[-3"):
        check_dataset(dataset, dataset.spec, action_space=spaces.Box(-1, 1, (2,)))


def test_episodes_beyond_the_count_are_worth_a_word(tmp_path: Path) -> None:
    written(tmp_path)
    content = {**metadata_of(tmp_path), "total_episodes": 2, "total_steps": 4}
    (tmp_path / "data" / "metadata.json").write_text(json.dumps(content))
    dataset = Dataset(tmp_path / "data")
    assert "1 more episodes than its metadata counts" in check_dataset(dataset)[0]
    assert len(list(dataset.read(range(2)))) == 2


def test_clipped_rewards_and_another_env_are_worth_a_word(tmp_path: Path) -> None:
    written(tmp_path)
    own = {"env": "Mine-v1", "clipped_rewards": True, "env_options": {"kwargs": {"size": [1, 2]}}}
    (tmp_path / "data" / "metadata.json").write_text(json.dumps({**metadata_of(tmp_path), "pappus": own}))
    config = configure("dqn@offline", "Mine-v1", {"data": tmp_path, "env_options.kwargs": {"size": (1, 2)}})
    [clipped] = data_notes(config)
    assert "its rewards were clipped when it was recorded" in clipped
    other, made = data_notes(configure("dqn@offline", "Yours-v1", {"data": tmp_path}))[1:]
    assert "it is of Mine-v1, and the run plays Yours-v1" in other
    assert "was made with the kwargs {'size': [1, 2]}, and that of the run with {}" in made


def test_training_asks_the_env_for_its_bounds(tmp_path: Path) -> None:
    one = spaces.Box(-1.0, 1.0, (1,))
    spec, options = spec_of(spaces.Box(-1, 1, (3,)), one), EnvOptions()
    DatasetWriter(tmp_path, spec, spaces.Box(-1, 1, (3,)), one).add(
        episodes_of(spaces.Box(-1, 1, (3,)), one), action_converter(one)[1]
    )
    with pytest.raises(UserError, match=r"its actions lie in Box\(-1.0, 1.0, .*, the env's in Box\(-2.0"):
        check_spec(open_dataset(tmp_path), "Pendulum-v1", env_spec("Pendulum-v1", options), options)
    with pytest.raises(UserError, match=r"its observation is float32 \[3\], the env's float32 \[4\]"):
        check_spec(open_dataset(tmp_path), "CartPole-v1", env_spec("CartPole-v1", options), options)
