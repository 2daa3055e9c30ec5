"""Items of recorded streams against what a plain loop over the streams says."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.config import NetworkConfig
from pappus.core import ReplayAlgorithm
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from pappus.replay.tables import table as tables
from pappus.types import DiscreteAction, EnvSpec
from tests.recording.streams import ENV, STATE, Row, Streams, dqn, ended, n_step, r2d2


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are handed over as soon as they are made, so that tests can look at them."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 1)

GAMMA, SCALE, SMALLEST = 0.9, 0.5, 1e-6
MIXED = (False, True, False, True)
"""Envs that are reset in the next step and in the same one, side by side."""


def recorded(streams: Streams, algorithm: ReplayAlgorithm, env: EnvSpec = ENV) -> tuple[Any, Any]:
    """Every item once, as algorithms take them, and the priorities with which they came."""
    layout = layout_for(env, algorithm, STATE)
    table = tables.queue(TABLE, 5000, layout.signature, layout.lead)
    replay = DirectReplay(ReplaySpec(layout, table, 20_000, 1, 0.0, seed=0))
    sink = replay.sink(len(streams.same_step))
    for step in streams.steps():
        assert sink.ready()
        sink.record(*step)
    assert sink.ready() and sink.lost == 0
    client = Client.of(replay.service)
    batch = client.try_sample(TABLE, client.info(TABLE)["size"], layout.trajectory())
    assert batch is not None
    return layout.batch(batch.data), batch.info.priorities


class TestTransitions:
    """From every valid step on, once its last observation is there."""

    @staticmethod
    def expected(streams: Streams, n: int) -> dict[tuple[int, int], tuple[Row, float, float, Row, float]]:
        """(row, n-step sum, discount, row to bootstrap from, |δ|) by env and row."""
        found = {}
        for rows in streams.episodes():
            for start, row in enumerate(rows):
                total, factor, after = n_step(rows, start, n, GAMMA, SCALE)
                if not row.valid or (factor and after == len(rows)):
                    continue
                last = rows[min(after, len(rows) - 1)]
                error = abs(total + factor * last.value - row.q)
                found[row.env, row.row] = (row, total, factor, last, error)
        return found

    @pytest.mark.parametrize("n", [1, 2, 3, 5])
    @pytest.mark.parametrize("seed", range(4))
    def test_every_valid_step_begins_one_item_which_is_the_literal_sum(self, n: int, seed: int) -> None:
        streams = Streams(MIXED, 90, seed)
        items, priorities = recorded(streams, dqn(n, GAMMA, SCALE))
        expected = self.expected(streams, n)
        begun = [(int(env), -int(row)) for env, row in items.observation["where"]]
        assert Counter(begun) == Counter(expected.keys())
        for i, key in enumerate(begun):
            row, total, factor, last, error = expected[key]
            assert (items.observation["row"][i], items.action[i]) == (row.row, row.action)
            assert items.reward[i] == pytest.approx(total, abs=1e-5)
            assert items.discount[i] == pytest.approx(factor, abs=1e-6)
            assert priorities[i] == pytest.approx(error + SMALLEST, abs=1e-5)
            if factor:
                assert items.next_observation["row"][i] == last.row
                assert items.next_observation["where"][i].tolist() == [last.env, -last.row]

    def test_only_the_newest_steps_wait_for_an_item(self) -> None:
        streams = Streams(MIXED, 90, 0)
        begun = set(self.expected(streams, 3))
        missing = [r for rows in streams.rows for r in rows if r.valid and (r.env, r.row) not in begun]
        assert missing and min(row.row for row in missing) >= 90 - 3

    @pytest.mark.parametrize(("n", "discounts"), [(1, [0.9, 0.0]), (3, [0.0, 0.0])])
    def test_a_terminated_episode_makes_its_items_at_once(self, n: int, discounts: list[float]) -> None:
        streams = Streams((False,), 2, 0)
        streams.rows = [[Row(0, 0, True, 1, 0.5, 2.0, 1.0, 1.0, True), Row(0, 1, False, 2, 0.25, 3.0, 4.0, 0.0, True)]]
        items, priorities = recorded(streams, dqn(n, GAMMA))
        assert items.discount.tolist() == pytest.approx(discounts)
        sums = [1.0 + GAMMA * (3.0 if n == 1 else 4.0) - 0.5, 4.0 - 0.25]
        assert priorities.tolist() == pytest.approx([error + SMALLEST for error in sums])

    def test_a_truncated_episode_bootstraps_from_its_final_observation(self) -> None:
        streams = Streams((False,), 3, 0)
        streams.rows = [[
            Row(0, 0, True, 1, 0.5, 2.0, 1.0, 1.0, True), Row(0, 1, False, 2, 0.25, 3.0, 4.0, 1.0, True),
            Row(0, 2, False, 3, 0.0, 10.0, 0.0, 0.0, False),
        ]]
        items, priorities = recorded(streams, dqn(5, GAMMA))
        assert items.next_observation["row"].tolist() == [2, 2]
        assert items.reward.tolist() == pytest.approx([1.0 + GAMMA * 4.0, 4.0])
        assert items.discount.tolist() == pytest.approx([GAMMA**2, GAMMA])
        assert priorities[1] == pytest.approx(4.0 + GAMMA * 10.0 - 0.25 + SMALLEST)

    @pytest.mark.parametrize("n", [1, 3])
    @pytest.mark.parametrize("seed", range(3))
    def test_stacks_show_what_the_network_saw_when_it_acted(self, n: int, seed: int) -> None:
        streams, frames = Streams(MIXED, 60, seed), 3
        env = EnvSpec(ENV.observation, DiscreteAction(5), frame_stack=frames)
        items, _ = recorded(streams, dqn(n, GAMMA), env)
        start = {(row.env, row.row): rows[0].row for rows in streams.episodes() for row in rows}

        def seen(env: int, row: int) -> list[list[int]]:
            back = range(row - frames + 1, row + 1)
            return [[env, -r] if r >= start[env, row] else [0, 0] for r in back]

        for now, then, discount in zip(
            items.observation["where"], items.next_observation["where"], items.discount, strict=True
        ):
            assert now.tolist() == seen(int(now[-1][0]), -int(now[-1][1]))
            if discount:
                assert then.tolist() == seen(int(then[-1][0]), -int(then[-1][1]))


def test_an_episode_that_begins_unannounced_cuts_off_what_was_open() -> None:
    streams = Streams((False,), 6, 0)
    streams.rows = [[Row(0, t, t in (0, 2), 0, 0.0, 0.0, 1.0, 1.0, True) for t in range(6)]]
    items, _ = recorded(streams, dqn(3, GAMMA))
    assert items.observation["row"].tolist() == [2] and items.next_observation["row"].tolist() == [5]
    items, _ = recorded(streams, r2d2(0, 4, 2))
    assert items.observation["row"].T.tolist() == [[2, 3, 4, 5]]


SHAPES = [
    R2D2Config(GAMMA, n_step, burn_in, length, period, rescaling=rescaling, eta=0.9, reward_scale=SCALE)
    for burn_in, length, period, n_step, rescaling in [
        (0, 4, 2, 1, 0.0), (0, 5, 4, 3, 1e-3), (2, 6, 3, 2, 1e-3), (3, 4, 3, 5, 0.0), (4, 3, 1, 2, 1e-3),
        (5, 4, 2, 1, 0.0), (4, 8, 4, 3, 1e-3),
    ]
]


def shape_id(shape: R2D2Config) -> str:
    return f"{shape.burn_in}-{shape.length}-{shape.period}-n{shape.n_step}"


@functools.cache
def played(shape: R2D2Config, seed: int) -> tuple[Streams, Any, Any]:
    """Streams, and what was recorded of them."""
    streams = Streams(MIXED, 120, seed, end=0.04)
    return streams, *recorded(streams, R2D2(shape, ENV, NetworkConfig(core="lstm")))


class Piece(tuple[Row, ...]):
    """The rows of an expected sequence, and which of them is the first that is learnt from."""

    burn_in: int


def pieces(streams: Streams, shape: R2D2Config) -> dict[tuple[int, int], Piece]:
    """Expected sequences, by env and the first row that is learnt from."""
    found = {}
    for rows in streams.episodes():
        begin = stop = 0
        while begin + shape.length <= len(rows) or ended(rows[-1]):
            if stop == len(rows) or (begin == len(rows) - 1 and not rows[begin].valid):
                break
            stop = min(begin + shape.length, len(rows))
            start = max(0, begin - shape.burn_in)
            piece = Piece(rows[start:stop])
            piece.burn_in = begin - start
            found[rows[begin].env, rows[begin].row] = piece
            begin += shape.period
    return found


def usable(piece: Piece) -> list[bool]:
    return [row.valid and (row is not piece[-1] or row.discount == 0) for row in piece]


def scaled(x: float, epsilon: float) -> float:
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + epsilon * x) if epsilon else x


def unscaled(x: float, epsilon: float) -> float:
    root = np.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon))
    return float(np.sign(x) * (((root - 1) / (2 * epsilon)) ** 2 - 1)) if epsilon else x


def priority(piece: Piece, shape: R2D2Config) -> float:
    rows, sizes = [row._replace(valid=good) for row, good in zip(piece, usable(piece), strict=True)], []
    for t in range(piece.burn_in, len(rows)):
        if rows[t].valid:
            total, factor, after = n_step(rows, t, shape.n_step, shape.discount, shape.reward_scale)
            if factor:
                total += factor * unscaled(rows[after].value, shape.rescaling)
            sizes.append(abs(scaled(total, shape.rescaling) - rows[t].q))
    return shape.eta * max(sizes) + (1 - shape.eta) * sum(sizes) / len(sizes)


@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("seed", range(3))
class TestSequences:
    """Of one episode each, behind as much burn-in as there is."""

    def test_sequences_are_those_of_a_plain_loop(self, shape: R2D2Config, seed: int) -> None:
        streams, items, priorities = played(shape, seed)
        expected = pieces(streams, shape)
        where = items.observation["where"]
        begun = [(int(env), -int(row)) for env, row in where[shape.burn_in]]
        assert Counter(begun) == Counter(expected.keys())
        for i, key in enumerate(begun):
            piece = expected[key]
            at = slice(shape.burn_in - piece.burn_in, shape.burn_in - piece.burn_in + len(piece))
            assert where[at, i].tolist() == [[row.env, -row.row] for row in piece]
            assert items.observation["row"][at, i].tolist() == [row.row for row in piece]
            for name in ("first", "action", "discount"):
                assert getattr(items, name)[at, i].tolist() == [getattr(row, name) for row in piece]
            assert items.reward[at, i].tolist() == pytest.approx([SCALE * row.reward for row in piece])
            assert items.valid[at, i].tolist() == usable(piece)
            assert not any(np.delete(flags[:, i], np.r_[at]).any() for flags in (items.valid, items.first))
            assert priorities[i] == pytest.approx(priority(piece, shape) + SMALLEST, rel=1e-4, abs=1e-5)

    def test_every_transition_of_an_ended_episode_is_learned_from(self, shape: R2D2Config, seed: int) -> None:
        streams, items, _ = played(shape, seed)
        trained, rows = items.valid[shape.burn_in :], items.observation["where"][shape.burn_in :]
        learnt = {(int(env), -int(row)) for env, row in rows[trained]}
        there = {(r.env, r.row) for rows in streams.episodes() if ended(rows[-1]) for r in rows if r.valid}
        assert there and not there - learnt

    def test_no_sequence_reaches_over_an_episodes_end(self, shape: R2D2Config, seed: int) -> None:
        streams, items, _ = played(shape, seed)
        episode = {(r.env, r.row): i for i, rows in enumerate(streams.episodes()) for r in rows}
        for i in range(items.valid.shape[1]):
            rows = items.observation["where"][:, i][items.valid[:, i]]
            assert len({episode[int(env), -int(row)] for env, row in rows}) == 1
            assert not items.first[shape.burn_in + 1 :, i].any()

    def test_the_state_is_that_before_a_sequences_first_row(self, shape: R2D2Config, seed: int) -> None:
        streams, items, _ = played(shape, seed)
        expected = pieces(streams, shape)
        _, (one, other) = items.state
        for i, (env, row) in enumerate(items.observation["where"][shape.burn_in]):
            first = expected[int(env), -int(row)][0]
            assert one[i].tolist() == [first.env + 0.5, -first.row + 0.5] and other[i].tolist() == [first.env - 0.5]

    def test_an_episodes_first_sequence_begins_behind_the_burn_in(self, shape: R2D2Config, seed: int) -> None:
        _, items, _ = played(shape, seed)
        rows = items.observation["where"]
        starts = {(int(env), -int(row)) for env, row in rows[items.first]}
        begun = {(int(env), -int(row)) for env, row in rows[shape.burn_in][items.first[shape.burn_in]]}
        assert starts and begun == starts


def test_items_that_are_inserted_in_groups_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, algorithm = Streams(MIXED, 200, seed=4), dqn(3, GAMMA, SCALE)
    at_once, priorities = recorded(streams, algorithm)
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 7)
    later, same = recorded(streams, algorithm)
    count = len(later.reward)
    assert len(at_once.reward) - 7 < count <= len(at_once.reward)
    assert np.array_equal(later.reward, at_once.reward[:count]) and np.array_equal(same, priorities[:count])
    assert np.array_equal(later.next_observation["row"], at_once.next_observation["row"][:count])
