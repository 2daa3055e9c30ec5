"""Node agents of several nodes, in one process, over loopback: what roles of one node put in comes out on another."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pappus.config import WireConfig
from pappus.edges.calls import CallsEdge, SharedCalls
from pappus.edges.counters import CounterEdge, SharedCounters
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge, RingQueue
from pappus.edges.shared_parameters import SharedParametersEdge
from pappus.edges.weights import FlatWeights, WeightsEdge
from pappus.errors import RunError
from pappus.runtimes.node_agent import NodeAgent
from pappus.transports.fd_server import fetch_blocks
from pappus.transports.grpc_mirrors import METHOD, SERVICE, MirrorStream
from pappus.transports.mirrors import PortLocations
from pappus.transports.tls import Tls
from pappus.types import map_leaves
from tests.contracts.calls_contract import ACTION, ENVS, REQUEST, answer, ask, open_all, reply, take
from tests.contracts.queue_contract import SPEC, mark_of, put
from tests.process_tools import eventually

HOST = "127.0.0.1"


def edges() -> dict[str, Edge]:
    made = [
        QueueEdge("items", SPEC, producers=2, capacity=2),
        QueueEdge("held", SPEC, producers=2, capacity=1, after="weights"), WeightsEdge("weights", 3),
        CallsEdge("calls", REQUEST, ACTION, 2, 2, ENVS, WireConfig()), CounterEdge("steps", 2),
        SharedParametersEdge("shared_parameters", 3, 1),
    ]
    return {edge.name: edge for edge in made}


class Cluster:
    """Node agents, and the transports over their blocks."""

    def __init__(self) -> None:
        self.edges = edges()
        self.node_agents: dict[str, NodeAgent] = {}
        self.delivered: dict[tuple[str, str], int] = {}
        self.placements: dict[str, PortLocations] = {}

    def open(self, *nodes: str, token: str = "secret", tls: Tls | None = None) -> None:
        for node in nodes:
            self.node_agents[node] = NodeAgent(
                node, HOST, self.edges, token, lambda edge, at: self.delivered.get((edge, at), -1), tls
            )

    def place(self, edge: str, hub: str, epoch: int = 1, **ends: str) -> None:
        """Ends by number (`_0="a"`), each in its first epoch unless it says otherwise (`_0="a2"`)."""
        where = {int(end[1:]): (text[0], int(text[1:] or 1)) for end, text in ends.items()}
        placement = PortLocations(hub, epoch, self.node_agents[hub].address, where)
        for node_agent in self.node_agents.values():
            node_agent.place(edge, placement)

    def of(self, node: str, edge: str) -> Any:
        return self.edges[edge].open(self.node_agents[node].block(edge))

    def queue(self, node: str, name: str = "items") -> RingQueue:
        queue = self.of(node, name)
        assert isinstance(queue, RingQueue)
        return queue


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    for node_agent in cluster.node_agents.values():
        node_agent.close()


def take_all(queue: RingQueue, count: int) -> list[int]:
    """Marks of what the consumer takes, one after the other."""
    source, marks = queue.source(), []
    for _ in range(count):
        (slot,) = eventually(lambda: source.take(1), 10)
        marks.append(mark_of(slot))
        source.release()
    return marks


def put_when_free(queue: RingQueue, producer: int, mark: int) -> None:
    eventually(lambda: queue.sink(producer).acquire() is not None, 10)
    put(queue, producer, mark)


def test_a_consumer_gets_all_slots_of_near_and_far_producers_in_order(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("items", "a", _0="a", _1="b")
    near, far, marks = cluster.queue("a"), cluster.queue("b"), list[int]()
    consumer = threading.Thread(target=lambda: marks.extend(take_all(near, 40)))
    consumer.start()
    for i in range(20):
        put_when_free(near, 0, i)
        put_when_free(far, 1, 100 + i)
    consumer.join()
    assert [mark for mark in marks if mark < 100] == list(range(20))
    assert [mark for mark in marks if mark >= 100] == list(range(100, 120))
    messages, size = cluster.node_agents["a"].meter()["items"]
    assert messages >= 20 and size > 20 * sum(leaf.nbytes for leaf in near.ring(0).slots[0].observation.values())


def test_slots_arrive_bit_for_bit(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("items", "a", _0="a", _1="b")
    slot, random = cluster.queue("b").sink(1).acquire(), np.random.default_rng(0)
    assert slot is not None

    def fill(leaf: Any) -> None:
        leaf.view(np.uint8)[...] = random.integers(0, 2, leaf.view(np.uint8).shape)

    map_leaves(fill, slot)
    cluster.queue("b").sink(1).commit()
    source = cluster.queue("a").source()
    (taken,) = eventually(lambda: source.take(1), 10)
    map_leaves(np.testing.assert_array_equal, taken, slot)


def test_a_request_server_answers_near_and_far_request_clients(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("calls", "a", _0="a", _1="b")
    calls, far = cluster.of("a", "calls"), cluster.of("b", "calls")
    assert isinstance(calls, SharedCalls) and isinstance(far, SharedCalls)
    request_server, clients = calls.server(), [calls.client(0), far.client(1)]
    for request_client in clients:
        open_all(request_client)
    for round_ in range(5):
        for i, request_client in enumerate(clients):
            for env_group in range(2):
                ask(request_client, env_group, 10 * round_ + 2 * i + env_group)
        for call in take(request_server, 4):
            answer([call], int(call.request.reward[0]))
        for i, request_client in enumerate(clients):
            for env_group in range(2):
                assert reply(request_client, env_group).tolist() == [10 * round_ + 2 * i + env_group] * ENVS


def test_all_nodes_read_one_total(cluster: Cluster) -> None:
    cluster.open("a", "b", "c")
    cluster.place("steps", "a", _0="b", _1="c")
    tallies = [cluster.of(node, "steps") for node in "abc"]
    assert all(isinstance(counters, SharedCounters) for counters in tallies)
    tallies[0].set_total(1000)
    tallies[1].counter(0).add(20)
    tallies[2].counter(1).add(3)
    eventually(lambda: [counters.total() for counters in tallies] == [1023] * 3, 10)
    tallies[1].counter(0).add(7)
    eventually(lambda: [counters.total() for counters in tallies] == [1030] * 3, 10)


def test_when_the_hub_dies_another_one_elsewhere_gets_what_was_not_released(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("items", "a", _0="b", _1="b")
    far = cluster.queue("b")
    for mark in range(2):
        put(far, 0, mark)
    source = cluster.queue("a").source()
    (slot,) = eventually(lambda: source.take(1), 10)
    assert mark_of(slot) == 0
    source.release()
    eventually(lambda: far.sink(0).acquire() is not None, 10)
    cluster.node_agents.pop("a").close()
    assert "items" in eventually(cluster.node_agents["b"]._streams.troubles, 10)
    put(far, 0, 2)
    cluster.open("c")
    cluster.place("items", "c", epoch=2, _0="b", _1="b")
    assert take_all(cluster.queue("c"), 2) == [1, 2] and not cluster.node_agents["b"]._streams.troubles()


def test_when_the_hub_moves_to_the_producers_node_what_was_under_way_is_there(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("items", "a", _0="b", _1="a")
    put(cluster.queue("b"), 0, 1)
    put(cluster.queue("a"), 1, 2)
    eventually(lambda: cluster.queue("a").ring(0).ready(), 10)
    cluster.place("items", "b", epoch=2, _0="b", _1="a")
    assert sorted(take_all(cluster.queue("b"), 2)) == [1, 2]


def test_a_stream_that_breaks_is_opened_again_and_nothing_is_missing(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("items", "a", _0="b", _1="b")
    near, far, marks = cluster.queue("a"), cluster.queue("b"), list[int]()
    consumer = threading.Thread(target=lambda: marks.extend(take_all(near, 30)))
    consumer.start()
    loop, streams = cluster.node_agents["a"]._loop, cluster.node_agents["a"]._streams
    cut_lines: list[MirrorStream] = []

    def cut() -> None:
        for _, line in streams._hub_lines.values():
            cut_lines.append(line)
            line.end()

    for mark in range(30):
        if mark % 10 == 5:
            loop.call_soon_threadsafe(cut)
        put_when_free(far, 0, mark)
    consumer.join()
    assert marks == list(range(30)) and len(set(cut_lines)) == 3


def test_a_spoke_tries_again_until_its_hub_knows_the_placement(cluster: Cluster) -> None:
    cluster.open("a", "b")
    placement = PortLocations("a", 3, cluster.node_agents["a"].address, {0: ("b", 1), 1: ("b", 1)})
    cluster.node_agents["b"].place("items", placement)
    put(cluster.queue("b"), 0, 4)

    def refused(text: str) -> Callable[[], bool]:
        return lambda: text in cluster.node_agents["b"]._streams.troubles().get("items", "")

    eventually(refused("not on a, or not yet"), 10)
    cluster.node_agents["a"].place("items", PortLocations("a", 2, placement.hub_address, placement.ends))
    eventually(refused("epoch 3, and on a it is in epoch 2"), 10)
    cluster.node_agents["a"].place("items", placement)
    assert take_all(cluster.queue("a"), 1) == [4]


def test_a_stream_that_the_other_side_cancels_is_opened_again(cluster: Cluster) -> None:
    tries: list[str] = []

    def cancel(_: Any, context: Any) -> None:
        tries.append(context.peer())
        context.abort(grpc.StatusCode.CANCELLED, "not now")

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(cancel)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    address = f"{HOST}:{server.add_insecure_port(f'{HOST}:0')}"
    server.start()
    cluster.open("b")
    cluster.node_agents["b"].place("items", PortLocations("a", 1, address, {0: ("b", 1)}))
    eventually(lambda: len(tries) >= 2, 10)
    server.stop(0).wait(10)


def test_a_wrong_token_is_refused(cluster: Cluster) -> None:
    cluster.open("a")
    cluster.open("b", token="guess")
    cluster.place("items", "a", _0="a", _1="b")
    put(cluster.queue("b"), 1, 1)
    assert eventually(lambda: "the token is wrong" in cluster.node_agents["b"]._streams.troubles().get("items", ""), 10)
    assert cluster.queue("a").source().depth() == 0


def test_after_weights_a_slot_goes_back_when_they_were_delivered(cluster: Cluster) -> None:
    cluster.open("a", "b")
    cluster.place("held", "a", _0="a", _1="b")
    weights, far, source = cluster.of("a", "weights"), cluster.queue("b", "held"), cluster.queue("a", "held").source()
    assert isinstance(weights, FlatWeights)
    cluster.delivered["weights", "b"] = 0
    for version in range(1, 4):
        put(far, 1, version)
        (slot,) = eventually(lambda: source.take(1), 10)
        assert mark_of(slot) == version
        weights.publish(np.zeros(3, np.float32), version)
        source.release()
        cluster.node_agents["a"].look_again()
        time.sleep(0.05)
        assert far.sink(1).acquire() is None, "the weights have not come"
        cluster.delivered["weights", "b"] = version
        cluster.node_agents["a"].look_again()
        eventually(lambda: far.sink(1).acquire() is not None, 10)


CHILD = """
import sys
from pappus.transports.fd_server import fetch_blocks
assert "grpc" not in sys.modules, "roles need no grpc"
from pappus.runtimes.wiring import Wiring
from tests.contracts.queue_contract import put
from tests.runtimes.test_node_agent import edges
line, blocks = fetch_blocks(sys.argv[1], ["items", "steps"])
wiring = Wiring(edges().values(), blocks)
put(wiring.transport("items"), 1, 77)
wiring.transport("steps").counter(0).add(5)
print("done", flush=True)
assert line.recv(1) == b"", "the node agent is gone"
print("bye", flush=True)
"""


def test_a_role_in_another_process_maps_the_blocks_and_notices_the_node_agents_end(cluster: Cluster) -> None:
    cluster.open("a")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, cluster.node_agents["a"].socket], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"
    assert take_all(cluster.queue("a"), 1) == [77] and cluster.of("a", "steps").total() == 5
    cluster.node_agents["a"].close()
    assert child.stdout.readline() == "bye\n" and child.wait(10) == 0
    child.stdout.close()


def test_blocks_with_more_notifiers_than_the_system_passes_at_once_are_mapped() -> None:
    many = QueueEdge("items", {"x": next(iter(SPEC.observation.values()))}, producers=600, capacity=1)
    node_agent = NodeAgent("a", HOST, {many.name: many}, "")
    line, blocks = fetch_blocks(node_agent.socket, ["items"])
    blocks["items"].notifiers[600].notify()
    assert os.read(node_agent.block("items").notifiers[600].fileno(), 8), "the last notifier is the last notifier"
    assert len(blocks["items"].notifiers) == 601
    line.close()
    blocks["items"].close()
    node_agent.close()


def test_a_block_that_no_edge_has_is_an_error(cluster: Cluster) -> None:
    cluster.open("a")
    with pytest.raises(RunError, match="no block 'nonsense'"):
        fetch_blocks(cluster.node_agents["a"].socket, ["nonsense"])
    with pytest.raises(RunError, match="provides no shared memory"):
        fetch_blocks(cluster.node_agents["a"].socket + "x", ["items"])


def test_an_edge_of_another_kind_cannot_be_placed(cluster: Cluster) -> None:
    cluster.open("a")
    with pytest.raises(RunError, match="SharedParametersEdge, which node agents do not carry"):
        cluster.place("shared_parameters", "a", _0="a")


def test_fresh_queues_are_poisoned(cluster: Cluster) -> None:
    cluster.open("a")
    slot = cluster.queue("a").sink(0).acquire()
    assert slot is not None and np.isnan(slot.reward).all()


def open_descriptors() -> int:
    gc.collect()  # a mapping goes with the last array that views it
    return len(os.listdir("/proc/self/fd"))


def test_close_leaves_no_thread_descriptor_or_socket_behind(cluster: Cluster) -> None:
    def life() -> str:
        passing = Cluster()
        passing.open("a", "b")
        passing.place("items", "a", _0="a", _1="b")
        put(passing.queue("b"), 1, 3)
        assert take_all(passing.queue("a"), 1) == [3]
        line, blocks = fetch_blocks(passing.node_agents["a"].socket, ["items"])
        path = passing.node_agents["a"].socket
        for node_agent in passing.node_agents.values():
            node_agent.close()
            node_agent.close()
            node_agent.look_again()
        assert line.recv(1) == b""
        line.close()
        blocks["items"].close()
        return path

    cluster.open("c")  # what gRPC keeps for the process is there from now on
    life()
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    path = life()
    assert set(threading.enumerate()) <= threads and not Path(path).exists()
    assert eventually(lambda: open_descriptors() <= descriptors, 10)


def test_close_is_bounded_while_a_hub_does_not_answer(cluster: Cluster) -> None:
    cluster.open("b")
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        placement = PortLocations("a", 1, f"{HOST}:{silent.getsockname()[1]}", {0: ("b", 1)})
        cluster.node_agents["b"].place("items", placement)
        assert "not answered yet" in cluster.node_agents["b"]._streams.troubles()["items"]
        cluster.node_agents["b"].close()
        assert not cluster.node_agents["b"]._thread.is_alive()
