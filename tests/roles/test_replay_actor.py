from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from pappus.config import EnvOptions
from pappus.edges.counters import SharedCounters
from pappus.envs.vector import make_env
from pappus.roles.acting import ReplayActor
from pappus.transports.memory import HeapBlock
from pappus.types import Timestep
from tests.envs import toy_envs

N = 2


class Sink:
    """Keeps what is recorded."""

    name = "replay"

    def __init__(self) -> None:
        self.open, self.lost, self.stored, self.steps_lost = True, 0, 0, 0
        self.records: list[Any] = []

    def ready(self) -> bool:
        return self.open

    def record(self, *step: Any) -> int:
        self.records.append(step)
        return int(np.count_nonzero(step[-1].valid))

    def open_steps(self) -> int:
        return 0


class Policy:
    """Counts: its state is how often it has acted."""

    name = "weights"

    def __init__(self) -> None:
        self.state, self.refreshes, self.known = np.zeros(N), 0, True
        self.seen: list[Any] = []

    def refresh(self) -> bool:
        self.refreshes += self.known
        return self.known

    def act(self, timestep: Timestep) -> tuple[Any, dict[str, Any]]:
        self.state = self.state + 1
        self.seen.append(timestep.observation.copy())
        return np.array([0, 1]), {"q": self.state}


class Setup:
    """An actor on counters."""

    def __init__(self, refresh_every: int = 1, env: Any = toy_envs.Counter) -> None:
        self.sink: Any = Sink()
        self.policy: Any = Policy()
        self.counters = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        made = make_env(env, N, 0, EnvOptions())
        self.actor = ReplayActor("actor-0", made, self.policy, self.sink, self.counters.counter(0), refresh_every)


def test_a_record_joins_what_was_seen_with_what_came_of_it() -> None:
    setup = Setup()
    for _ in range(8):
        assert setup.actor.step() is None
    shown = [seen.observation[:, 1].tolist() for seen, *_ in setup.sink.records]
    assert shown == [[t, t] for t in (0, 1, 2, 3, 4, 0, 1, 2)]
    assert [then.reward[0] for *_, then in setup.sink.records] == [1, 2, 3, 4, 0, 1, 2, 3]
    assert [state[0] for _, state, *_ in setup.sink.records] == list(range(8)), "the state before acting"
    assert [behaviour["q"][0] for *_, behaviour, _ in setup.sink.records] == list(range(1, 9))


def test_an_env_may_write_over_what_it_showed() -> None:
    setup = Setup(env=lambda: gym.make("CartPole-v1"))  # envs one by one share the memory of their observations
    for _ in range(4):
        setup.actor.step()
    for (recorded, *_), seen in zip(setup.sink.records, setup.policy.seen, strict=True):
        assert np.array_equal(recorded.observation, seen)


def test_only_valid_steps_are_counted() -> None:
    setup = Setup()
    for _ in range(6):  # the fifth only begins a new episode
        setup.actor.step()
    report = setup.actor.metrics.drain()
    assert setup.counters.total() == 5 * N and report["counts"]["env_steps"] == 5 * N


def test_nothing_happens_while_the_sink_is_not_ready() -> None:
    setup = Setup()
    setup.sink.open = False
    assert setup.actor.step() is setup.sink
    assert not setup.sink.records and not setup.policy.state.any() and setup.counters.total() == 0


def test_nothing_happens_before_there_are_weights() -> None:
    setup = Setup()
    setup.policy.known = False
    assert setup.actor.step() is setup.policy and not setup.sink.records


def test_weights_are_looked_for_every_so_many_steps_of_all_envs() -> None:
    setup = Setup(refresh_every=3 * N)
    for _ in range(7):
        setup.actor.step()
    assert setup.policy.refreshes == 3


def test_what_was_lost_is_reported_once() -> None:
    setup = Setup()
    setup.sink.open, setup.sink.lost = False, 12
    setup.actor.step()
    setup.actor.step()
    report = setup.actor.metrics.drain()
    assert report["counts"]["items_lost"] == 12 and setup.sink.lost == 0
    assert sum("12 unconfirmed items" in str(event) for event in report["events"]) == 1
