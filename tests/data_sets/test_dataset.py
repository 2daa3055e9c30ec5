"""Round trips: what is written is read, by us and by Minari, in every format and for every kind of space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

from pappus.data.dataset import lengths_and_returns, open_dataset
from pappus.data.episode import Episode
from pappus.data.metadata import DataFormat
from pappus.envs.spaces import action_converter
from tests.data_sets.kinds import FORMATS, KINDS, columns, episodes_of, written


def assert_same(found: Any, wanted: Any) -> None:
    def same(one: Any, other: Any) -> None:
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)

    optree.tree_map(same, found, wanted)


def assert_episodes_match(found: list[Episode], wanted: list[Episode]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert_same(one.observation, other.observation)
        assert_same((one.action, one.reward), (other.action, other.reward))
        assert_same(dict(one.behaviour), dict(other.behaviour))
        assert (one.terminated, one.truncated, one.seed) == (other.terminated, other.truncated, other.seed)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_come_back_to_the_bit(kind: str, data_format: DataFormat, tmp_path: Path) -> None:
    dataset = written(tmp_path, kind, data_format)
    wanted = episodes_of(*KINDS[kind])
    assert_episodes_match(list(dataset.read(range(3))), wanted)
    assert_episodes_match(list(dataset.read([2, 0])), [wanted[2], wanted[0]])
    assert (dataset.num_episodes, dataset.num_steps, dataset.stored_episodes()) == (3, 11, 3)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_minari_reads_what_we_write(kind: str, data_format: DataFormat, tmp_path: Path) -> None:
    from minari import MinariDataset

    written(tmp_path, kind, data_format)
    read, wanted = MinariDataset(tmp_path / "data"), episodes_of(*KINDS[kind])
    to_env = action_converter(KINDS[kind][1])[1]
    assert read.spec.total_steps == 11
    for episode, other in zip(read.iterate_episodes(), wanted, strict=True):
        np.testing.assert_array_equal(episode.rewards, other.reward)
        np.testing.assert_array_equal(episode.actions, to_env(other.action))
        np.testing.assert_array_equal(episode.infos["log_prob"][:-1], other.behaviour["log_prob"])
        assert bool(episode.terminations[-1]) == other.terminated
        assert all(len(leaf) == other.length + 1 for leaf in optree.tree_leaves(episode.observations))


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_we_read_what_minari_writes(kind: str, data_format: DataFormat, tmp_path: Path) -> None:
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    observation_space, action_space = KINDS[kind]
    observations, actions = columns(observation_space, 5), columns(action_space, 4)
    folder = tmp_path / "data"
    folder.mkdir()
    storage = MinariStorage.new(folder, observation_space, action_space, data_format=data_format, jpeg_encoding=False)
    end = np.arange(4) == 3
    storage.update_episodes([EpisodeBuffer(None, 7, None, observations, actions, np.ones(4), end, end, None)])
    [episode] = open_dataset(tmp_path).read([0])
    assert episode.terminated and episode.truncated and episode.seed == 7
    np.testing.assert_array_equal(episode.reward, np.ones(4, np.float32))
    stored_again = action_converter(action_space)[1](episode.action)
    if np.dtype(action_space.dtype).kind == "f":
        np.testing.assert_allclose(stored_again, actions, atol=1e-6)
    else:
        np.testing.assert_array_equal(stored_again, actions)


@pytest.mark.parametrize("data_format", FORMATS)
def test_actions_beyond_the_bounds_are_clipped_for_the_env_and_kept_for_the_learner(
    data_format: DataFormat, tmp_path: Path
) -> None:
    [first, *_] = episodes_of(*KINDS["bounds"])
    beyond = first._replace(action=np.float32([[1.5, 0.25], [-2, 0], [0, 0]]))
    dataset = written(tmp_path, "bounds", data_format, [beyond])
    [content] = dataset.contents([0])
    np.testing.assert_allclose(content.actions, [[1, 6.25], [-3, 5], [-1, 5]])
    [episode] = dataset.read([0])
    assert_same(episode.action, beyond.action)
    assert list(episode.behaviour) == ["log_prob"]


@pytest.mark.parametrize("data_format", FORMATS)
def test_lengths_and_returns_need_the_rewards_only(data_format: DataFormat, tmp_path: Path) -> None:
    dataset = written(tmp_path, "vector", data_format)
    lengths, returns = lengths_and_returns(dataset)
    wanted = episodes_of(*KINDS["vector"])
    assert lengths.tolist() == [episode.length for episode in wanted]
    np.testing.assert_allclose(returns, [episode.reward.sum() for episode in wanted], rtol=1e-6)


def test_a_set_is_continued_where_it_ended(tmp_path: Path) -> None:
    written(tmp_path)
    dataset = written(tmp_path)
    assert (dataset.num_episodes, dataset.num_steps) == (6, 22)
    assert_episodes_match(list(dataset.read([4])), [episodes_of(*KINDS["vector"])[1]])


def test_jpeg_pictures_are_read_and_said_to_be_lossy(tmp_path: Path) -> None:
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    from pappus.data.checks import check_dataset

    observation_space, action_space = KINDS["pictures"]
    pictures = np.full((3, 36, 40), 100, np.uint8)
    pictures[1] += 50
    for data_format in FORMATS:
        folder = tmp_path / data_format / "data"
        folder.mkdir(parents=True)
        storage = MinariStorage.new(folder, observation_space, action_space, data_format=data_format)
        ends = np.array([False, True])
        storage.update_episodes([EpisodeBuffer(None, None, None, pictures, np.zeros(2, int), np.ones(2), ends, ~ends)])
        dataset = open_dataset(tmp_path / data_format)
        [content] = dataset.contents([0])
        np.testing.assert_allclose(content.observations, pictures, atol=2)
        assert "lossy" in check_dataset(dataset)[0]
