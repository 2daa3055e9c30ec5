"""Who is told what when roles settle, move and lose their node agent, without Ray."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from pappus.edges.weights import FlatWeights
from pappus.transports.memory import SharedBlock
from tests.contracts.runtime_contract import program

ray = pytest.importorskip("ray")

from pappus.runtimes import ray_node_agent, ray_registry  # noqa: E402
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


class FakeNodeAgent:
    """Notes what it is told; a dead one fails every call."""

    def __init__(self, node: str) -> None:
        self.node, self.dead = node, False
        self.told: list[tuple[str, Any]] = []
        self.weights: list[int] = []
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return Method(self, name)


class Method:
    def __init__(self, node_agent: FakeNodeAgent, name: str) -> None:
        self._node_agent, self._name = node_agent, name

    def remote(self, *arguments: Any) -> Call:
        node_agent = self._node_agent
        if node_agent.dead:
            return Call(error=GONE)
        if self._name == "deliver":
            if node_agent.failures:
                return Call(error=node_agent.failures.pop())
            node_agent.weights.append(arguments[2])
        node_agent.told.append((self._name, arguments))
        return Call((f"address of {node_agent.node}", f"socket {id(node_agent)}") if self._name == "where" else None)


@pytest.fixture
def node_agents(monkeypatch: pytest.MonkeyPatch) -> list[FakeNodeAgent]:
    """All that were started."""
    made: list[FakeNodeAgent] = []

    class Starting:
        def options(self, scheduling_strategy: Any) -> Starting:
            return self

        def remote(self, node: str, *rest: Any) -> FakeNodeAgent:
            made.append(FakeNodeAgent(node))
            return made[-1]

    def get(call: Call, timeout: float) -> Any:
        if call.error is not None:
            raise call.error
        return call.value

    monkeypatch.setattr(ray_registry, "node_agent_class", Starting)
    monkeypatch.setattr(ray_registry, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda node_agent: setattr(node_agent, "dead", True))
    return made


def placed(node_agent: FakeNodeAgent) -> dict[str, Any]:
    """The newest placement of each edge that a node agent knows."""
    known: dict[str, Any] = {}
    for name, arguments in node_agent.told:
        if name == "place":
            known |= arguments[0]
    return known


@pytest.fixture
def registry(node_agents: list[FakeNodeAgent]) -> Registry:
    made = program(2)
    return Registry(made.edges, mirrored_ends(made), "secret")


def test_hub_and_ends_learn_of_each_other_and_an_end_that_restarts_in_its_place_changes_nothing(
    registry: Registry, node_agents: list[FakeNodeAgent]
) -> None:
    registry.settle("consumer", "head", "10.0.0.1")
    registry.settle("producer-0", "far", "10.0.0.2")
    head, far = node_agents
    for node_agent in (head, far):
        items = placed(node_agent)["items"]
        assert (items.hub, items.hub_address, items.ends) == ("head", "address of head", {0: ("far", 1)})
    before = len(far.told)
    registry.settle("producer-0", "far", "10.0.0.2")
    assert [name for name, _ in far.told[before:]] == ["where"]


def test_weights_are_carried_to_every_node_that_reads_them(
    registry: Registry, node_agents: list[FakeNodeAgent]
) -> None:
    for group, node in (("consumer", "head"), ("producer-0", "far"), ("producer-1", "head")):
        registry.settle(group, node, node)
    head, far = node_agents
    carried = [arguments for name, arguments in head.told if name == "carry"]
    assert carried[-1] == ("weights", {"far": far})


def test_a_node_agent_that_died_is_replaced_and_its_roles_are_placed_anew(
    registry: Registry, node_agents: list[FakeNodeAgent]
) -> None:
    registry.settle("consumer", "head", "10.0.0.1")
    registry.settle("producer-0", "far", "10.0.0.2")
    node_agents[1].dead = True
    registry.settle("producer-1", "third", "10.0.0.3")
    registry.settle("consumer", "head", "10.0.0.1")
    socket = registry.settle("producer-0", "far", "10.0.0.2")
    assert [node_agent.node for node_agent in node_agents] == ["head", "far", "third", "far"]
    assert socket == f"socket {id(node_agents[3])}"
    assert placed(node_agents[3])["items"].ends[0] == ("far", 2) == placed(node_agents[0])["items"].ends[0]


def test_a_node_that_is_gone_leaves_no_hub_behind(registry: Registry, node_agents: list[FakeNodeAgent]) -> None:
    registry.settle("consumer", "head", "10.0.0.1")
    registry.settle("producer-0", "far", "10.0.0.2")
    node_agents[0].dead = True
    registry.gone("consumer", "head")
    assert placed(node_agents[1])["items"].hub == "" and registry.nodes() == {"producer-0": "far"}
    registry.settle("consumer", "far", "10.0.0.2")
    assert placed(node_agents[1])["items"].hub == "far"


class Following:
    """A carrier with its weights, and a store that holds nothing back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "put", lambda flat: flat.copy())
        self.weights = FlatWeights("weights", 3, SharedBlock.create(*FlatWeights.footprint(3)))
        self.broadcaster = ray_node_agent.WeightsBroadcaster(self.weights.reader(), lambda: None)

    def publish(self, version: int) -> None:
        self.weights.publish(np.full(3, version, np.float32), version)


def test_a_node_agent_that_takes_the_place_of_another_gets_the_present_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    following, first, second = Following(monkeypatch), FakeNodeAgent("far"), FakeNodeAgent("far")
    following.broadcaster.set_followers({"far": first})
    following.publish(7)
    eventually(lambda: first.weights == [7])
    following.broadcaster.set_followers({"far": second})
    eventually(lambda: second.weights == [7])
    eventually(lambda: following.broadcaster.delivered("far") == 7)


def test_a_delivery_that_fails_is_tried_again_and_one_to_the_dead_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node_agent, "RETRY_SECONDS", 0.01)
    following, shaky, dead = Following(monkeypatch), FakeNodeAgent("far"), FakeNodeAgent("lost")
    shaky.failures.append(ray.exceptions.ActorUnavailableError("a moment", None))
    dead.dead = True
    following.broadcaster.set_followers({"far": shaky, "lost": dead})
    following.publish(3)
    eventually(lambda: shaky.weights == [3])
    assert following.broadcaster.delivered("lost") == -1
