"""Ray: the same programs on the nodes of a cluster, here three on one machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

import pappus
from pappus.config import AlgorithmConfig, ClusterConfig, RunConfig, SupervisionConfig
from pappus.core import Waitable, WeightsReader, WeightsWriter
from pappus.data.dataset import open_dataset
from pappus.edges.weights import WeightsEdge
from pappus.errors import RoleDied, UserError
from pappus.kinds import ACTOR, RoleKind
from pappus.roles.role import IDLE, Role
from pappus.topologies.program import Program
from tests.contracts.runtime_contract import PRODUCER, FakeController, RuntimeContract, program
from tests.runtimes.test_local import EndsWhenReborn, Hanging, KillsOnce, with_dying
from tests.warm_ray_workers import worker_path

ray = pytest.importorskip("ray")

from ray._private.internal_api import node_stats  # noqa: E402

from pappus.runtimes.ray_cluster import RayRuntime  # noqa: E402

STORE_BYTES = 100 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes: one for most roles, and two with a core each for those that are to be far away."""
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    with worker_path() as path:
        made = Cluster()
        made.add_node(
            node_ip_address="127.0.0.2", num_cpus=8, object_store_memory=STORE_BYTES, worker_path=path,
            include_dashboard=False, include_log_monitor=False, no_monitor=True, _system_config=quick,
        )
        add_node(made, 3, far=1, late=1, doomed=1)
        add_node(made, 4, far=1)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


def add_node(cluster: Any, last: int, **resources: float) -> Any:
    """A node with one core, at 127.0.0.`last`."""
    return cluster.add_node(
        node_ip_address=f"127.0.0.{last}", num_cpus=1, resources=resources, object_store_memory=STORE_BYTES,
        worker_path=cluster.head_node._ray_params.worker_path,
    )


def run(
    made: Program, controller: Any, directory: Path, checkpoint: Path | None = None, hang_seconds: float = 30.0,
    **cluster: Any,
) -> None:
    config = RunConfig(
        AlgorithmConfig(), runtime="ray", run_dir=str(directory), cluster=ClusterConfig(**cluster),
        supervision=SupervisionConfig(max_deaths_in_a_row=1, hang_seconds=hang_seconds),
    )
    RayRuntime(made, controller, config).run(checkpoint)


class TestRayRuntime(RuntimeContract):
    """Producers on nodes of their own."""

    @pytest.fixture(autouse=True)
    def _somewhere(self, cluster: Any, tmp_path: Path) -> None:
        self._directory = tmp_path

    def run(self, made: Program, controller: Any, checkpoint: Path | None = None) -> None:
        kinds = {node.group.rpartition("-")[0] for node in made.roles}
        far = {"producer": "CPU=1,far=1"} if "producer" in kinds else {}
        run(made, controller, self._directory, checkpoint, resources=far)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The nodes that each role has been on."""
    from pappus.runtimes.controller import Controller

    seen: dict[str, set[str]] = {}
    started = Controller.role_started

    def note(self: Controller, role: str, pid: int, node: str = "") -> None:
        seen.setdefault(role, set()).add(node)
        started(self, role, pid, node)

    monkeypatch.setattr(Controller, "role_started", note)
    return seen


ON_PENDULUM: dict[str, Any] = {
    "env": "Pendulum-v1", "steps": 1_000, "topology.replay.warm_up": 200, "network.hidden_sizes": (16,),
}


@pytest.mark.parametrize(
    ("system", "far", "settings"),
    [
        ("impala", "actor", {"envs_per_actor": 8, "steps": 10_000}),
        ("seed-vtrace", "actor", {"envs_per_actor": 8, "steps": 4_000, "batch_size": 8}),
        ("ppo", "actor", {"actors": 2, "steps": 5_000}),
        ("a3c", "worker", {"steps": 5_000}),
        ("gorila-dqn", "bundle", {"steps": 1_000, "topology.replay.warm_up": 200}),
        ("apex-dqn", "actor", {"steps": 1_000, "topology.replay.warm_up": 200}),
        ("seed-r2d2", "actor", {"steps": 1_000, "topology.replay.warm_up": 10}),
        *((system, "actor", ON_PENDULUM) for system in ("apex-sac", "apex-crossq", "apex-d4pg", "fast-td3")),
    ],
)
def test_every_topology_trains_with_its_actors_on_other_nodes(
    cluster: Any, tmp_path: Path, places: dict[str, set[str]], system: str, far: str, settings: dict[str, Any]
) -> None:
    result = pappus.train(
        system, runtime="ray", run_dir=str(tmp_path / "run"),
        evaluation={"episodes": 1}, cluster={"resources": {far: "CPU=1,far=1"}}, **{"env": "CartPole-v1", **settings},
    )
    assert result.summary.exit_reason == "steps done" and result.summary.updates > 0
    assert result.summary.eval_return is not None, "the last weights have reached the evaluator"
    actors = set().union(*(nodes for role, nodes in places.items() if role.startswith(far)))
    trainers = set().union(*(nodes for role, nodes in places.items() if role.startswith(("learner", "parameter"))))
    assert actors and trainers and not actors & trainers


def test_a_run_whose_nodes_have_certificates_is_encrypted_between_them(
    cluster: Any, tmp_path: Path, places: dict[str, set[str]]
) -> None:
    authority = trustme.CA()
    made = authority.issue_cert(*(f"127.0.0.{last}" for last in (2, 3, 4)))
    files = {"certificate": made.cert_chain_pems[0], "key": made.private_key_pem, "authority": authority.cert_pem}
    for name, blob in files.items():
        blob.write_to_path(tmp_path / name)
    result = pappus.train(
        "apex-dqn", env="CartPole-v1", runtime="ray", run_dir=str(tmp_path / "run"), steps=1_000,
        evaluation={"episodes": 1}, topology={"replay": {"warm_up": 200}},
        cluster={"resources": {"actor": "CPU=1,far=1"}, **{name: str(tmp_path / name) for name in files}},
    )
    assert result.summary.exit_reason == "steps done" and not places["actor-0"] & places["learner"]


def test_what_actors_on_other_nodes_did_is_recorded_and_learned_from_on_other_nodes(
    cluster: Any, tmp_path: Path, places: dict[str, set[str]]
) -> None:
    given: dict[str, Any] = {"runtime": "ray", "evaluation": {"episodes": 1}, "network.hidden_sizes": (8,)}
    recorded = pappus.train(
        "apex-dqn", "CartPole-v1", {**given, "topology.replay.warm_up": 200}, steps=600, record=tmp_path / "data",
        run_dir=tmp_path / "online", cluster={"resources": {"actor": "CPU=1,far=1"}},
    )
    data = open_dataset(tmp_path / "data")
    assert recorded.summary.exit_reason == "steps done" and data.num_steps > 200
    learned = pappus.train(
        "dqn@offline", "", {**given, "batch_size": 16}, data=tmp_path / "data", steps=50, run_dir=tmp_path / "offline",
        cluster={"resources": {"reader": "CPU=1,far=1"}},
    )
    assert (learned.summary.steps, learned.summary.env) == (50, "CartPole-v1")
    assert learned.summary.eval_return is not None
    assert f"reader-0: read {data.num_steps:,} steps" in (tmp_path / "offline" / "log.txt").read_text()
    assert not (places["actor-0"] | places["reader-0"]) & places["learner"]


def test_a_producer_that_is_killed_comes_back_and_nothing_is_lost(cluster: Any, tmp_path: Path) -> None:
    controller = KillsOnce("producer-0")
    run(program(2), controller, tmp_path, resources={"producer": "CPU=1,far=1"})
    assert controller.counts.get("from 0", 0) + controller.counts.get("from 1", 0) == 50


@pytest.mark.parametrize("how", ["stopped", "asleep"])
def test_a_role_that_hangs_is_killed_and_replaced(cluster: Any, tmp_path: Path, how: str) -> None:
    made = program(1)
    made.add(RoleKind("hanging"), Hanging, how=how)
    controller = EndsWhenReborn("hanging", lives=1)
    run(made, controller, tmp_path, hang_seconds=3.0)
    died = [event for event in controller.events if event.startswith("hanging: ")]
    assert died[0].startswith("hanging: hanging died (hung: hanging gave no sign of life for ")
    assert controller.faults == [("hanging", "hangs")]


def test_a_role_that_never_recovers_ends_the_run_with_its_first_traceback(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(RoleDied, match=r"dying died 2 times in a row; the first time:") as caught:
        run(with_dying("exception", lives=99), EndsWhenReborn("dying", lives=99), tmp_path)
    assert "ValueError: the env broke" in str(caught.value)


class KillsTheLearner(FakeController):
    """Kills the consumer once, when it has done something."""

    def __init__(self) -> None:
        super().__init__()
        self.rewound: list[tuple[int, int]] = []

    def report(self, report: Any) -> None:
        super().report(report)
        if report["role"] == "consumer" and report["counts"] and len(self.pids["consumer"]) == 1:
            os.kill(self.pids["consumer"][0], signal.SIGKILL)

    def rewind(self, steps: int, updates: int) -> None:
        self.rewound.append((steps, updates))

    def decide(self) -> bool:
        return self.is_over and len(self.pids["consumer"]) == 2


def test_a_learner_that_is_killed_comes_back_and_the_run_goes_on(cluster: Any, tmp_path: Path) -> None:
    controller = KillsTheLearner()
    run(program(1), controller, tmp_path, resources={"producer": "CPU=1,far=1"})
    assert controller.rewound == [(0, 0)], "there was no checkpoint to go on from"


def test_eight_gpus_on_a_cluster_without_any_are_refused_with_the_sentence(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"learner needs CPU 1, GPU 8 on one node, .* that much GPU: 3 nodes"):
        pappus.train(
            "impala", env="CartPole-v1", runtime="ray", run_dir=str(tmp_path / "run"),
            cluster={"resources": {"learner": "CPU=1,GPU=8"}},
        )


class WaitsForActors(FakeController):
    """Does something when the first actor works, and is done when the last one does."""

    def __init__(self, last: str, when_begun: Any) -> None:
        super().__init__()
        self._last, self._when_begun = last, when_begun

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        super().role_started(role, pid, node)
        if role == "actor-0" and len(self.pids[role]) == 1:
            self._when_begun()

    def decide(self) -> bool:
        return self._last in self.pids


def elastic() -> Program:
    made = Program("elastic")
    made.add(ACTOR, Idler, index=0)
    made.add(ACTOR, Idler, index=1)
    return made


class Idler(Role):
    """Does nothing, for ever."""

    def __init__(self, name: str, incarnation: int, index: int) -> None:
        super().__init__(name)

    def step(self) -> Waitable | None:
        return IDLE


def test_actors_beyond_the_fewest_start_when_a_node_with_room_joins(cluster: Any, tmp_path: Path) -> None:
    joined: list[Any] = []
    config = RunConfig(
        AlgorithmConfig(), runtime="ray", run_dir=str(tmp_path), actors=2,
        cluster=ClusterConfig(fewest_actors=1, resources={"actor": "CPU=1,late=1"}),
    )
    controller = WaitsForActors("actor-1", lambda: joined.append(add_node(cluster, 5, late=1)))
    try:
        RayRuntime(elastic(), controller, config).run()  # type: ignore[arg-type]
        assert len(controller.pids["actor-0"]) == 1, "who was there stays where it is"
    finally:
        for node in joined:
            cluster.remove_node(node)


class LosesANode(FakeController):
    """Has a node killed when a producer starts there, then another one added, and is done when the producer is back."""

    def __init__(self, doomed: str, kill: Any, add: Any) -> None:
        super().__init__()
        self._doomed, self._kill, self._add = doomed, kill, add
        self.nodes: dict[str, list[str]] = {}

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        super().role_started(role, pid, node)
        self.nodes.setdefault(role, []).append(node)
        if node == self._doomed:
            self._kill()

    def event(self, text: str, role: str = "") -> None:
        super().event(text, role)
        if "its node is gone" in text and self.nodes[role] == [self._doomed]:
            self._add()

    def decide(self) -> bool:
        return self.is_over and any(len(nodes) == 2 for nodes in self.nodes.values())


def test_the_roles_of_a_node_that_is_killed_come_back_on_one_that_is_added(cluster: Any, tmp_path: Path) -> None:
    doomed, added = add_node(cluster, 7, doomed=1), []

    def kill() -> None:
        process = doomed.all_processes["raylet"][0].process
        process.kill()
        process.wait()

    controller = LosesANode("127.0.0.7", kill, lambda: added.append(add_node(cluster, 8, doomed=1)))
    try:
        run(program(2), controller, tmp_path, resources={"producer": "CPU=1,doomed=1"})
    finally:
        for node in added:
            cluster.remove_node(node)
    places = [controller.nodes["producer-0"], controller.nodes["producer-1"]]
    assert sorted(places) == [["127.0.0.3"], ["127.0.0.7", "127.0.0.8"]], "the other one stayed"
    assert controller.counts.get("from 0", 0) + controller.counts.get("from 1", 0) == 50


class LosesTheKeeper(FakeController):
    """Has the keeper's node killed when all roles work, and is done when the keeper works again."""

    def __init__(self, kill: Any) -> None:
        super().__init__()
        self._kill = kill
        self.nodes: dict[str, list[str]] = {}

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        super().role_started(role, pid, node)
        self.nodes.setdefault(role, []).append(node)
        if sorted(self.nodes) == ["actor-0", "actor-1", "keeper"] and sum(map(len, self.nodes.values())) == 3:
            self._kill(self.nodes["keeper"][0])

    def decide(self) -> bool:
        return len(self.nodes.get("keeper", [])) == 2


class Keeper(Idler):
    def __init__(self, name: str, incarnation: int) -> None:
        super().__init__(name, incarnation, 0)


def test_an_actor_beyond_the_fewest_gives_its_room_to_a_role_that_lost_its_node(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pappus.runtimes.ray_cluster.ROOM_SECONDS", 0.5)
    added = {f"127.0.0.{last}": add_node(cluster, last, scarce=1) for last in (11, 12, 13)}

    def kill(node: str) -> None:
        process = added.pop(node).all_processes["raylet"][0].process
        process.kill()
        process.wait()

    made = elastic()
    made.add(RoleKind("keeper"), Keeper)
    config = RunConfig(
        AlgorithmConfig(), runtime="ray", run_dir=str(tmp_path), actors=2,
        cluster=ClusterConfig(fewest_actors=1, resources={"actor": "CPU=1,scarce=1", "keeper": "CPU=1,scarce=1"}),
    )
    controller = LosesTheKeeper(kill)
    try:
        RayRuntime(made, controller, config).run()  # type: ignore[arg-type]
    finally:
        for node in added.values():
            cluster.remove_node(node)
    assert "actor-1: gives its room to keeper" in controller.events
    assert controller.nodes["keeper"][1] == controller.nodes["actor-1"][0] and len(controller.nodes["actor-0"]) == 1


class Publisher(Role):
    """Publishes a megabyte as often as it can."""

    def __init__(self, name: str, incarnation: int, weights: WeightsWriter) -> None:
        super().__init__(name)
        self._weights, self._flat, self._version = weights, np.zeros(1 << 18, np.float32), 0

    def step(self) -> Waitable | None:
        self._weights.publish(self._flat, self._version)
        self._version += 1
        self.metrics.count("published")
        return None


class Reader(Role):
    """Reads every version that it sees."""

    def __init__(self, name: str, incarnation: int, index: int, weights: WeightsReader) -> None:
        super().__init__(name)
        self._weights, self._flat, self._version = weights, np.zeros(1 << 18, np.float32), -1

    def step(self) -> Waitable | None:
        if self._weights.version() == self._version:
            self.wake_at = time.perf_counter() + 0.001
            return IDLE
        self._version = self._weights.read(self._flat)
        self.metrics.count("read")
        return None


class WatchesTheStore(FakeController):
    """Looks at the object stores with every report, and is done after so many versions."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[int] = []

    def report(self, report: Any) -> None:
        super().report(report)
        stats = [node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False) for node in ray.nodes()
                 if node["Alive"]]
        self.used.append(max(reply.store_stats.object_store_bytes_used for reply in stats))

    def decide(self) -> bool:
        return self.counts.get("read", 0) > 100


def test_versions_that_nobody_holds_are_released_from_the_object_store(cluster: Any, tmp_path: Path) -> None:
    made = Program("weights")
    weights = made.connect(WeightsEdge("weights", 1 << 18))
    made.add(RoleKind("publisher"), Publisher, weights=weights.writer())
    made.add(PRODUCER, Reader, index=0, weights=weights.reader())
    controller = WatchesTheStore()
    run(made, controller, tmp_path, resources={"producer": "CPU=1,far=1"})
    assert controller.counts["read"] > 100, "a hundred megabytes have passed"
    assert max(controller.used) < 50 << 20, "a fifth of the store comes in a second, and Ray frees about once a second"
