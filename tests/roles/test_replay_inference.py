"""Central inference that records for replay, against a request server that the test holds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
import torch

from pappus.accelerator import Accelerator
from pappus.algorithms.dqn import EpsilonConfig
from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.config import NetworkConfig, ReplayConfig
from pappus.edges.counters import SharedCounters
from pappus.edges.device import DeviceWeights
from pappus.edges.weights import FlatWeights
from pappus.networks.flat import FlatParameters
from pappus.ops.q_learning import ladder
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.roles.acting import ActingNetwork
from pappus.roles.device_network import DeviceNetwork
from pappus.roles.gpu_replay_inference import GpuReplayInference
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.replay_inference import CpuReplayInference, ReplayInference
from pappus.transports.memory import CountingNotifier, HeapBlock
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Timestep
from tests.roles.request_server_tools import FakeCall, FakeRequestServer

CPU = Accelerator("cpu")
ENV = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3))
EXPECTED = 4
"""Envs that the server expects."""
BURN_IN, LENGTH, PERIOD = 2, 4, 2


class FakeSink:
    """Keeps what is recorded."""

    name = "replay"

    def __init__(self, envs: int) -> None:
        self.envs, self.open, self.closed, self.lost, self.stored, self.steps_lost = envs, True, False, 0, 0, 0
        self.records: list[tuple[Timestep, Any, Any, Any, Timestep]] = []

    def ready(self) -> bool:
        return self.open

    def record(self, seen: Timestep, state: Any, action: Any, behaviour: Any, then: Timestep) -> int:
        then = Timestep(*(np.copy(leaf) for leaf in then[:5]))  # a request is written over when it is answered
        self.records.append((seen, state, action, behaviour, then))
        return int(np.count_nonzero(then.valid))

    def open_steps(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True

    def explain(self) -> str:
        return f"the sink of {self.envs} envs is not ready"

    def clear(self) -> None: ...

    def fileno(self) -> int:
        return 100 + self.envs


class Setup:
    """A server with a recurrent network; `base` is the largest ε."""

    place = "host"

    def __init__(self, base: float = 0.0, open_sink: Any = None) -> None:
        config = R2D2Config(
            burn_in=BURN_IN, length=LENGTH, period=PERIOD, epsilon=EpsilonConfig(base=base, alpha=2.0)
        )
        self.algorithm = R2D2(config, ENV, NetworkConfig(hidden_sizes=(5,), core="lstm", core_size=4))
        torch.manual_seed(0)
        self.network: Any = self.algorithm.build_network()
        for parameter in self.network.parameters():
            torch.nn.init.normal_(parameter)
        flat = FlatParameters(self.network)
        weights = FlatWeights("weights", flat.size, HeapBlock(*FlatWeights.footprint(flat.size)))
        weights.publish(flat.values.detach().numpy(), 0)
        self.request_server, self.sinks = FakeRequestServer(ENV), list[FakeSink]()
        self.counters = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        settings = InferenceSettings(lambda _: None, 1, 1, deadline=0.0)  # type: ignore[arg-type, return-value]
        ports = (self.algorithm, open_sink or self.open_sink, self.counters.counter(0), EXPECTED, settings)
        self.server: ReplayInference[Any]
        if self.place == "host":
            acting = ActingNetwork(self.algorithm, weights, 5, "float32")
            self.server = CpuReplayInference("inference", self.request_server, acting, *ports)
        else:
            nearby = DeviceWeights("weights", flat.size, CPU, CountingNotifier())
            nearby.publish(flat.values.detach(), 0)
            there = DeviceNetwork(
                self.algorithm, nearby, 5, "float32", CPU, smallest_batch=4, observation=ENV.observation,
                recorded=lambda state: state,
            )
            self.server = GpuReplayInference("inference", self.request_server, there, *ports, self.network.state_spec)

    def open_sink(self, envs: int) -> Any:
        self.sinks.append(FakeSink(envs))
        return self.sinks[-1]

    def work(self) -> Any:
        """Until it cannot go on; what it waits for."""
        while (port := self.server.step()) is None:
            pass
        return port

    def play(self, env_group: Hashable, marks: list[float], num_envs: int = 1, session: int = 1) -> list[FakeCall]:
        """An episode that shows these marks, turn by turn."""
        calls = []
        for t, mark in enumerate(marks):
            calls.append(self.request_server.ask(env_group, mark, num_envs, first=t == 0, session=session))
            self.work()
        return calls

    def state_after(self, marks: list[float]) -> Any:
        """The recurrent state when an episode has shown these marks, and the values of the last."""
        state, q = self.network.initial_state(1), None
        with torch.no_grad():
            for t, mark in enumerate(marks):
                q, _, state = self.network(torch.full((1, 1, 2), mark), torch.tensor([[t == 0]]), state)
        return state[1], q


@pytest.fixture(params=["host", "device"], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the network is."""
    monkeypatch.setattr(Setup, "place", request.param)


def test_a_record_joins_what_was_seen_and_answered_with_what_came_of_it() -> None:
    setup = Setup(base=1.0)
    calls = setup.play("a", [0.0, 0.1, 0.2, 0.3], num_envs=2)
    (sink,) = setup.sinks
    assert sink.envs == 2 and all(call.answered for call in calls)
    assert np.allclose([seen.observation[:, 0] for seen, *_ in sink.records], [[0.0, 0.0], [0.1, 0.1], [0.2, 0.2]])
    assert [seen.first.tolist() for seen, *_ in sink.records] == [[True, True], [False, False], [False, False]]
    assert [action.tolist() for _, _, action, *_ in sink.records] == [call.reply.tolist() for call in calls[:3]]
    assert [then.reward[0] for *_, then in sink.records] == pytest.approx([0.1, 0.2, 0.3])


def test_env_groups_that_are_answered_together_are_recorded_apart() -> None:
    setup = Setup()
    env_groups = {0: 1, 1: 2, 2: 1, 3: 2}
    for t in range(3):
        for env_group, num_envs in env_groups.items():
            setup.request_server.ask(env_group, env_group + 0.1 * t, num_envs, first=t == 0)
        setup.work()
    assert setup.server.metrics.drain()["counts"]["batches"] < 3 * len(env_groups)
    for env_group, sink in enumerate(setup.sinks):
        assert sink.envs == env_groups[env_group]
        for t, (seen, _, _, behaviour, _) in enumerate(sink.records):
            _, q = setup.state_after([env_group + 0.1 * earlier for earlier in range(t + 1)])
            assert np.allclose(seen.observation, env_group + 0.1 * t)
            assert behaviour["value"].tolist() == pytest.approx([q.max().item()] * sink.envs, rel=1e-4)


def test_recorded_states_are_those_before_what_was_seen() -> None:
    setup = Setup()
    marks = [0.3, -0.2, 0.5, 0.1]
    setup.play("a", marks, num_envs=2)
    for t, (_, state, *_) in enumerate(setup.sinks[0].records):
        expected, _ = setup.state_after(marks[:t])
        for part, leaf in zip(state[1], expected, strict=True):
            assert part.shape == (2, 4)
            assert np.allclose(part, leaf.numpy(), atol=1e-5), t


def test_an_episode_begins_without_what_the_last_one_left_in_the_state() -> None:
    setup = Setup()
    setup.play("a", [2.0, -1.0, 3.0])
    setup.play("a", [0.3, -0.2, 0.5])
    said = [behaviour["value"][0] for *_, behaviour, _ in setup.sinks[0].records]
    expected = [setup.state_after([0.3, -0.2][: t + 1])[1].max().item() for t in range(2)]
    assert len(said) == 5 and said[3:] == pytest.approx(expected, rel=1e-4)
    assert not np.allclose(setup.sinks[0].records[3][1][1][0], 0), "the network resets it, where `first` says so"


def test_sequences_are_of_one_env_and_begin_with_the_state_it_had() -> None:
    made: list[DirectReplay] = []

    def open_sink(envs: int) -> Any:
        return made[0].sink(envs)

    setup = Setup(open_sink=open_sink)
    algorithm = setup.algorithm
    layout = layout_for(ENV, algorithm, setup.network.state_spec)
    table = layout.table(ReplayConfig(capacity=100, warm_up=5, tolerance=1e3), 32)
    made.append(DirectReplay(ReplaySpec(layout, table, 4000, 32, 1.0, seed=0)))
    marks = {env_group: [10.0 * env_group + 0.1 * t for t in range(13)] for env_group in (0, 1)}
    for t in range(13):
        for env_group in marks:
            setup.request_server.ask(env_group, marks[env_group][t], first=t == 0)
        setup.work()
    batch = made[0].source().take()
    assert batch is not None
    items, later = batch.items, 0
    for b in range(32):
        start = int(items.first[:, b].argmax())  # the first of an episode needs no burn-in
        shown = items.observation[start:, b, 0]
        env_group = int(shown[0] // 10)
        t = round((shown[0] - 10 * env_group) / 0.1)
        assert shown.tolist() == pytest.approx(marks[env_group][t : t + len(shown)])
        later += t > 0
        expected, _ = setup.state_after(marks[env_group][:t])
        for part, leaf in zip(items.state[1], expected, strict=True):
            assert np.allclose(part[b], leaf.numpy(), atol=1e-4)
    assert 0 < later < 32, "both kinds were drawn"


def epsilons(sink: FakeSink) -> list[float]:
    found: list[float] = sink.records[-1][3]["epsilon"].tolist()
    return found


def test_every_env_explores_to_a_degree_of_its_own_and_a_place_that_is_left_is_taken_again() -> None:
    setup = Setup(base=0.5)
    steps = ladder(np.arange(EXPECTED), EXPECTED, 0.5, 2.0)
    setup.play("a", [0.0, 0.1], num_envs=1)
    setup.play("b", [0.0, 0.1], num_envs=2)
    assert epsilons(setup.sinks[0]) == pytest.approx(steps[:1])
    assert epsilons(setup.sinks[1]) == pytest.approx(steps[1:3])
    setup.request_server.leaving = ["a"]
    setup.work()
    setup.play("c", [0.0, 0.1], num_envs=2)
    assert epsilons(setup.sinks[2]) == pytest.approx(steps[[0, 3]])
    setup.play("d", [0.0, 0.1], num_envs=1)
    assert epsilons(setup.sinks[3]) == pytest.approx(steps[:1]), "more than were expected explore as the first ones do"


def test_an_env_group_whose_table_lets_nothing_in_waits_and_others_go_on() -> None:
    setup = Setup()
    setup.play("a", [0.0, 0.1], num_envs=1)
    setup.play("b", [0.0, 0.1], num_envs=2)
    setup.sinks[1].open = False
    waiting = setup.request_server.ask("b", 0.2, 2)
    port = setup.work()
    assert port.name == "replay" and not waiting.answered
    assert port.fileno() == 102 and port.explain().startswith("the sink of 2 envs is not ready")
    assert all(call.answered for call in setup.play("a", [0.0, 0.1]))
    setup.sinks[1].open = True
    assert setup.work() is setup.request_server and waiting.answered


def test_an_env_group_that_left_while_it_was_stuck_is_waited_for_no_more() -> None:
    setup = Setup()
    for env_group, num_envs in (("a", 1), ("b", 2)):
        setup.play(env_group, [0.0, 0.1], num_envs)
        setup.sinks[-1].open = False
        setup.request_server.ask(env_group, 0.2, num_envs)
    assert setup.work().fileno() == 101
    setup.request_server.leaving = ["a"]
    assert setup.work().fileno() == 102 and setup.sinks[0].closed
    setup.request_server.leaving = ["b"]
    assert setup.work() is setup.request_server and setup.sinks[1].closed


class CountingSeats(dict[Hashable, Any]):
    """Counts how often somebody is looked up."""

    looked = 0

    def __getitem__(self, env_group: Hashable) -> Any:
        self.looked += 1
        return super().__getitem__(env_group)


def test_every_stuck_env_group_adds_the_same_work() -> None:
    def lookups(env_groups: int) -> int:
        setup = Setup()
        for env_group in range(env_groups):
            setup.play(env_group, [0.0, 0.1])
            setup.sinks[-1].open = False
            setup.request_server.ask(env_group, 0.2)
        setup.work()
        setup.server._group_states = group_states = CountingSeats(setup.server._group_states)
        setup.server.step()
        return group_states.looked

    assert 0 < lookups(20) - lookups(10) == lookups(30) - lookups(20)


def test_another_session_has_a_sink_and_a_state_of_its_own() -> None:
    setup = Setup()
    setup.play("a", [2.0, -1.0, 3.0])
    setup.play("a", [0.3, -0.2], session=2)
    assert [len(sink.records) for sink in setup.sinks] == [2, 1] and setup.sinks[0].closed
    assert not any(part.any() for part in setup.sinks[1].records[0][1][1])


def test_valid_steps_are_counted_when_they_are_recorded() -> None:
    setup = Setup()
    setup.play("a", [0.0, 0.1, 0.2], num_envs=2)
    assert setup.counters.total() == 4
    setup.play("a", [0.0, 0.1], num_envs=2)
    assert setup.counters.total() == 6, "the step that began a new episode led nowhere"


def test_what_a_sink_lost_is_reported_once() -> None:
    setup = Setup()
    setup.play("a", [0.0, 0.1])
    setup.sinks[0].lost = 12
    setup.request_server.ask("a", 0.2)
    setup.work()
    setup.request_server.ask("a", 0.3)
    setup.work()
    report = setup.server.metrics.drain()
    assert report["counts"]["items_lost"] == 12 and setup.sinks[0].lost == 0
    assert sum("12 unconfirmed items" in event for event in report["events"]) == 1


def test_at_the_end_all_sinks_are_closed() -> None:
    setup = Setup()
    setup.play("a", [0.0, 0.1])
    setup.play("b", [0.0, 0.1])
    setup.server.close()
    assert setup.request_server.closed and all(sink.closed for sink in setup.sinks)
