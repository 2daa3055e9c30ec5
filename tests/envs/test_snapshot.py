"""Snapshots are plain data, keep what is shared shared, and are refused where state could hide."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs import make_env
from pappus.envs.snapshot import _Obstacle, _Writer, capture, restore
from pappus.errors import RunError
from pappus.telemetry.state_digest import digest
from tests.contracts.env_contract import assert_plain
from tests.envs.toy_envs import Counter


class Holder(Counter):
    """An env with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)


def round_trip(live: Holder, **attributes: Any) -> Holder:
    snapshot = capture(Holder(**attributes))
    assert snapshot is not None
    assert_plain(snapshot)
    restore(live, snapshot)
    return live


def test_every_supported_type_comes_back_as_it_was() -> None:
    before = {
        "array": np.arange(3),
        "scalar": np.float32(1.5),
        "items": [1, 2.5, "three", None, True],
        "pair": (np.ones(2), {"key": 1}),
        "by_number": {1: "one"},
        "newest": deque([1, 2], maxlen=3),
        "members": {1, 2},
    }
    after = vars(round_trip(Holder(), **before))
    for name, value in before.items():
        assert type(after[name]) is type(value) and repr(after[name]) == repr(value)
    assert after["newest"].maxlen == 3


@pytest.mark.parametrize("source", [np.random.default_rng(1), np.random.RandomState(1)])
def test_random_sources_go_on_where_they_were(source: Any) -> None:
    source.random(3)
    live = round_trip(Holder(), source=source)
    expected = source.random(5)
    assert (vars(live)["source"].random(5) == expected).all()


def test_what_was_shared_stays_shared() -> None:
    state = np.zeros(2)
    live = round_trip(Holder(), state=state, last=state, history=[state])
    vars(live)["state"][0] = 7
    assert vars(live)["last"][0] == 7 and vars(live)["history"][0][0] == 7


def test_what_is_shared_only_in_the_live_env_is_told_apart() -> None:
    both = np.zeros(2)
    live = round_trip(Holder(start=both, state=both), start=np.zeros(2), state=np.ones(2))
    assert vars(live)["start"].tolist() == [0, 0] and vars(live)["state"].tolist() == [1, 1]


def test_functions_are_kept_and_younger_attributes_go() -> None:
    def mine() -> None: ...

    live = round_trip(Holder(function=mine, younger=1), function=print)
    assert vars(live)["function"] is mine and "younger" not in vars(live)


def test_the_snapshot_does_not_change_with_the_env() -> None:
    env = Holder(state=np.zeros(2))
    snapshot = capture(env)
    vars(env)["state"][0] = 7
    restore(env, snapshot)
    assert vars(env)["state"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"game": object()}, "Holder.game is a object, whose state is unknown"),
        ({"source": random.Random(1)}, "Holder.source is a Random"),
        ({"items": [{"file": open}, [iter(())]]}, r"Holder.items\[1\]\[0\] is a tuple_iterator"),
        ({"things": np.array([object()])}, "Holder.things is an array of object"),
        ((lambda memory: {"memory": memory, "window": memory[1:]})(np.zeros(3)), "window is a view"),
    ],
)
def test_state_that_could_hide_makes_a_snapshot_impossible(attributes: dict[str, Any], reason: str) -> None:
    env = Holder(**attributes)
    assert capture(env) is None
    with pytest.raises(_Obstacle, match=reason):
        _Writer().write(env, "Holder")


def test_a_snapshot_of_another_env_is_refused() -> None:
    with pytest.raises(RunError, match="snapshot has a CartPoleEnv"):
        restore(Counter(), capture(gym.make("CartPole-v1").unwrapped))


def test_an_env_that_cannot_be_snapshotted_gives_none() -> None:
    env = make_env(lambda: Holder(game=object()), 2, 0, EnvOptions())
    assert env.snapshot() is None
    assert env.no_snapshot() == "SyncVectorEnv.envs[0].game is a object, whose state is unknown"


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Counter])
def test_envs_of_one_seed_have_one_snapshot(env: Any) -> None:
    """Their spaces, too, which Gymnasium seeds from the system."""
    one, two = (digest(make_env(env, 2, 5, EnvOptions()).snapshot()) for _ in range(2))
    assert one == two
