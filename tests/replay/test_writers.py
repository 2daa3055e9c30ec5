from __future__ import annotations

import numpy as np
import optree

from pappus.replay.writers import UnrollWriter
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Timestep, Unroll, unroll_spec

T, N = 3, 2
SPEC = unroll_spec(
    EnvSpec({"x": ArraySpec((), "float32")}, DiscreteAction(4)), {"log_prob": ArraySpec((), "float32")},
    (ArraySpec((5,), "float32"),), T, N,
)


def slot() -> Unroll:
    empty: Unroll = optree.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), SPEC)
    return empty


def timestep(t: int) -> Timestep:
    return Timestep(
        {"x": np.full(N, t, np.float32)}, np.array([t % 4 == 0, False]), np.full(N, t, np.float32),
        np.ones(N, np.float32), np.array([t % 4 != 0, True]),
    )


def write(writer: UnrollWriter, into: Unroll, start: int) -> None:
    writer.begin(into, timestep(start), (np.full((N, 5), start),))
    for t in range(start, start + T):
        writer.append(np.full(N, t % 4), {"log_prob": np.full(N, -t)}, start, timestep(t + 1))


def test_action_and_reward_stand_beside_the_observation_they_follow() -> None:
    into = slot()
    write(UnrollWriter(T), into, 5)
    assert into.observation["x"][:, 0].tolist() == [5, 6, 7, 8]
    assert into.action[:, 0].tolist() == [1, 2, 3]
    assert into.reward[:, 0].tolist() == [6, 7, 8], "reward[t] was earned on the way to observation[t + 1]"
    assert into.first[:, 0].tolist() == [False, False, False, True]
    assert into.valid[:, 0].tolist() == [True, True, False]
    assert into.behaviour["log_prob"][:, 1].tolist() == [-5, -6, -7]
    assert (into.version == 5).all() and (into.state[0] == 5).all()


def test_consecutive_unrolls_share_one_observation_and_no_transition() -> None:
    writer, one, two = UnrollWriter(T), slot(), slot()
    write(writer, one, 0)
    assert writer.full
    write(writer, two, T)
    assert one.observation["x"][-1, 0] == two.observation["x"][0, 0]
    assert [*one.reward[:, 0], *two.reward[:, 0]] == [1, 2, 3, 4, 5, 6]


def test_a_writer_goes_on_in_a_half_written_slot() -> None:
    whole, half = slot(), slot()
    write(UnrollWriter(T), whole, 0)
    writer = UnrollWriter(T)
    writer.begin(half, timestep(0), (np.zeros((N, 5)),))
    writer.append(np.zeros(N, int), {"log_prob": np.zeros(N)}, 0, timestep(1))
    successor = UnrollWriter(T)
    successor.resume(half, writer.time)
    for t in (1, 2):
        successor.append(np.full(N, t % 4), {"log_prob": np.full(N, -t)}, 0, timestep(t + 1))
    assert successor.full
    assert all((a == b).all() for a, b in zip(optree.tree_leaves(whole), optree.tree_leaves(half), strict=True))
