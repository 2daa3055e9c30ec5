"""The halves of mirrored edges, joined by hand: streams break, hubs and ends move, and nothing is lost or doubled."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pappus.edges.calls import SharedCalls, SharedRequestClient, SharedRequestServer
from pappus.edges.counters import CountersMirror, SharedCounters
from pappus.edges.mirrored_rings import RingsMirror
from pappus.edges.queue import RingQueue, RingSource
from pappus.errors import WireError
from pappus.transports.memory import HeapBlock
from pappus.transports.mirrors import Half, Hold, Hub, MirroredEdge, Misplaced, Peer, PortLocations, Spoke
from pappus.types import ArraySpec

NODES = "abc"
MARK = {"mark": ArraySpec((2,), "int64")}
SEEDS = range(40)


class Stream:
    """A spoke's stream and what is under way in it."""

    def __init__(self, spoke: Spoke, hub: Hub, node: str) -> None:
        self.spoke, self.hub = spoke, hub
        half, welcome = hub.greet(Peer(node, ord(node)), spoke.hello())
        spoke.welcomed(welcome)
        self.sides: list[tuple[Half, Half, deque[bytes]]] = [(spoke, half, deque()), (half, spoke, deque())]

    def send(self, side: int, most: int = 1000) -> int:
        """So many messages at most go out; how many did."""
        half, _, way = self.sides[side]
        sent = [message for _, message in zip(range(most), half.changes(), strict=False)]
        way.extend(sent)
        return len(sent)

    def arrive(self, side: int) -> bool:
        """One message arrives, if one is under way."""
        _, half, way = self.sides[side]
        if way:
            half.apply(way.popleft())
            return True
        return False


class World:
    """An edge over three nodes, their node agents played by hand."""

    ends = 3

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.edges = {node: MirroredEdge(node, self.mirror(node)) for node in NODES}
        self.streams: dict[str, Stream] = {}
        self.placement = PortLocations("", 0, "", {})
        self.to_place: list[str] = []
        self.moving: int | str | None = None
        self.place(PortLocations("a", 1, "a:1", {end: (NODES[end % 3], 1) for end in range(self.ends)}))

    def mirror(self, node: str) -> Any:
        raise NotImplementedError

    def place(self, placement: PortLocations) -> None:
        """All nodes hear of it at once."""
        self.placement, self.to_place = placement, list(NODES)
        while self.to_place:
            self.place_at(self.to_place.pop())

    def place_at(self, node: str) -> None:
        self.edges[node].place(self.placement)
        for at, stream in list(self.streams.items()):  # as a node agent ends the streams that its placement ends
            gone = at == node and stream.spoke is not self.edges[node].spoke
            if gone or (node == self.hub_of(stream) and stream.hub is not self.edges[node].hub):
                del self.streams[at]

    def hub_of(self, stream: Stream) -> str:
        return stream.hub.placement.hub

    def moved(self, what: int | str, node: str) -> PortLocations:
        """The placement with the hub or an end elsewhere."""
        now = self.placement
        if what == "hub":
            return PortLocations(node, now.hub_epoch + 1, f"{node}:1", now.ends)
        assert isinstance(what, int)
        return PortLocations(
            now.hub, now.hub_epoch, now.hub_address, {**now.ends, what: (node, now.ends[what][1] + 1)}
        )

    def move(self, what: int | str, node: str) -> None:
        """A role dies and begins again elsewhere."""
        self.stop(what)
        self.place(self.moved(what, node))
        self.start(what)

    def connect(self, node: str) -> None:
        """Open a stream (again), if both sides agree on the placement."""
        spoke, self.streams = self.edges[node].spoke, {k: v for k, v in self.streams.items() if k != node}
        if spoke is None:
            return
        hub, placement = self.edges[self.edges[node].placement.hub].hub, self.edges[node].placement
        if hub is not None and hub.placement.hub_epoch == placement.hub_epoch:
            with suppress(Misplaced):
                self.streams[node] = Stream(spoke, hub, node)

    def settle(self) -> None:
        """All arrives."""
        for node in NODES:
            if node not in self.streams:
                self.connect(node)
        busy = True
        while busy:
            busy = any([s.send(side) + s.arrive(side) for s in self.streams.values() for side in (0, 1)])

    def live(self, steps: int) -> None:
        """Anything may happen in any order; a move reaches one node after the other."""
        for _ in range(steps):
            node, side, dice = self.random.choice(NODES), self.random.randrange(2), self.random.random()
            if dice < 0.4:
                self.act()
            elif dice < 0.6 and node in self.streams:
                self.streams[node].send(side, self.random.randrange(1, 3))
            elif dice < 0.93 and node in self.streams:
                self.streams[node].arrive(side)
            elif dice < 0.95:
                self.connect(node)
            elif dice < 0.96:
                self.streams.pop(node, None)
            elif self.to_place:
                self.place_at(self.to_place.pop())
                if not self.to_place and self.moving is not None:
                    self.moving = self.start(self.moving)
            elif dice < 0.97:
                self.moving = self.random.choice(["hub", *range(self.ends)])
                self.stop(self.moving)
                self.placement = self.moved(self.moving, node)
                self.to_place = self.random.sample(NODES, 3)
            self.check()
        while self.to_place:
            self.place_at(self.to_place.pop())
        if self.moving is not None:
            self.moving = self.start(self.moving)

    def act(self) -> None:
        """A role does something."""

    def check(self) -> None:
        """What holds at all times."""

    def start(self, what: int | str) -> None: ...

    def stop(self, what: int | str) -> None: ...


class QueueWorld(World):
    """Producers number their slots; the consumer notes what it takes."""

    capacity = 2
    hold: Hold | None = None

    def __init__(self, seed: int = 0) -> None:
        self.queues: dict[str, RingQueue] = {}
        self.running: set[int | str] = {"hub", *range(self.ends)}
        self.lives = dict.fromkeys(range(self.ends), 0)
        """Of each producer how often it began anew."""
        self.put: dict[tuple[int, int], int] = defaultdict(int)
        self.taken: dict[tuple[int, int], list[int]] = defaultdict(list)
        """By producer and life: what this consumer has taken."""
        self.furthest: dict[tuple[int, int], int] = defaultdict(int)
        super().__init__(seed)
        self.source: RingSource = self.queues["a"].source()

    def mirror(self, node: str) -> RingsMirror:
        block = HeapBlock(*RingQueue.footprint(MARK, self.ends, self.capacity))
        self.queues[node] = RingQueue("items", MARK, self.ends, self.capacity, block)
        return self.queues[node].mirror(self.hold)

    def start(self, what: int | str) -> None:
        self.running.add(what)
        if what == "hub":
            self.source = self.queues[self.placement.hub].source()
            self.taken.clear()
        else:
            assert isinstance(what, int)
            self.lives[what] += 1

    def stop(self, what: int | str) -> None:
        self.running.discard(what)

    def act(self) -> None:
        what = self.random.choice(["take", "release", *range(self.ends)])
        if isinstance(what, int):
            self.produce(what)
        elif what == "take":
            self.take(self.random.randrange(1, 3))
        elif "hub" in self.running:
            self.source.release()

    def produce(self, producer: int) -> bool:
        sink = self.queues[self.placement.ends[producer][0]].sink(producer)
        if producer not in self.running or (slot := sink.acquire()) is None:
            return False
        key = producer, self.lives[producer]
        slot["mark"][:] = self.lives[producer], self.put[key]  # type: ignore[call-overload]
        self.put[key] += 1
        sink.commit()
        return True

    def take(self, count: int) -> bool:
        """Take what was not taken yet."""
        if "hub" not in self.running or self.source._taken or (batch := self.source.take(count)) is None:
            return False
        rings = self.source._rings
        for slot in batch:
            producer = next(i for i, ring in enumerate(rings) if any(slot is one for one in ring.slots))
            life, number = slot["mark"].tolist()  # type: ignore[call-overload]
            before = self.taken[producer, life]
            assert number == before[-1] + 1 if before else number <= self.furthest[producer, life], "in order, all"
            before.append(number)
            self.furthest[producer, life] = max(self.furthest[producer, life], number + 1)
        return True

    def check(self) -> None:
        for queue in self.queues.values():
            assert all(0 <= ring.ready() <= self.capacity for ring in queue.rings())

    def drain(self) -> None:
        """All that living producers have put is taken."""
        self.source.release()
        self.settle()
        while self.take(1):
            self.source.release()
            self.settle()
        assert {p: self.furthest[p, life] for p, life in self.lives.items()} == {
            p: self.put[p, life] for p, life in self.lives.items()
        }


@pytest.mark.parametrize("seed", SEEDS)
def test_no_slot_is_lost_or_doubled_whatever_breaks_and_whoever_moves(seed: int) -> None:
    world = QueueWorld(seed)
    for _ in range(3):
        world.live(300)
        world.drain()
    assert sum(world.put.values()) > 30, "the test would show nothing"


def test_a_far_producer_gets_its_slots_back_when_the_consumer_has_released_them() -> None:
    world = QueueWorld()
    assert [world.produce(1) for _ in range(3)] == [True, True, False]
    world.settle()
    assert not world.produce(1), "the consumer has not taken anything"
    assert world.take(1)
    world.settle()
    assert not world.produce(1), "a slot that is being read is not free"
    freed = world.edges["b"]._mirror.freed[1]  # type: ignore[attr-defined]
    rings = freed.count
    world.source.release()
    world.settle()
    assert freed.count == rings + 1 and world.produce(1) and not world.produce(1)


def test_a_new_hub_gets_all_that_the_old_one_had_not_released() -> None:
    world = QueueWorld()
    for _ in range(2):
        world.produce(1)
    world.settle()
    assert world.take(1)
    world.move("hub", "c")
    world.settle()
    assert world.take(2) and world.taken[1, 0] == [0, 1]


def test_a_producer_that_comes_after_another_waits_until_the_hub_has_room() -> None:
    world = QueueWorld()
    for _ in range(2):
        world.produce(1)
    world.settle()
    world.move(1, "c")
    for _ in range(2):
        world.produce(1)
    world.settle()
    assert world.queues["a"].ring(1).ready() == 2
    assert world.take(2) and world.taken[1, 0] == [0, 1]
    world.source.release()
    world.settle()
    assert world.take(2) and world.taken[1, 1] == [0, 1]


def test_slots_of_a_producer_that_moved_away_arrive_no_more() -> None:
    world = QueueWorld()
    world.settle()
    world.produce(1)
    world.streams["b"].send(0)
    late = world.streams["b"]
    world.place(world.moved(1, "c"))
    assert late.arrive(0) and world.queues["a"].ring(1).ready() == 0


def test_a_gap_or_a_slot_of_another_size_ends_the_stream() -> None:
    world = QueueWorld()
    world.settle()
    world.produce(1)
    world.produce(1)
    stream = world.streams["b"]
    stream.send(0)
    _, half, way = stream.sides[0]
    with pytest.raises(WireError, match="slot 1 of ring 1 came; slot 0 is expected, and 2 are free"):
        half.apply(way[1])
    for message in (way[0] + b"more", way[0][:-1], b"abc"):
        with pytest.raises(WireError, match="not made of records"):
            half.apply(message)
    half.apply(way[0])
    half.apply(way[0])
    assert world.queues["a"].ring(1).ready() == 1, "what comes twice counts once"


def test_a_node_agent_that_came_back_with_fresh_memory_begins_anew() -> None:
    world = QueueWorld()
    world.produce(1)
    world.settle()
    fresh = MirroredEdge("b", world.mirror("b"))
    fresh.place(world.placement)
    world.edges["b"] = fresh
    world.lives[1] += 1
    world.produce(1)
    assert fresh.spoke is not None and world.edges["a"].hub is not None
    half, welcome = world.edges["a"].hub.greet(Peer("b", 12345), fresh.spoke.hello())
    fresh.spoke.welcomed(welcome)
    for message in fresh.spoke.changes():
        half.apply(message)
    assert world.take(2) and world.taken == {(1, 0): [0], (1, 1): [0]}


def test_after_weights_a_slot_comes_back_when_they_are_delivered_where_its_producer_is() -> None:
    published, delivered = [4], {"b": 4, "c": 4}

    class Held(QueueWorld):
        hold = Hold(lambda: published[0], lambda node: delivered[node])

    world = Held()
    for _ in range(2):
        world.produce(1)
        world.produce(2)
    world.settle()
    published[0] = 5
    assert world.take(4)
    world.source.release()
    world.settle()
    assert not world.produce(1) and not world.produce(2)
    delivered["c"] = 6
    world.connect("b")
    world.settle()
    assert not world.produce(1) and world.produce(2)
    delivered["b"] = 5
    world.settle()
    assert world.produce(1) and world.produce(1)


def test_the_hub_refuses_ends_that_live_elsewhere_by_what_it_knows() -> None:
    world = QueueWorld()
    hub, spoke = world.edges["a"].hub, world.edges["b"].spoke
    assert hub is not None and spoke is not None
    with pytest.raises(Misplaced, match="end 1 is on c in epoch 1"):
        hub.greet(Peer("c", 0), spoke.hello())
    hub.placement = world.moved(1, "b")
    with pytest.raises(Misplaced, match="on b in epoch 2 by what the hub knows"):
        hub.greet(Peer("b", 0), spoke.hello())


def test_node_agents_hear_the_notifiers_of_those_who_are_away_and_no_others() -> None:
    world = QueueWorld()
    hub, spoke = world.edges["a"], world.edges["b"]
    assert set(hub.notifiers().values()) == {"b", "c"} and set(spoke.notifiers().values()) == {"a"}
    assert hub._mirror.filled not in hub.notifiers() and hub._mirror.freed[0] not in hub.notifiers()  # type: ignore[attr-defined]
    world.move("hub", "b")
    assert spoke._mirror.filled not in spoke.notifiers()  # type: ignore[attr-defined]


class CallsWorld(World):
    """Callers ask with numbers of their own, and check that the answer is theirs."""

    env_groups = 2
    request: Any = (ArraySpec((), "int64"), ArraySpec((), "int64"))
    """Its number, and who asks."""
    reply = ArraySpec((), "int64")

    def __init__(self, seed: int = 0) -> None:
        self.calls: dict[str, SharedCalls] = {}
        self.running: set[int | str] = {"hub", *range(self.ends)}
        self.numbers, self.answers, self.whos = 0, 0, 0
        super().__init__(seed)
        self.clients: dict[int, SharedRequestClient] = {}
        self.states: dict[tuple[int, int], int] = {}
        """Of each client's env group: -1 before it is opened, 0 when free, else the number that it asked with."""
        self.who: dict[int, int] = {}
        self.sessions: dict[tuple[int, int, int], int] = {}
        self.askers: dict[tuple[int, int, int], int] = {}
        self.seen: set[int] = set()
        for what in ("hub", *range(self.ends)):
            self.start(what)

    def mirror(self, node: str) -> RingsMirror:
        block = HeapBlock(*SharedCalls.footprint(self.request, self.reply, self.ends, self.env_groups))
        self.calls[node] = SharedCalls("calls", self.request, self.reply, self.ends, self.env_groups, block)
        return self.calls[node].mirror()

    def start(self, what: int | str) -> None:
        self.running.add(what)
        if what == "hub":
            self.request_server: SharedRequestServer = self.calls[self.placement.hub].server()
            self.open_calls: list[Any] = []
            self.seen = set()
        else:
            assert isinstance(what, int)
            self.clients[what] = self.calls[self.placement.ends[what][0]].client(what)
            self.states |= {(what, env_group): -1 for env_group in range(self.env_groups)}
            self.whos += 1
            self.who[what] = self.whos

    def stop(self, what: int | str) -> None:
        self.running.discard(what)

    def act(self) -> None:
        what = self.random.choice(["hub", "hub", *range(self.ends)])
        if what in self.running and self.random.random() < 0.03:
            self.start(what)  # it dies, and begins again where it was
        elif isinstance(what, int):
            self.ask(what, self.random.randrange(self.env_groups))
        else:
            self.serve(self.random.randrange(3))

    def ask(self, request_client: int, env_group: int) -> None:
        if request_client not in self.running:
            return
        port, state = self.clients[request_client].env_groups[env_group], self.states[request_client, env_group]
        if state == -1:
            self.states[request_client, env_group] = 0 if port.open() else -1
        elif state == 0:
            self.numbers += 1
            self.states[request_client, env_group] = self.numbers
            number, who = port.request
            number[...], who[...] = self.numbers, self.who[request_client]
            port.send()
        elif (reply := port.reply()) is not None:
            assert int(reply) == state, "the answer to what was asked"
            self.answers += 1
            self.states[request_client, env_group] = 0

    def serve(self, most: int) -> None:
        if "hub" not in self.running:
            return
        for call in self.request_server.calls():
            number, who = map(int, call.request)
            assert number not in self.seen, "a request server sees a request once"
            self.seen.add(number)
            epoch = self.placement.hub_epoch
            assert self.sessions.setdefault((epoch, call.env_group, who), call.session) == call.session
            assert self.askers.setdefault((epoch, call.env_group, call.session), who) == who
            self.open_calls.append(call)
        self.random.shuffle(self.open_calls)
        for call in self.open_calls[:most]:
            call.reply[...] = call.request[0]
            call.answer()
        del self.open_calls[:most]

    def check(self) -> None:
        for calls in self.calls.values():
            assert ((calls.sent - calls.answered >= 0) & (calls.sent - calls.answered <= 1)).all()

    def finish(self) -> None:
        """All who ask are answered, and can ask again."""
        for _ in range(6):
            self.settle()
            self.serve(1000)
            self.settle()
            for (request_client, env_group), state in list(self.states.items()):
                if state:
                    self.ask(request_client, env_group)
        assert not any(self.states.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_is_answered_once_whatever_breaks_and_whoever_moves(seed: int) -> None:
    world = CallsWorld(seed)
    for _ in range(3):
        world.live(400)
        world.finish()
    assert world.answers > 15, "the test would show nothing"


def asked(world: CallsWorld, request_client: int) -> int:
    """A client's first env group is opened and asks; the number."""
    world.ask(request_client, 0)
    world.ask(request_client, 0)
    return world.states[request_client, 0]


def test_a_new_request_server_elsewhere_gets_what_was_not_answered() -> None:
    world = CallsWorld()
    number = asked(world, 1)
    world.settle()
    assert world.request_server.ready()
    world.move("hub", "c")
    assert not world.request_server.ready()
    world.settle()
    world.serve(1)
    world.settle()
    reply = world.clients[1].env_groups[0].reply()
    assert reply is not None and int(reply) == number


def test_an_answer_to_a_request_client_that_moved_away_goes_to_nobody() -> None:
    world = CallsWorld()
    asked(world, 1)
    world.settle()
    world.move(1, "c")
    number = asked(world, 1)
    world.settle()
    world.serve(1)
    world.settle()
    assert world.clients[1].env_groups[0].reply() is None, "that was its predecessor's"
    world.serve(1)
    world.settle()
    reply = world.clients[1].env_groups[0].reply()
    assert reply is not None and int(reply) == number


def test_a_reply_that_was_lost_with_its_stream_is_sent_again_and_the_request_server_is_not_asked_twice() -> None:
    world = CallsWorld()
    asked(world, 1)
    world.settle()
    world.serve(1)
    world.streams["b"].send(1)
    world.connect("b")
    world.settle()
    assert world.clients[1].env_groups[0].reply() is not None and not world.request_server.ready()


def test_only_the_answer_to_the_last_request_is_taken() -> None:
    world = CallsWorld()
    for _ in range(2):
        asked(world, 1)
        world.settle()
        world.serve(1)
        world.streams["b"].send(1)
        late = world.streams["b"].sides[1][2][0]
        world.settle()
    asked(world, 1)
    assert world.streams["b"].spoke.apply(late) is None  # type: ignore[func-returns-value]
    assert world.clients[1].env_groups[0].reply() is None


def test_what_is_asked_at_once_travels_in_one_message() -> None:
    world = CallsWorld()
    world.settle()
    for env_group in range(2):
        world.ask(1, env_group)
        world.ask(1, env_group)
    assert world.streams["b"].send(0) == 1
    assert world.streams["b"].arrive(0) and len(world.request_server.calls()) == 2


def test_messages_that_are_no_calls_are_errors() -> None:
    world = CallsWorld()
    world.settle()
    spoke, half, _ = world.streams["b"].sides[0]
    with pytest.raises(WireError, match="not made of records"):
        half.apply(b"abc")
    asked(world, 1)
    (message,) = spoke.changes()
    with pytest.raises(WireError, match="ring 77 is none of the 6"):
        half.apply(np.int64(77).tobytes() + message[8:])


class CountersWorld(World):
    """Counters count wherever they are."""

    def __init__(self, seed: int = 0) -> None:
        self.tallies: dict[str, SharedCounters] = {}
        self.total = 0
        super().__init__(seed)

    def mirror(self, node: str) -> CountersMirror:
        block = HeapBlock(*SharedCounters.footprint(self.ends))
        self.tallies[node] = SharedCounters("steps", self.ends, block)
        return CountersMirror(self.ends, block)

    def add(self, end: int, count: int) -> None:
        self.total += count
        self.tallies[self.placement.ends[end][0]].counter(end).add(count)

    def act(self) -> None:
        end = self.random.randrange(self.ends)
        if end != self.moving:
            self.add(end, self.random.randrange(100))

    def start(self, what: int | str) -> None:
        if what == "hub":
            self.tallies[self.placement.hub].set_total(self.total)

    def totals(self) -> set[int]:
        """On all nodes that hold an end."""
        holders = {node for node, _ in self.placement.ends.values()} | {self.placement.hub}
        return {self.tallies[node].total() for node in holders}


@pytest.mark.parametrize("seed", SEEDS)
def test_all_nodes_agree_on_a_total_whatever_breaks(seed: int) -> None:
    world = CountersWorld(seed)
    for _ in range(8):
        for _ in range(60):
            node, side = world.random.choice(NODES), world.random.randrange(2)
            world.act()
            if world.random.random() < 0.1:
                world.connect(node)
            if node in world.streams:
                world.streams[node].send(side)
                world.streams[node].arrive(1 - side)
        world.settle()
        assert world.totals() == {world.total}
        world.move(world.random.choice(["hub", *range(3)]), world.random.choice(NODES))
        world.settle()
        assert world.totals() == {world.total}, "a move keeps what was counted"


@pytest.mark.parametrize("seed", SEEDS)
def test_all_nodes_agree_on_a_total_when_moves_meet_counts_that_are_under_way(seed: int) -> None:
    world = CountersWorld(seed)
    for _ in range(3):
        world.live(300)
        world.settle()
        assert len(world.totals()) == 1


def test_a_counter_that_moves_counts_on_from_what_has_arrived() -> None:
    world = CountersWorld()
    world.add(1, 10)
    world.settle()
    world.add(1, 5)
    world.move(1, "c")
    world.add(1, 3)
    world.settle()
    assert world.totals() == {13}


def test_a_hub_begins_with_what_its_own_counters_have_counted_and_sets_the_total_itself() -> None:
    world = CountersWorld()
    world.tallies["a"].set_total(1000)
    world.add(1, 10)
    world.add(2, 1)
    world.settle()
    world.place(world.moved("hub", "b"))
    world.add(2, 5)
    world.settle()
    assert world.totals() == {10 + 5}


def test_a_total_stays_readable_where_a_counter_left() -> None:
    world = CountersWorld()
    world.add(1, 10)
    world.settle()
    world.move(1, "c")
    assert world.tallies["b"].total() == 10
