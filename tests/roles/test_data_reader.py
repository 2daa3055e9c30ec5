"""Items of data are those that an actor would have made of the same steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pappus.core import ItemRules
from pappus.data.episode import Episode
from pappus.recording.counts import items_of
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.recording.logged import Logged
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from pappus.replay.tables import table as tables
from pappus.replay.tables.rate_limiters import min_size
from pappus.roles.data_reader import DataReader
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Timestep, leaves_of
from tests.data_tools import random_episodes
from tests.recording.streams import STATE, dqn, r2d2

SPEC = EnvSpec({"row": ArraySpec((), "int64"), "where": ArraySpec((2,), "float32")}, DiscreteAction(5))
STACKED = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(5), frame_stack=3)
ALGORITHMS: dict[str, Any] = {
    "1 step": dqn(1), "3 steps": dqn(3), "sequences": r2d2(2, 5, 3), "sequences without burn-in": r2d2(0, 4, 2),
}


def replay_for(algorithm: ItemRules, items: int, spec: EnvSpec = SPEC) -> DirectReplay:
    state: Any = ((), STATE[1]) if spec is SPEC else (spec.observation, STATE[1])
    layout = layout_for(spec, Logged(algorithm.experience), state)
    table = tables.Table(TABLE, "fifo", "fifo", min_size(items), items, layout.signature, 1, lead=layout.lead)
    return DirectReplay(ReplaySpec(layout, table, 20_000, 1, 0.0, seed=0))


def expected_items(algorithm: ItemRules, episodes: list[Episode]) -> int:
    lengths, ends = (np.array([getattr(one, name) for one in episodes]) for name in ("length", "terminated"))
    return int(items_of(algorithm.experience, lengths, ends).sum())


def read_all(replay: DirectReplay, episodes: list[Episode], lanes: int, items: int, spec: EnvSpec = SPEC) -> DataReader:
    reader = DataReader("reader-0", spec, lambda: iter(episodes), lanes, replay.sink(lanes), items)
    while reader.step() is None:
        pass
    return reader


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


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("lanes", [1, 5, 40])
def test_items_are_those_of_an_actor_to_the_bit(name: str, lanes: int) -> None:
    algorithm, episodes = ALGORITHMS[name], random_episodes(SPEC, 30)
    items = expected_items(algorithm, episodes)
    by_reader, by_actor = replay_for(algorithm, items), replay_for(algorithm, items)
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
