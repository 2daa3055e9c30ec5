"""A Ray cluster of several nodes on this machine, each with a loopback address and resources of its own.

    with ray_nodes(3) as nodes:
        subprocess.run([…, "--runtime", "ray", "--address", nodes.address, *nodes.place("impala", "CartPole-v1")])

The first node has the resource `head`, all others `far`: a role that reserves `far=1` never shares a node with one that
reserves `head=1`. All nodes share the cores, memory and loopback of this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# No report of usage, no dashboard, and no worker before one is asked for: cores are few.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_prestart_worker_first_driver="0")

import ray
from ray._private.internal_api import node_stats
from ray.cluster_utils import Cluster

from pappus.api import configure, describe
from pappus.runtimes.resources import setting_name
from pappus.systems import find_system
from pappus.topologies.program import Program

STORE_BYTES = 200_000_000
MANY = 1000
"""Of the resources that only say where a role may be."""
FIRST = 2
"""Of the addresses 127.0.0.N; 127.0.0.1 would be replaced by the machine's outer address."""
NAMES = {"NodeAgentActor": "node_agent", "Registry": "registry"}
"""What Ray calls processes between the calls that they serve."""


class Process(NamedTuple):
    """A process that Ray has started on a node."""

    pid: int
    name: str
    """`actor-0`, `node_agent`, `registry`; what Ray calls it otherwise."""
    node: str
    """The node's address."""


class RayNodes:
    """The nodes, of which some may be killed and others added."""

    def __init__(self, count: int, cpus: int) -> None:
        self._cluster, self._cpus, self._last = Cluster(), cpus, FIRST - 1
        self.head = self._add({"head": MANY})
        self.far = [self._add({"far": MANY}) for _ in range(count - 1)]

    @property
    def address(self) -> str:
        """For `--address`."""
        return str(self._cluster.address)

    def add(self) -> Any:
        """One more node like those that are far."""
        self.far.append(self._add({"far": MANY}))
        return self.far[-1]

    def kill(self, node: Any) -> None:
        """kill -9 to a far node's raylet; what Ray started there ends by itself, as it would with the machine."""
        self.far.remove(node)
        os.kill(raylet(node), signal.SIGKILL)
        node.all_processes["raylet"][0].process.wait()  # its workers take a zombie for alive

    def processes(self) -> list[Process]:
        """All that Ray runs on the living nodes."""
        listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        hosts = {str(raylet(node)): str(node.node_ip_address) for node in (self.head, *self.far)}
        return [Process(int(row[0]), name_of(row[2]), hosts[row[1]]) for row in rows if row[1] in hosts]

    def roles(self) -> dict[str, Process]:
        """The processes of a run's roles by name; of several node agents only one."""
        return {one.name: one for one in self.processes() if "::" not in one.name and " " not in one.name}

    def store_bytes(self) -> dict[str, tuple[int, int]]:
        """What the object store of every living node holds, and what it has spilled so far; `ray.init` comes before."""
        living = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes() if node["Alive"]]
        stats = {address: node_stats(address, port, False).store_stats for address, port in living}
        return {
            address: (int(of.object_store_bytes_used), int(of.spilled_bytes_total)) for address, of in stats.items()
        }

    def place(self, system: str, env: str, words: Sequence[str] = ()) -> list[str]:
        """Options of `pappus train` that put those who step envs on far nodes, and all others on the first."""
        program = program_of(system, env)
        placed = resources(program)
        pairs = [word for pair in placed.items() for word in pair]
        spread = [word for kind in placed if kind in stepping(program) for word in (kind, "SPREAD")]
        return [
            "--runtime", "ray", "--address", self.address, "--cluster.resources", *pairs,
            "--cluster.placement", *spread, *words,
        ]

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()

    def _add(self, resources: dict[str, int]) -> Any:
        """Each with a folder of its own for code that is shipped: in one for all, nodes remove each other's files."""
        self._last += 1
        return self._cluster.add_node(
            num_cpus=self._cpus, resources=resources, node_ip_address=f"127.0.0.{self._last}",
            object_store_memory=STORE_BYTES, include_dashboard=False,
            runtime_env_dir_name=None if "head" in resources else f"runtime_resources_{self._last}",
        )


@contextmanager
def ray_nodes(count: int = 3, cpus: int = 8) -> Iterator[RayNodes]:
    """A cluster that ends with the block."""
    nodes = RayNodes(count, cpus)
    try:
        yield nodes
    finally:
        if ray.is_initialized():
            ray.shutdown()
        nodes.close()


def attach(nodes: RayNodes) -> None:
    """Make this process a driver of the cluster, on its first node."""
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")


def registry() -> Any | None:
    """That of the one run on the cluster, whoever drives it; None before it is there."""
    for named in ray.util.list_named_actors(all_namespaces=True):
        if named["name"].startswith("pappus-"):
            return ray.get_actor(named["name"], namespace=named["namespace"])
    return None


def raylet(node: Any) -> int:
    """The process that is a node to Ray."""
    return int(node.all_processes["raylet"][0].process.pid)


def name_of(title: str) -> str:
    """`learner` for `pappus learner`."""
    known = next((name for part, name in NAMES.items() if part in title), None)
    return known or title.removeprefix("pappus ").strip()


def program_of(system: str, env: str, **settings: Any) -> Program:
    """The program that a system is on a cluster."""
    run = describe(configure(system, env, {"runtime": "ray", **settings}), env)
    return find_system(system).topology.build(run)


def resources(program: Program) -> dict[str, str]:
    """What each kind of role reserves, for those who step envs to be far from the others."""
    groups = program.groups().items()
    idle = {setting_name(group, roles): all(spec.kind.background for spec in roles) for group, roles in groups}
    near = {kind: "head=1" if sleeps else "CPU=1,head=1" for kind, sleeps in idle.items()}
    return near | {kind: "CPU=1,far=1" for kind in idle if kind in stepping(program)}


def stepping(program: Program) -> set[str]:
    """Kinds of roles that step envs."""
    return {kind.name for kind in program.kinds.values() if kind.steps_envs}


def rows_of(directory: Path) -> list[dict[str, float]]:
    """What a run has logged so far; its last line may be half written."""
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
