"""A Ray cluster: each group of colocated roles is a Ray actor with its resources, in a placement group.

    driver: controller, supervision ◀──────── a connection to every host (TCP)
       │
       ├── registry      where roles are, and what is served at which address
       ├── host          a group of roles: the Ray actor that Ray places, and starts again when it dies
       │     ⇅ shared memory
       └── node agent    one per node: owns that memory; connected to other node agents by gRPC, and for weights by
                         Ray's object store

Ray places and restarts; the driver decides what the next incarnation of a group begins with, as in `local`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from pappus.config import RunConfig
from pappus.errors import RunError
from pappus.polling import readable
from pappus.runtimes.connections import ConnectionListener, StreamConnection
from pappus.runtimes.controller import Controller
from pappus.runtimes.ray_connection import cause, connect, refuse_other_versions, rooms
from pappus.runtimes.ray_process import Driver, Host
from pappus.runtimes.ray_registry import CALLS_AT_ONCE, Registry, mirrored_ends
from pappus.runtimes.resources import (
    Amounts,
    Colocation,
    colocations,
    refuse_what_never_fits,
    still_waiting,
    waits_for,
    who_gives_way,
)
from pappus.runtimes.role_process import Assignment
from pappus.runtimes.supervisor import ManagedProcess, Supervisor
from pappus.runtimes.waiting import spin_for
from pappus.telemetry.checkpoint import verify
from pappus.telemetry.processes import usable_cores
from pappus.topologies.program import Program
from pappus.transports.tls import tls_of

RETRY_SECONDS = 0.5
"""Before a host that Ray is still placing is asked again."""
PATIENCE_SECONDS = 20.0
"""A group that died and was not placed again by then is reported; its process alone may take ten."""
ROOM_SECONDS = 5.0
"""A reserved group that was not placed again by then gets the room of actors beyond the fewest."""


class RayRuntime(Supervisor):
    """Has Ray place the groups of a program, and supervises them from here."""

    def __init__(self, program: Program, controller: Controller, config: RunConfig, incarnation: int = 0) -> None:
        super().__init__(program, controller, config.supervision, incarnation)
        self._config = config
        self._colocations = colocations(program, config)
        self._token, self._tls = secrets.token_hex(16), tls_of(config.cluster)
        self._hosts: dict[str, Any] = {}
        self._lives: dict[Any, ManagedProcess] = {}
        """Ray's references to what the hosts run."""
        self._places: dict[str, str] = {}
        self._begins_with: dict[str, Path | None] = {}
        """The checkpoint that each group's present incarnation began with."""
        self._unplaced: dict[str, float] = {}
        """Groups that died, and when to report that they were not placed again."""
        self._evicted: set[str] = set()
        """Actors beyond the fewest that gave their room to a reserved group. They have no host until it has a place."""
        self._next_eviction = 0.0
        self._reserved: list[PlacementGroup] = []
        self._connection_listener: ConnectionListener | None = None
        self._registry: Any = None
        self._marker: Path | None = None
        self._connected = False

    def _open(self) -> None:
        """Connect to Ray, reserve all resources at once, and start the registry."""
        self._connected = connect(self._config.cluster, sum(one.total.get("CPU", 0.0) for one in self._colocations))
        fixed = [colocation for colocation in self._colocations if not self._comes_and_goes(colocation)]
        self._reserve(fixed)
        ip = ray.util.get_node_ip_address()
        self._connection_listener = ConnectionListener(ip, self._token, self._tls)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        registry = ray.remote(num_cpus=0, max_concurrency=CALLS_AT_ONCE, max_restarts=0)(Registry)
        outlines = {name: edge.outline() for name, edge in self._program.edges.items()}
        self._registry = registry.options(name=f"pappus-{self._token[:8]}", scheduling_strategy=here).remote(
            outlines, mirrored_ends(self._program), self._token, self._tls
        )
        self._registry_life = self._registry.live.remote()
        self._marker = Path(self._config.run_dir or ".").resolve() / f".driver-{self._token[:8]}"
        self._marker.touch()
        self._driver = Driver(
            self._connection_listener.address, self._token, self._registry, str(self._marker), sys.path, os.getcwd(),
            self._tls,
        )
        tables = [placement_group_table(group) for group in self._reserved]
        chosen = {node for table in tables for node in table["bundles_to_node_id"].values()}
        for node in ray.nodes():
            if node["NodeID"] in chosen:
                self._registry.prepare.remote(node["NodeID"], node["NodeManagerAddress"])
        for colocation in self._colocations:
            for group in colocation.groups:
                self._hosts[group] = self._make_host(group, colocation.amounts[group])

    def _comes_and_goes(self, colocation: Colocation) -> bool:
        """Whether it may be missing at the start: an actor beyond the fewest."""
        fewest = self._config.cluster.fewest_actors
        specs = [spec for spec in self._program.roles if spec.group in colocation.groups]
        return bool(fewest) and all(spec.kind.steps_envs and (spec.index or 0) >= fewest for spec in specs)

    def _reserve(self, fixed: list[Colocation]) -> None:
        """One placement group for each strategy, all or nothing; `UserError` that says which role lacks what."""
        refuse_what_never_fits(fixed, rooms())
        strategies = dict.fromkeys(colocation.strategy for colocation in fixed)
        self._bundles: dict[str, tuple[PlacementGroup, int]] = {}
        for strategy in strategies:
            members = [colocation for colocation in fixed if colocation.strategy == strategy and colocation.total]
            if members:
                group = placement_group([colocation.total for colocation in members], strategy=strategy)
                self._reserved.append(group)
                for index, colocation in enumerate(members):
                    self._bundles |= {name: (group, index) for name in colocation.groups}
        deadline = time.monotonic() + self._config.cluster.patience
        for group in self._reserved:
            if not group.wait(max(0.1, deadline - time.monotonic())):
                raise still_waiting(fixed, rooms(free=True), self._config.cluster.patience)

    def _make_host(self, group: str, amounts: Amounts) -> Any:
        other = {name: amount for name, amount in amounts.items() if name not in ("CPU", "GPU", "memory")}
        where: Any = "DEFAULT"
        if group in self._bundles:
            bundles, index = self._bundles[group]
            where = PlacementGroupSchedulingStrategy(bundles, placement_group_bundle_index=index)
        made = ray.remote(
            num_cpus=amounts.get("CPU", 0.0), num_gpus=amounts.get("GPU", 0.0), memory=amounts.get("memory"),
            resources=other or None, max_restarts=-1, max_task_retries=0, scheduling_strategy=where,
        )(Host)
        return made.remote(group)

    def _start(self, process: ManagedProcess) -> None:
        if process.group in self._evicted:
            if self._waiting_for_room():
                process.restart_at = time.monotonic() + RETRY_SECONDS
                return
            self._evicted.discard(process.group)
            amounts = self._colocation(process.group).amounts[process.group]
            self._hosts[process.group] = self._make_host(process.group, amounts)
        checkpoint = self._newest_checkpoint()
        assignment = Assignment(
            group=process.group, specs=process.specs, edges=list(self._edges_of(process).values()), blocks={},
            incarnation=self._incarnation + process.incarnation, seed=self._program.seed, checkpoint=checkpoint,
            threads=max(1, int(self._colocation(process.group).amounts[process.group].get("CPU", 1))),
            spin=spin_for(len(self._processes), usable_cores()), rhythm=process.heartbeats.rhythm,
        )
        self._begins_with[process.group] = checkpoint
        run = self._hosts[process.group].run
        self._lives[run.remote(self._driver, cloudpickle.dumps(assignment), process.incarnation)] = process

    def _colocation(self, group: str) -> Colocation:
        return next(colocation for colocation in self._colocations if group in colocation.groups)

    def _listen(self, seconds: float) -> None:
        assert self._connection_listener is not None
        lines = {process.line.fileno(): process for process in self._processes.values() if process.line is not None}
        ready = set(readable([*lines, *self._connection_listener.descriptors()], seconds))
        for descriptor, process in lines.items():
            if descriptor in ready:
                self._hear(process)
        for hello, line in self._connection_listener.arrivals(time.monotonic()):
            self._arrived(hello, line)
        lives = [*self._lives, self._registry_life]
        done, _ = ray.wait(lives, num_returns=len(lives), timeout=0)
        if self._registry_life in done:
            raise RunError("the registry of the cluster run died; continue with --resume")
        for life in done:
            self._ended(self._lives.pop(life), life)
        self._report_unplaced()
        self._make_room()

    def _arrived(self, hello: dict[str, Any], line: StreamConnection) -> None:
        process = self._processes[hello["group"]]
        if hello["incarnation"] != process.incarnation:
            line.close()  # of an incarnation that was given up
            return
        refuse_other_versions(hello["versions"], hello["ip"])
        self._places[process.group] = hello["node"]
        self._unplaced.pop(process.group, None)
        if process.essential and process.incarnation:  # a learner continues from a checkpoint, and so do the counts
            checkpoint = self._begins_with[process.group]
            metadata = verify(checkpoint)["metadata"] if checkpoint is not None else {"steps": 0, "updates": 0}
            self._controller.rewind(metadata["steps"], metadata["updates"])
        self._begin(process, line)
        self._came(process, hello["pid"], hello["ip"])
        self._hear(process)  # what came with the hello may have left the socket: no descriptor tells of it

    def _ended(self, process: ManagedProcess, life: Any) -> None:
        """An incarnation is over: it died, or Ray could not start it."""
        self._hear(process)
        if process.group in self._evicted:
            process.close()
            process.pid, process.restart_at = None, time.monotonic() + RETRY_SECONDS
            return
        try:
            ray.get(life)
            how = "it ended without a stop command"
        except ray.exceptions.RayTaskError as error:  # before it was connected
            how, process.failure = "it could not begin", {"died": str(error)}
        except ray.exceptions.RayError as error:
            how = cause(error)
            if process.pid is None:
                return self._ask_again(process, error)
        if self._lost_its_node(process):
            process.deaths_in_a_row = 0  # nothing is wrong with the role
            how = "its node is gone"
        process.close()
        alone = self._config.learners == 1
        self._died(process, process.notice(how), process.essential and (not alone or bool(process.failure)))
        self._unplaced[process.group] = time.monotonic() + PATIENCE_SECONDS

    def _kill(self, process: ManagedProcess) -> None:
        ray.kill(self._hosts[process.group], no_restart=False)

    def _lost_its_node(self, process: ManagedProcess) -> bool:
        """Whether its node is gone; the registry is told once."""
        node = self._places.get(process.group, "")
        if not node or node in {one["NodeID"] for one in ray.nodes() if one["Alive"]}:
            return False
        del self._places[process.group]
        self._registry.gone.remote(process.group, node)
        return True

    def _report_unplaced(self) -> None:
        """Once for each group that was not placed for a while; a checkpoint does not wait for it."""
        for group, until in list(self._unplaced.items()):
            if time.monotonic() > until:
                self._unplaced[group] = float("inf")
                self._controller.event(waits_for(self._colocation(group), rooms(free=True)), group)
        gone = [group for group, until in self._unplaced.items() if until == float("inf")]
        if self._saving is not None and self._saving.waiting & set(gone):
            self._give_up_saving(f"{', '.join(gone)} has no place")

    def _waiting_for_room(self) -> list[Colocation]:
        """Reserved groups that have had no place for a while."""
        latest = time.monotonic() + PATIENCE_SECONDS - ROOM_SECONDS
        waiting = [group for group, until in self._unplaced.items() if until < latest or until == float("inf")]
        return [self._colocation(group) for group in waiting if group in self._bundles]

    def _make_room(self) -> None:
        """Have actors beyond the fewest give way to a reserved group that lost its node and finds no other. Those that
        wait for a place themselves stand back, too: they would take what the others leave."""
        waiting = self._waiting_for_room()
        if not waiting or time.monotonic() < self._next_eviction:
            return
        self._next_eviction = time.monotonic() + ROOM_SECONDS  # Ray frees and places meanwhile
        extra = [one for one in self._colocations if self._comes_and_goes(one)]
        here = {group: one.amounts[group] for one in extra for group in one.groups if group not in self._evicted}
        holding = {group: (self._places.get(group, ""), amounts) for group, amounts in here.items()}
        going = who_gives_way(waiting[0].total, rooms(free=True), holding)
        unplaced = [group for group in here if self._processes[group].pid is None and group not in going]
        for group in [*going, *unplaced] if going else []:
            self._evicted.add(group)
            ray.kill(self._hosts[group], no_restart=True)
            if group in going:
                self._controller.event(f"gives its room to {' and '.join(waiting[0].groups)}", group)

    def _ask_again(self, process: ManagedProcess, error: ray.exceptions.RayError) -> None:
        """Ray is still placing it, or has said why it never will."""
        if "creation task" in str(error) or isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            raise RunError(f"Ray could not start {process.group}: {error}")
        if self._lost_its_node(process):
            self._controller.event("its node is gone; Ray looks for another node", process.group)
        process.restart_at = time.monotonic() + RETRY_SECONDS

    def _stop(self) -> None:
        deadline = time.monotonic() + self._supervision.stop_seconds
        for stopped in self._in_order():
            for process in stopped:
                process.send({"stop": self._controller.over})
            groups = {process.group for process in stopped if process.pid is not None}
            waited_for = [life for life, process in self._lives.items() if process.group in groups]
            while waited_for and time.monotonic() < deadline:
                _, waited_for = ray.wait(waited_for, num_returns=len(waited_for), timeout=0.05)
                for process in stopped:
                    self._hear(process)

    def _clean_up(self) -> None:
        for process in self._processes.values():
            process.close()
        if self._connection_listener is not None:
            self._connection_listener.close()
        actors = [*self._hosts.values(), *([self._registry] if self._registry is not None else [])]
        ends = [(ray.kill, actor) for actor in actors] + [(remove_placement_group, group) for group in self._reserved]
        for end, thing in ends:
            with contextlib.suppress(Exception):  # Ray itself may be gone
                end(thing)
        if self._connected:
            ray.shutdown()
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)
