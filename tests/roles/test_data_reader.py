"""Items of data are those that an actor would have made of the same steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from pappus.core import ItemRules
from pappus.data.dataset import DatasetWriter, open_dataset
from pappus.data.episode import Episode
from pappus.data.facts import best_episodes, episode_facts
from pappus.data.reading import for_ever
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.recording.logged import Logged, items_of
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from pappus.replay.tables import table as tables
from pappus.replay.tables.rate_limiters import min_size
from pappus.roles.data_reader import DataReader
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Timestep, leaves_of
from tests.data_tools import random_episodes
from tests.recording.streams import STATE, dqn, r2d2

SPEC = EnvSpec({"row": ArraySpec((), "int64"), "where": ArraySpec((2,), "float32")}, DiscreteAction(5))
PLAIN = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3))
ALGORITHMS: dict[str, Any] = {
    "1 step": dqn(1), "3 steps": dqn(3), "sequences": r2d2(2, 5, 3), "sequences without burn-in": r2d2(0, 4, 2),
}


def replay_for(algorithm: ItemRules, items: int, frame_stack: int = 1) -> DirectReplay:
    layout = layout_for(replace(SPEC, frame_stack=frame_stack), Logged(algorithm.experience), STATE)
    table = tables.Table(TABLE, "fifo", "fifo", min_size(items), items, layout.signature, 1, lead=layout.lead)
    return DirectReplay(ReplaySpec(layout, table, 20_000, 1, 0.0, seed=0))


def expected_items(algorithm: ItemRules, episodes: list[Episode]) -> int:
    lengths, ends = (np.array([getattr(one, name) for one in episodes]) for name in ("length", "terminated"))
    return int(items_of(algorithm.experience, lengths, ends).sum())


def read_all(replay: DirectReplay, episodes: list[Episode], lanes: int, items: int) -> None:
    reader = DataReader("reader-0", SPEC, lambda: iter(episodes), lanes, replay.sink(lanes), items)
    while reader.step() is None:
        pass


def all_items(replay: DirectReplay) -> list[bytes]:
    """Every item, as bytes of all that a learner is given."""
    client, spec = Client.of(replay.service), replay._spec
    client.move_bounds(TABLE, min_size=1)
    batch = client.try_sample(TABLE, client.info(TABLE)["size"], spec.layout.trajectory())
    assert batch is not None
    sequences = not hasattr(spec.layout, "seen_columns")
    leaves = [np.asarray(leaf) for leaf in leaves_of(spec.layout.batch(batch.data))]
    count = len(batch.keys)
    return [
        b"".join(np.ascontiguousarray(leaf[:, i] if sequences and len(leaf) != count else leaf[i]).tobytes()
                 for leaf in leaves)
        for i in range(count)
    ]


def as_one_env(episode: Episode) -> Iterator[tuple[Any, ...]]:
    """What an actor with one env would record of an episode, step by step."""
    for row in range(episode.length + 1):
        last = row == episode.length
        observation = {key: leaf[row : row + 1] for key, leaf in episode.observation.items()}
        action = np.zeros(1, np.int64) if last else episode.action[row : row + 1]
        reward = np.zeros(1, np.float32) if last else episode.reward[row : row + 1]
        over = last or (episode.terminated and row == episode.length - 1)
        discount, valid = np.array([0.0 if over else 1.0], np.float32), np.array([not last])
        seen = Timestep(observation, np.array([row == 0]), reward, discount, valid)
        yield seen, (), action, {}, seen._replace(first=np.array([last]))


@pytest.mark.parametrize(
    ("name", "stack"), [*((name, 1) for name in ALGORITHMS), ("1 step", 3), ("3 steps", 4)]
)
@pytest.mark.parametrize("lanes", [1, 5, 40])
def test_items_are_those_of_an_actor_to_the_bit(name: str, stack: int, lanes: int) -> None:
    algorithm, episodes = ALGORITHMS[name], random_episodes(SPEC, 30)
    items = expected_items(algorithm, episodes)
    by_reader, by_actor = replay_for(algorithm, items, stack), replay_for(algorithm, items, stack)
    read_all(by_reader, episodes, lanes, items)
    sink = by_actor.sink(1)
    for step in (step for episode in episodes for step in as_one_env(episode)):
        assert sink.ready()
        sink.record(*step)
    sink.end()
    assert Counter(all_items(by_reader)) == Counter(all_items(by_actor))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_items_is_known_before_one_is_read(name: str, seed: int) -> None:
    algorithm, episodes = ALGORITHMS[name], random_episodes(SPEC, 25, seed)
    replay = replay_for(algorithm, 10_000)
    read_all(replay, episodes, 4, 10_000)
    assert replay.info()["inserts"] == expected_items(algorithm, episodes)


def test_the_table_opens_with_the_last_item_and_not_before() -> None:
    episodes = random_episodes(SPEC, 30, longest=300)
    items = expected_items(dqn(1), episodes)
    replay = replay_for(dqn(1), items)
    reader = DataReader("reader-0", SPEC, lambda: iter(episodes), 8, replay.sink(8), items)
    while reader.step() is None:
        if (size := replay.info()["size"]) < items:
            assert replay.take() is None, size
    assert replay.info()["size"] == items and replay.take() is not None


def test_after_a_reader_that_was_killed_halfway_every_item_is_there_once() -> None:
    episodes = random_episodes(SPEC, 60, longest=40)
    items = expected_items(dqn(2), episodes)
    replay, whole = replay_for(dqn(2), items), replay_for(dqn(2), items)
    read_all(whole, episodes, 8, items)
    killed = DataReader("reader-0", SPEC, lambda: iter(episodes), 8, replay.sink(8), items)
    while replay.info()["size"] < items // 2:
        assert killed.step() is None
    read_all(replay, episodes, 8, items)
    assert replay.info()["inserts"] > items
    assert Counter(all_items(replay)) == Counter(all_items(whole))


def test_a_successor_of_a_reader_that_was_through_reads_nothing() -> None:
    episodes = random_episodes(SPEC, 20)
    items = expected_items(dqn(1), episodes)
    replay = replay_for(dqn(1), items)
    for _ in range(2):
        read_all(replay, episodes, 4, items)
    assert replay.info()["inserts"] == items


def test_readers_share_every_pass_over_the_episodes_and_each_is_in_another_order() -> None:
    class Numbers:
        """A set whose episodes are their numbers."""

        def read(self, numbers: list[int]) -> Iterator[int]:
            return iter(numbers)

    readers: list[Any] = [for_ever(Numbers(), np.arange(7), 5, reader, 2) for reader in range(2)]  # type: ignore[arg-type]
    passes = [[*itertools.islice(readers[0], 4), *itertools.islice(readers[1], 3)] for _ in range(3)]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3


def test_the_best_episodes_are_those_with_the_highest_returns(tmp_path: Path) -> None:
    episodes = random_episodes(PLAIN, 20)
    writer = DatasetWriter(tmp_path, PLAIN, spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3))
    writer.add(episodes, lambda action: action)
    dataset = open_dataset(tmp_path)
    facts = episode_facts(dataset)
    returns = np.array([episode.reward.sum() for episode in episodes])
    assert np.allclose(facts.returns, returns, atol=1e-5)
    assert facts.lengths.tolist() == [episode.length for episode in episodes]
    assert facts.terminated.tolist() == [episode.terminated for episode in episodes]
    assert best_episodes(dataset, 0.25).tolist() == sorted(np.argsort(-returns)[:5].tolist())
    assert len(best_episodes(dataset, 0.001)) == 1
