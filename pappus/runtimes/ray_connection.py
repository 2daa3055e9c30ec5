"""Connecting to Ray, and what it says about nodes, versions and deaths."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import defaultdict
from typing import Any

import ray

from pappus.config import ClusterConfig
from pappus.errors import RunError, UserError
from pappus.runtimes.resources import NodeRoom
from pappus.telemetry.files import versions
from pappus.telemetry.processes import kept_signals, usable_cores
from pappus.transports.addresses import Address

COMPARED = ("python", "pappus", "torch")
"""Versions that must be the same on all nodes; of Python the first two numbers."""
NOT_SHIPPED = ["runs", ".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc"]
"""Parts of the working directory that no node needs."""
ANSWER_SECONDS = 5.0
LOOPBACK = "127.0.0.2"
"""Where a Ray that is started for one run listens. It would replace 127.0.0.1 by the outer address."""


def connect(cluster: ClusterConfig, cores: float) -> bool:
    """Make this process a driver, unless it is one already; whether it was made one. `cores` are what roles reserve."""
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if cluster.address not in ("", "auto", there):
            raise UserError(f"cluster.address={cluster.address!r}, but this process is connected to {there}")
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.address:
        refuse_where_nobody_listens(cluster.address)
        options["runtime_env"] = {"working_dir": os.getcwd(), "excludes": NOT_SHIPPED}
    else:
        options |= _alone(cores)
    try:
        with kept_signals():  # Ray's handler for SIGTERM would end the run without saving it
            ray.init(address=cluster.address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:300]
        if not cluster.address:
            raise RunError(f"Ray could not be started on this machine: {reason}") from None
        raise UserError(
            f"cluster.address={cluster.address!r} cannot be used: {reason}; start Ray with `ray start --head`, and "
            "keep large files out of the working directory, which is sent to the nodes"
        ) from None
    return True


def refuse_where_nobody_listens(address: str) -> None:
    """Raise `UserError` for a HOST:PORT that does not answer: Ray itself would try it for minutes."""
    if address == "auto" or "://" in address:
        return
    where = Address.parse(address)
    try:
        socket.create_connection((where.host, where.port), ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"cluster.address={address!r}: nobody listens there ({error}); start Ray with `ray start --head`, and give "
            "the address that it prints"
        ) from None


def _alone(cores: float) -> dict[str, Any]:
    """Ray for this run alone, on this machine. It gets as many CPUs as roles reserve, even if there are fewer cores."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"num_cpus": max(usable_cores(), int(-(-cores // 1))), "include_dashboard": False}
    if sys.platform == "linux":
        options["_node_ip_address"] = LOOPBACK
    return options


def free_resources(cluster: ClusterConfig) -> dict[str, float]:
    """What is free on all nodes together, by name."""
    connected = connect(cluster, 0.0)
    try:
        total: dict[str, float] = defaultdict(float)
        for room in rooms(free=True):
            for name, amount in room.free.items():
                total[name] += amount
        return dict(total)
    finally:
        if connected:
            ray.shutdown()


def rooms(free: bool = False) -> list[NodeRoom]:
    """The living nodes, with all that they have, or what is free of it."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found = {node["NodeID"]: node["Resources"] for node in nodes}
    if free:
        available = ray._private.state.available_resources_per_node()
        found = {node: available.get(node, {}) for node in found}
    return [NodeRoom(node["NodeManagerAddress"], dict(found[node["NodeID"]]), node["NodeID"]) for node in nodes]


def refuse_other_versions(theirs: dict[str, str], ip: str) -> None:
    """Raise `UserError` if a node has another version than the driver."""
    ours = versions()
    for package in COMPARED:
        one, other = (short(package, table.get(package, "unknown")) for table in (ours, theirs))
        if one != other:
            raise UserError(
                f"node {ip} has {package} {other}, and the driver has {one}; install the same version on both"
            )


def short(package: str, version: str) -> str:
    """As much of a version as must agree: `3.11` of Python, `2.13.0` of a build `2.13.0+cpu`."""
    return ".".join(version.split(".")[:2]) if package == "python" else version.partition("+")[0]


def cause(error: ray.exceptions.RayError) -> str:
    found = re.search(r"exit detail: ([^.\n]+)", str(error))
    return found[1].strip() if found else "its process is gone"
