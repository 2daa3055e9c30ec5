"""The inference server against a request server that the test holds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch

from pappus.accelerator import Accelerator
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig
from pappus.edges.device import DeviceQueue, DeviceWeights
from pappus.edges.loan import BufferLoan
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.networks.flat import FlatParameters
from pappus.roles.acting import ActingNetwork
from pappus.roles.cpu_inference import CpuInference
from pappus.roles.device_network import DeviceNetwork
from pappus.roles.gpu_inference import GpuInference
from pappus.roles.inference_server import InferenceServer, InferenceSettings
from pappus.roles.prefetcher import Prefetcher
from pappus.transports.memory import CountingNotifier, HeapBlock
from pappus.types import OWN, ArraySpec, DiscreteAction, EnvSpec, Unroll, map_leaves, unroll_spec
from tests.roles.request_server_tools import FakeCall, FakeRequestServer

T = 3
ENV = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(2))
CPU = Accelerator("cpu")


class Setup:
    """A server in either place, and what it delivers."""

    def __init__(self, place: str, batch_size: int = 2, capacity: int = 2, max_envs: int = 0) -> None:
        algorithm = VTrace(VTraceConfig(), ENV, NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4))
        torch.manual_seed(0)
        network: Any = algorithm.build_network()
        flat = FlatParameters(network)
        self.request_server, self.network = FakeRequestServer(ENV), network

        def spec(num_envs: int) -> Unroll:
            return unroll_spec(ENV, algorithm.behaviour, network.state_spec, T, num_envs)

        settings = InferenceSettings(spec, T, batch_size, max_envs, deadline=0.0)
        self.prefetcher: Prefetcher | None = None
        if place == "host":
            block = HeapBlock(*RingQueue.footprint(spec(batch_size), 1, capacity))
            queue = RingQueue("batches", spec(batch_size), 1, capacity, block)
            weights = FlatWeights("weights", flat.size, HeapBlock(*FlatWeights.footprint(flat.size)))
            weights.publish(flat.values.detach().numpy(), 0)
            acting = ActingNetwork(algorithm, weights, 5, "float32")
            sinks = [queue.sink(0)]
            self.server: InferenceServer[Any] = CpuInference("inference", self.request_server, acting, sinks, settings)
            self.source: Any = queue.source()
        else:
            batches = DeviceQueue("batches", spec(batch_size), capacity, CPU, [CountingNotifier(), CountingNotifier()])
            nearby = DeviceWeights("weights", flat.size, CPU, CountingNotifier())
            nearby.publish(flat.values.detach(), 0)
            loan = BufferLoan("unrolls", [CountingNotifier(), CountingNotifier()])
            acting_there = DeviceNetwork(algorithm, nearby, 5, "float32", CPU, smallest_batch=4)
            self.server = GpuInference("inference", self.request_server, acting_there, loan.lender(), settings, "cpu")
            self.prefetcher = Prefetcher("prefetch", loan.borrower(), batches.sink(), batch_size, "cpu")
            self.source = batches.source()
        self.time = 0

    def ask(
        self, env_group: Hashable, mark: float, num_envs: int = 1, first: bool = False, session: int = 1,
        origin: int = OWN,
    ) -> FakeCall:
        return self.request_server.ask(env_group, mark, num_envs, first, session, origin)

    def work(self) -> Any:
        """Until nobody can go on; what the server waits for."""
        while True:
            port = self.server.step()
            packing = self.prefetcher is not None and self.prefetcher.step() is None
            if port is not None and not packing:
                return port

    def counts(self) -> dict[str, float]:
        counts = dict(self.server.metrics.drain()["counts"])
        if self.prefetcher is not None:
            for name, value in self.prefetcher.metrics.drain()["counts"].items():
                name = name.removeprefix("inference/")
                counts[name] = counts.get(name, 0) + value
        return counts

    def play(self, env_group: Hashable, steps: int, num_envs: int = 1, session: int = 1) -> list[FakeCall]:
        """One env group alone, from its first observation on, for so many turns or until it gets no answer."""
        calls: list[FakeCall] = []
        while len(calls) < steps and all(call.answered for call in calls[-1:]):
            t = len(calls)
            calls.append(self.ask(env_group, float(t), num_envs, first=t == 0, session=session))
            self.work()
        return calls


@pytest.fixture(params=["host", "device"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_request_is_answered_with_an_action_of_the_policy(place: str) -> None:
    setup = Setup(place)
    call = setup.ask("a", 0.5, num_envs=3, first=True)
    assert setup.work() is setup.request_server
    assert call.answered and set(call.reply.tolist()) <= {0, 1}


def test_an_unroll_holds_observations_and_the_actions_that_were_answered(place: str) -> None:
    setup = Setup(place, batch_size=1)
    calls = setup.play("a", T + 1)
    (batch,) = setup.source.take(1)
    assert batch.observation[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert batch.action[:, 0].tolist() == [call.reply[0] for call in calls[:T]]
    assert batch.reward[:, 0].tolist() == [1, 2, 3] and batch.first[:, 0].tolist() == [True, False, False, False]
    assert batch.version[:, 0].tolist() == [0, 0, 0]


def test_the_learners_network_computes_the_recorded_log_probabilities_again_in_every_unroll(place: str) -> None:
    setup = Setup(place, batch_size=2)
    setup.play("a", 2 * T + 1, num_envs=2)
    for batch in setup.source.take(2):
        tensors = map_leaves(torch.as_tensor, batch)
        output = setup.network(tensors.observation, tensors.first, tensors.state)
        log_prob = output.policy[:-1].log_softmax(-1).gather(-1, tensors.action.unsqueeze(-1)).squeeze(-1)
        assert torch.allclose(log_prob, tensors.behaviour["log_prob"], atol=1e-5)


def test_env_groups_of_any_width_share_a_batch_and_spill_into_the_next(place: str) -> None:
    setup = Setup(place, batch_size=4)
    setup.play("three", T + 1, num_envs=3)
    assert setup.source.take(1) is None
    setup.play("two", T + 1, num_envs=2)
    assert setup.source.take(1) is not None and setup.source.take(2) is None


def test_requests_that_wait_together_share_one_forward_pass(place: str) -> None:
    setup = Setup(place)
    calls = [setup.ask(env_group, 1.0, first=True) for env_group in range(3)]
    setup.work()
    report = setup.server.metrics.drain()
    assert all(call.answered for call in calls)
    assert report["counts"]["batches"] == 2, "half of the envs at a time, so that the others can be stepped meanwhile"


def test_a_batch_is_no_wider_than_allowed(place: str) -> None:
    setup = Setup(place, max_envs=1)
    for env_group in range(3):
        setup.ask(env_group, 1.0, first=True)
    setup.work()
    assert setup.server.metrics.drain()["counts"]["batches"] == 3


def test_an_env_group_whose_unroll_finds_no_room_waits_and_others_go_on(place: str) -> None:
    setup = Setup(place, batch_size=1, capacity=1)
    waiting = setup.play("fast", 100)[-1]
    assert not waiting.answered and setup.work().name == setup.server._outlet().name
    assert all(call.answered for call in setup.play("slow", 2))
    assert setup.source.take(1) is not None
    setup.source.release()
    setup.work()
    assert waiting.answered


def test_an_env_group_that_left_frees_its_place_and_its_unfinished_steps_are_counted(place: str) -> None:
    setup = Setup(place, batch_size=8)
    setup.play("a", 3, num_envs=2)
    setup.request_server.leaving = ["a"]
    setup.work()
    counts = setup.counts()
    assert counts["steps_received"] == counts["steps_dropped"] == 4 and not setup.server._group_states


def test_an_env_group_that_left_with_a_request_in_flight_does_not_come_back(place: str) -> None:
    setup = Setup(place)
    setup.play("a", 2)
    setup.ask("a", 2.0)
    setup.request_server.leaving = ["a"]
    setup.work()
    assert not setup.server._group_states and not setup.server._due


def test_another_session_starts_clean(place: str) -> None:
    setup = Setup(place, batch_size=1)
    setup.play("a", 3)
    setup.play("a", T + 1, session=2)
    (batch,) = setup.source.take(1)
    assert batch.observation[:, 0, 0].tolist() == [0, 1, 2, 3], "nothing of the first session is in it"
    assert all((torch.as_tensor(leaf) == 0).all() for part in batch.state for leaf in part)
    assert setup.counts()["steps_dropped"] == 2


def test_every_step_received_is_delivered_or_counted_as_dropped_at_the_end(place: str) -> None:
    setup = Setup(place, batch_size=4, capacity=9)
    setup.play("a", 6, num_envs=3)
    setup.play("b", 9, num_envs=2)
    setup.play("c", 3, num_envs=1)
    delivered = 0
    while (batches := setup.source.take(1)) is not None:
        delivered += int(batches[0].valid.sum())
        setup.source.release()
    setup.server.close()
    if setup.prefetcher is not None:
        setup.prefetcher.close()
    counts = setup.counts()
    assert counts["steps_received"] == 3 * 5 + 2 * 8 + 1 * 2
    assert counts["steps_received"] == delivered + counts["steps_dropped"] and setup.request_server.closed


def test_episodes_are_reported_once_with_the_returns_that_came(place: str) -> None:
    setup = Setup(place)
    setup.play("a", 2)
    call = setup.ask("a", 1.0)
    call.request.episode_return[0], call.request.episode_length[0] = 12.5, 2
    setup.work()
    report = setup.server.metrics.drain()
    assert report["episodes"] == [[12.5, 2.0]] and report["counts"]["episodes"] == 1


def test_without_weights_requests_wait(place: str) -> None:
    setup = Setup(place)
    network: Any = setup.server._network
    network.version, network._weights = -1, FlatWeights("weights", 1, HeapBlock(*FlatWeights.footprint(1)))
    call = setup.ask("a", 1.0, first=True)
    assert setup.work() is network and not call.answered


def test_the_limit_of_a_batch_is_one_that_needs_no_padding() -> None:
    algorithm = VTrace(VTraceConfig(), ENV, NetworkConfig(hidden_sizes=(8,)))
    size = FlatParameters(algorithm.build_network()).size
    weights = DeviceWeights("weights", size, CPU, CountingNotifier())
    padded = DeviceNetwork(algorithm, weights, 5, "float32", CPU, smallest_batch=32)
    assert [padded.round_down(envs) for envs in (7, 32, 63, 64, 1200)] == [7, 32, 32, 64, 1024]
    assert DeviceNetwork(algorithm, weights, 5, "float32", CPU, smallest_batch=0).round_down(1200) == 1200


def test_an_env_group_that_leaves_while_its_unroll_is_lent_gives_its_rows_back_when_that_returns() -> None:
    setup = Setup("device", batch_size=2)
    server: Any = setup.server
    store = server._device_network.store
    for t in range(T + 1):
        setup.ask("a", float(t), first=t == 0)
        setup.server.step()
        setup.server.step()
    assert len(store._buffers) == 3
    setup.request_server.leaving.append("a")
    setup.server.step()
    assert len(store._buffers) == 1, "the one that is lent"
    assert setup.prefetcher is not None and setup.prefetcher.step() is None
    setup.server.step()
    assert not store._buffers


def test_a_store_that_grows_is_written_to_by_the_batches_that_follow() -> None:
    setup = Setup("device", batch_size=2)
    setup.play("a", T + 1)
    server: Any = setup.server
    before = server._device_network.store.spare
    setup.play("b", T + 1, num_envs=1)
    assert server._device_network.store.spare > before
    batch = setup.source.take(1)
    assert batch is not None and batch[0].observation[:, :, 0].tolist() == [[t, t] for t in range(T + 1)]
