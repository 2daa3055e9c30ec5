"""Who is told what when roles settle, move and lose their station, without Ray."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from pappus.transports.memory import SharedBlock
from pappus.transports.weights import FlatWeights
from tests.contracts.runtime_contract import program

ray = pytest.importorskip("ray")

from pappus.runtimes import ray_registry, ray_station  # noqa: E402
from pappus.runtimes.ray_registry import Registry, mirrored_ends  # noqa: E402
from tests.process_tools import eventually  # noqa: E402

GONE = ray.exceptions.ActorDiedError()


class Call:
    """What calling a method of an actor gives."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error

    def future(self) -> Future[Any]:
        made: Future[Any] = Future()
        if self.error is None:
            made.set_result(self.value)
        else:
            made.set_exception(self.error)
        return made


class FakeStation:
    """Notes what it is told; a dead one fails every call."""

    def __init__(self, node: str) -> None:
        self.node, self.dead = node, False
        self.told: list[tuple[str, Any]] = []
        self.weights: list[int] = []
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return Method(self, name)


class Method:
    def __init__(self, station: FakeStation, name: str) -> None:
        self._station, self._name = station, name

    def remote(self, *arguments: Any) -> Call:
        station = self._station
        if station.dead:
            return Call(error=GONE)
        if self._name == "deliver":
            if station.failures:
                return Call(error=station.failures.pop())
            station.weights.append(arguments[2])
        station.told.append((self._name, arguments))
        return Call((f"address of {station.node}", f"socket {id(station)}") if self._name == "where" else None)


@pytest.fixture
def stations(monkeypatch: pytest.MonkeyPatch) -> list[FakeStation]:
    """All that were started."""
    made: list[FakeStation] = []

    class Starting:
        def options(self, scheduling_strategy: Any) -> Starting:
            return self

        def remote(self, node: str, *rest: Any) -> FakeStation:
            made.append(FakeStation(node))
            return made[-1]

    def get(call: Call, timeout: float) -> Any:
        if call.error is not None:
            raise call.error
        return call.value

    monkeypatch.setattr(ray_registry, "station_class", Starting)
    monkeypatch.setattr(ray_registry, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda station: setattr(station, "dead", True))
    return made


def placed(station: FakeStation) -> dict[str, Any]:
    """The newest placement of each edge that a station knows."""
    known: dict[str, Any] = {}
    for name, arguments in station.told:
        if name == "place":
            known |= arguments[0]
    return known


@pytest.fixture
def registry(stations: list[FakeStation]) -> Registry:
    made = program(2)
    return Registry(made.edges, mirrored_ends(made), "secret")


def test_hub_and_ends_learn_of_each_other_and_an_end_that_restarts_in_its_place_changes_nothing(
    registry: Registry, stations: list[FakeStation]
) -> None:
    registry.settle("consumer", "head", "10.0.0.1")
    registry.settle("producer-0", "far", "10.0.0.2")
    head, far = stations
    for station in (head, far):
        items = placed(station)["items"]
        assert (items.hub, items.hub_address, items.ends) == ("head", "address of head", {0: ("far", 1)})
    before = len(far.told)
    registry.settle("producer-0", "far", "10.0.0.2")
    assert [name for name, _ in far.told[before:]] == ["where"]


def test_weights_are_carried_to_every_node_that_reads_them(registry: Registry, stations: list[FakeStation]) -> None:
    for group, node in (("consumer", "head"), ("producer-0", "far"), ("producer-1", "head")):
        registry.settle(group, node, node)
    head, far = stations
    carried = [arguments for name, arguments in head.told if name == "carry"]
    assert carried[-1] == ("weights", {"far": far})


def test_a_station_that_died_is_replaced_and_its_roles_are_placed_anew(
    registry: Registry, stations: list[FakeStation]
) -> None:
    registry.settle("consumer", "head", "10.0.0.1")
    registry.settle("producer-0", "far", "10.0.0.2")
    stations[1].dead = True
    registry.settle("producer-1", "third", "10.0.0.3")
    registry.settle("consumer", "head", "10.0.0.1")
    socket = registry.settle("producer-0", "far", "10.0.0.2")
    assert [station.node for station in stations] == ["head", "far", "third", "far"]
    assert socket == f"socket {id(stations[3])}"
    assert placed(stations[3])["items"].ends[0] == ("far", 2) == placed(stations[0])["items"].ends[0]


def test_a_node_that_is_gone_leaves_no_hub_behind(registry: Registry, stations: list[FakeStation]) -> None:
    registry.settle("consumer", "head", "10.0.0.1")
    registry.settle("producer-0", "far", "10.0.0.2")
    stations[0].dead = True
    registry.gone("consumer", "head")
    assert placed(stations[1])["items"].hub == "" and registry.nodes() == {"producer-0": "far"}
    registry.settle("consumer", "far", "10.0.0.2")
    assert placed(stations[1])["items"].hub == "far"


class Following:
    """A carrier with its weights, and a store that holds nothing back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "put", lambda flat: flat.copy())
        self.weights = FlatWeights("weights", 3, SharedBlock.create(*FlatWeights.footprint(3)))
        self.carrier = ray_station.Carrier(self.weights.reader(), lambda: None)

    def publish(self, version: int) -> None:
        self.weights.publish(np.full(3, version, np.float32), version)


def test_a_station_that_takes_the_place_of_another_gets_the_present_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    following, first, second = Following(monkeypatch), FakeStation("far"), FakeStation("far")
    following.carrier.set_followers({"far": first})
    following.publish(7)
    eventually(lambda: first.weights == [7])
    following.carrier.set_followers({"far": second})
    eventually(lambda: second.weights == [7])
    eventually(lambda: following.carrier.delivered("far") == 7)


def test_a_delivery_that_fails_is_tried_again_and_one_to_the_dead_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_station, "RETRY_SECONDS", 0.01)
    following, shaky, dead = Following(monkeypatch), FakeStation("far"), FakeStation("lost")
    shaky.failures.append(ray.exceptions.ActorUnavailableError("a moment", None))
    dead.dead = True
    following.carrier.set_followers({"far": shaky, "lost": dead})
    following.publish(3)
    eventually(lambda: shaky.weights == [3])
    assert following.carrier.delivered("lost") == -1
