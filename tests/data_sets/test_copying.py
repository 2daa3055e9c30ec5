"""Conversion and import: the same episodes in another format, and episodes cut out of plain columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from pappus.cli import main
from pappus.data.dataset import open_dataset
from tests.data_sets.kinds import KINDS, episodes_of, written
from tests.data_sets.test_dataset import assert_episodes_match

SPACES = "observation: {shape: [2], dtype: float32}\naction: {discrete: 3}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_copies_in_other_formats_hold_the_same_episodes(kind: str, tmp_path: Path) -> None:
    written(tmp_path / "hdf5", kind)
    for source, target in (("hdf5", "arrow"), ("arrow", "parquet"), ("parquet", "again")):
        data_format = "hdf5" if target == "again" else target
        assert main(["data", "convert", str(tmp_path / source), str(tmp_path / target), "--format", data_format]) == 0
        found = open_dataset(tmp_path / target)
        assert found.data_format == data_format
        assert_episodes_match(list(found.read(range(3))), episodes_of(*KINDS[kind]))


def test_a_copy_keeps_what_the_set_says_of_itself(tmp_path: Path) -> None:
    from minari import MinariDataset
    from minari.dataset.minari_storage import MinariStorage

    written(tmp_path / "one-v3")
    about = {"author": {"Ada"}, "description": "x", "env_spec": gym.spec("CartPole-v1").to_json()}
    MinariStorage.read(tmp_path / "one-v3" / "data").update_metadata(about)
    assert main(["data", "convert", str(tmp_path / "one-v3"), str(tmp_path / "two-v4"), "--format", "arrow"]) == 0
    found = open_dataset(tmp_path / "two-v4")
    assert found.env == "CartPole-v1" and found.metadata["author"] == ["Ada"] and found.metadata["description"] == "x"
    assert found.metadata["dataset_id"] == "two-v4"
    assert len(list(MinariDataset(tmp_path / "two-v4" / "data").iterate_episodes())) == 3


def test_text_nested_infos_and_options_are_copied(tmp_path: Path) -> None:
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (tmp_path / "a" / "data").mkdir(parents=True)
    storage = MinariStorage.new(tmp_path / "a" / "data", *KINDS["vector"])
    infos = {"name": ["x", "y", "z"], "inner": {"speed": np.arange(3.0)}, "place": np.ones((3, 2))}
    ends = np.array([False, True])
    observations = np.zeros((3, 3), np.float32)
    storage.update_episodes(
        [EpisodeBuffer(None, 1, {"level": 2}, observations, np.zeros(2, int), np.ones(2), ends, ends, infos)]
    )
    for source, target, data_format in (("a", "b", "arrow"), ("b", "c", "parquet"), ("c", "d", "hdf5")):
        assert main(["data", "convert", str(tmp_path / source), str(tmp_path / target), "--format", data_format]) == 0
        [content] = open_dataset(tmp_path / target).contents([0])
        assert content.infos["name"].tolist() == ["x", "y", "z"]
        assert content.infos["inner"]["speed"].tolist() == [0, 1, 2] and content.infos["place"].shape == (3, 2)
        assert content.seed == 1 and content.options == {"level": 2}


def test_nothing_is_overwritten_and_a_failed_copy_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "set")
    assert main(["data", "convert", str(tmp_path / "set"), str(tmp_path / "set"), "--format", "arrow"]) == 2
    assert "is there already" in capsys.readouterr().err
    damaged = tmp_path / "set" / "data" / "main_data.hdf5"
    damaged.write_bytes(damaged.read_bytes()[:-500])
    assert main(["data", "convert", str(tmp_path / "set"), str(tmp_path / "copy"), "--format", "arrow"]) == 2
    assert "shorter than it says" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def columns(rows: int = 6) -> dict[str, Any]:
    """Two episodes of three rows: the first terminates, the second is truncated."""
    return {
        "observations": np.arange(2 * rows, dtype=np.float64).reshape(rows, 2), "actions": np.arange(rows) % 3,
        "rewards": np.ones(rows), "terminals": np.array([0, 0, 1, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 1], bool),
    }


def following(observations: Any, *ends: int) -> Any:
    """What followed every row, if episodes end with these rows: 100 more than they show."""
    found = np.roll(observations, -1, axis=0)
    found[list(ends)] = observations[list(ends)] + 100
    return found


def imported(tmp_path: Path, file: Path, *words: str) -> int:
    (tmp_path / "spaces.yaml").write_text(SPACES)
    out = ["--out", str(tmp_path / "out"), "--spaces", str(tmp_path / "spaces.yaml")]
    return main(["data", "import", str(file), *out, *words])


def test_the_names_of_d4rl_are_known_and_final_observations_come_from_the_next_ones(tmp_path: Path) -> None:
    content = columns()
    np.savez(tmp_path / "x.npz", **content, next_observations=following(content["observations"], 2, 5))
    assert imported(tmp_path, tmp_path / "x.npz") == 0
    first, second = open_dataset(tmp_path / "out").read([0, 1])
    assert first.observation.tolist() == [[0, 1], [2, 3], [4, 5], [104, 105]] and first.observation.dtype == np.float32
    assert first.terminated and not first.truncated and first.action.tolist() == [0, 1, 2]
    assert second.truncated and not second.terminated and second.length == 3


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_an_end_that_no_column_marks_shows_in_the_next_observations(
    dtype: type[np.floating[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {**columns(), "terminals": np.array([0, 0, 0, 0, 0, 1], bool)}
    content["observations"] += 0.1
    del content["timeouts"]
    np.savez(tmp_path / "x.npz", **content, next_observations=following(content["observations"], 2, 5).astype(dtype))
    assert imported(tmp_path, tmp_path / "x.npz") == 0
    first, second = open_dataset(tmp_path / "out").read([0, 1])
    assert first.length == second.length == 3 and first.observation[3, 0] == pytest.approx(104.1, abs=0.1)
    assert not first.terminated and not first.truncated and second.terminated
    assert "1 episodes are cut off where the next observation of a row is not" in capsys.readouterr().out


def test_what_is_not_a_number_is_refused_and_ends_no_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = columns()
    content["observations"][1] = np.nan
    np.savez(tmp_path / "x.npz", **content, next_observations=following(content["observations"], 2, 5))
    assert imported(tmp_path, tmp_path / "x.npz") == 2
    assert "episode 0 has nan in observations[0] at step 1" in capsys.readouterr().err


@pytest.mark.parametrize(("numbers", "said"), [([0, 0, 0, 1, 1, 1], False), ([0, 1, 0, 1, 0, 1], True)])
def test_rows_of_several_episodes_that_alternate_are_worth_a_word(
    numbers: list[int], said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = columns()
    np.savez(tmp_path / "x.npz", **content, episode=numbers, next_observations=content["observations"] + 1)
    assert imported(tmp_path, tmp_path / "x.npz") == 0
    assert ("2 episode numbers come again after rows of other" in capsys.readouterr().out) == said


def test_rows_without_a_number_of_their_episode_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", **columns(), episode=[0.0, 0.0, np.nan, np.nan, 1.0, 1.0])
    assert imported(tmp_path, tmp_path / "x.npz") == 2
    assert "column episode has no number in row 2; say" in capsys.readouterr().err


def test_that_ends_by_time_cannot_be_seen_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = columns()
    np.savez(tmp_path / "x.npz", **{name: content[name] for name in content if name != "timeouts"})
    assert imported(tmp_path, tmp_path / "x.npz") == 0
    assert "note: no column tells of ends by a limit of time" in capsys.readouterr().out
    np.savez(tmp_path / "x.npz", **content)
    assert imported(tmp_path, tmp_path / "x.npz", "--out", str(tmp_path / "other")) == 0
    assert "no column tells" not in capsys.readouterr().out


def test_without_next_observations_a_truncated_episode_gives_its_last_row_for_the_final_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", **columns())
    assert imported(tmp_path, tmp_path / "x.npz") == 0
    first, second = open_dataset(tmp_path / "out").read([0, 1])
    assert first.observation.tolist() == [[0, 1], [2, 3], [4, 5], [4, 5]] and first.length == 3
    assert second.observation.tolist() == [[6, 7], [8, 9], [10, 11]] and second.length == 2 and second.truncated
    shown = capsys.readouterr().out
    assert "1 truncated or cut-off episodes are a step shorter" in shown and "1 terminated episodes repeat" in shown


def test_columns_of_other_names_from_folders_of_arrays_and_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    content, folder = columns(), tmp_path / "arrays"
    folder.mkdir()
    for name, column in content.items():
        np.save(folder / f"{name}.npy", column)
    assert imported(tmp_path, folder, "--format", "arrow") == 0
    wanted = list(open_dataset(tmp_path / "out").read([0, 1]))
    flat = {
        "x": content["observations"][:, 0], "y": content["observations"][:, 1], "a": content["actions"],
        "r": content["rewards"], "end": content["terminals"], "which": [7, 7, 7, 2, 2, 2], "lp": np.full(6, -0.5),
    }
    pyarrow.parquet.write_table(pyarrow.table(flat), tmp_path / "x.parquet")
    words = "--observation x,y --action a --reward r --terminated end --episode which --log-prob lp"
    assert main(
        ["data", "import", str(tmp_path / "x.parquet"), "--out", str(tmp_path / "flat"), "--spaces",
         str(tmp_path / "spaces.yaml"), *words.split()]
    ) == 0  # fmt: skip
    first, second = open_dataset(tmp_path / "flat").read([0, 1])
    np.testing.assert_array_equal(first.observation, wanted[0].observation)
    np.testing.assert_array_equal(second.action, wanted[1].action)
    assert not second.truncated and second.behaviour["log_prob"].tolist() == [-0.5, -0.5]


def test_the_flat_hdf5_of_d4rl_takes_the_spaces_of_its_env(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, column in columns().items():
            file[name] = column
        file["actions"][...] = 0
        file["observations"].attrs["note"] = "kept out"
        del file["observations"]
        file["observations"] = np.zeros((6, 4), np.float64)
    assert main(["data", "import", str(tmp_path / "x.hdf5"), "--env", "CartPole-v1", "--out", str(tmp_path / "o")]) == 0
    found = open_dataset(tmp_path / "o")
    assert found.env == "CartPole-v1" and found.num_steps == 5


WRONG: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"rewards": None}, (), "has no column 'rewards'; name it with --reward"),
    ({}, ("--reward", "r"), "has no column 'r' for --reward"),
    ({"terminals": None, "timeouts": None}, (), "does not say where episodes end"),
    ({"rewards": np.ones(5)}, (), "differ in length"),
    ({"rewards": np.array([1, 1, 1, np.nan, 1, 1])}, (), "episode 1 has nan in rewards at step 0"),
    ({"actions": np.zeros(6)}, (), "has actions of type float64, but their space is Discrete(3)"),
    ({"actions": np.full(6, 3)}, (), "takes action 3 at step 0, outside Discrete(3)"),
    ({"observations": np.zeros((6, 3))}, (), "has observations of shape [3]"),
    ({"observations": np.array([None] * 6)}, (), "cannot be read: it holds Python objects, or is no NumPy file"),
    ({"terminals": np.array(["False"] * 6)}, (), "column terminated holds <U5, not true or false"),
    ({"terminals": np.zeros((6, 2))}, (), "column terminated has the shape (6, 2), and there are 6 rows"),
    ({"terminals": np.full(6, np.nan)}, (), "column terminated holds nan, which is neither true nor false"),
    ({}, ("--truncated", "observations"), "column truncated has the shape"),
    ({"step": np.arange(6)}, ("--truncated", "step"), "column truncated holds 2, which is neither true nor false"),
    ({"terminals": np.array(1)}, (), "is a lone number; give one value a row"),
    ({"next_obs": np.ones(6)}, (), "column next_observation has the shape (6,), and observation (6, 2)"),
]


@pytest.mark.parametrize(("changes", "words", "sentence"), WRONG, ids=[row[2] for row in WRONG])
def test_bad_columns_get_a_sentence_and_leave_nothing(
    changes: dict[str, Any], words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {name: column for name, column in {**columns(), **changes}.items() if column is not None}
    np.savez(tmp_path / "x.npz", **content)
    assert imported(tmp_path, tmp_path / "x.npz", *words) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error and "\n" not in error
    assert {path.name for path in tmp_path.iterdir()} == {"x.npz", "spaces.yaml"}
