"""A program is data: roles, edges between them, and which roles share a process.

A topology is a function from a run to a `Program`. It starts nothing: a runtime builds the roles in their processes and
turns the ends of edges that they were given (`PortRef`) into ports.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from pappus.config import RunConfig
from pappus.core import Algorithm, OnPolicyAlgorithm, ReplayAlgorithm
from pappus.edges.edge import Edge, PortRef
from pappus.errors import UserError
from pappus.kinds import RoleKind
from pappus.layout import Layout, size_of
from pappus.roles.role import Role
from pappus.types import ORIGIN, ArraySpec, EnvSpec, Nest, Unroll, unroll_spec

E = TypeVar("E", bound=Edge)


@dataclass(frozen=True)
class Run:
    """One run, as topologies and roles see it: the config, and what is derived from it before anything is started."""

    config: RunConfig
    env: str | Callable[..., Any]
    env_spec: EnvSpec
    algorithm: Algorithm
    state_spec: Nest
    """Recurrent state of one env."""
    layout: Layout
    """What lies in the flat buffer of weights."""
    directory: Path | None = None
    first_weights: Path | None = None
    """The checkpoint whose weights it begins with, in place of random ones."""

    @property
    def weights_size(self) -> int:
        """Numbers in the flat buffer of weights."""
        return size_of(self.layout)

    def unroll_spec(self, num_envs: int) -> Unroll:
        """Specs of an unroll of `num_envs` envs side by side."""
        behaviour = dict(self.algorithm.behaviour)
        if self.config.topology.others_may_join:
            behaviour[ORIGIN] = ArraySpec((), "int64")
        return unroll_spec(self.env_spec, behaviour, self.state_spec, self.config.unroll_length, num_envs)


@dataclass(frozen=True)
class RoleSpec:
    """How to build a role: by `build(name, incarnation, **arguments)`, in the process where it runs. Ends of edges, and
    lists of them, among the arguments become ports. `incarnation` counts restarts: a restarted role does not repeat
    what its predecessor saw."""

    name: str
    kind: RoleKind
    index: int | None
    build: Callable[..., Role]
    arguments: Mapping[str, Any]
    group: str
    essential: bool
    durable: bool = False
    replica_of: str = ""

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold its state."""
        return (self.essential or self.durable) and not self.replica_of

    @property
    def begins_with(self) -> str:
        """The role whose saved state it begins with, if there is a checkpoint; empty for a fresh start."""
        return self.replica_of or (self.name if self.saved else "")

    def ends(self) -> list[PortRef[Any]]:
        """The ends of edges that the role holds."""
        listed = [value if isinstance(value, list) else [value] for value in self.arguments.values()]
        return [value for values in listed for value in values if isinstance(value, PortRef)]


@dataclass
class Program:
    """Roles, the edges between them, and which roles share a process."""

    name: str
    seed: int = 0
    """The seed of libraries' global random states; roles have generators of their own."""
    roles: list[RoleSpec] = field(default_factory=list)
    edges: dict[str, Edge] = field(default_factory=dict)

    def connect(self, edge: E) -> E:
        """A new edge, whose ends (`PortRef`) are given to roles."""
        if edge.name in self.edges:
            raise UserError(f"edge {edge.name!r} is in program {self.name!r} twice; give each edge a name of its own")
        self.edges[edge.name] = edge
        return edge

    def add(
        self, kind: RoleKind, build: Callable[..., Role], *, index: int | None = None, essential: bool = False,
        durable: bool = False, group: str = "", replica_of: str = "", **arguments: Any,
    ) -> None:
        """A new role, called after its kind and index; `build` receives the index if there is one.

        The run ends when an essential role dies (but for a cluster's only learner); others are restarted, a durable one
        from the newest checkpoint. Roles of one group share a process, each with a thread of its own. A replica always
        has the state of the role that it is a replica of: it is not saved, and begins with what that role saved.
        """
        name = kind.role_name(index)
        if index is not None:
            arguments["index"] = index
        if any(spec.name == name for spec in self.roles):
            raise UserError(f"role {name!r} is in program {self.name!r} twice; give each role a name of its own")
        spec = RoleSpec(name, kind, index, build, arguments, group or name, essential, durable, replica_of)
        self.roles.append(spec)

    @property
    def kinds(self) -> dict[str, RoleKind]:
        return {spec.name: spec.kind for spec in self.roles}

    @property
    def weights_roles(self) -> list[str]:
        """The roles whose saved `weights`, one after the other, are those of the policy."""
        return [spec.name for spec in self.roles if spec.kind.trains and spec.saved]

    def groups(self) -> dict[str, list[RoleSpec]]:
        """Roles by process, in the order in which they were added."""
        groups: dict[str, list[RoleSpec]] = {}
        for spec in self.roles:
            groups.setdefault(spec.group, []).append(spec)
        return groups


def on_policy(algorithm: Algorithm) -> OnPolicyAlgorithm:
    """The same algorithm, if it learns from unrolls as they come."""
    if hasattr(algorithm, "experience"):
        raise UserError(f"{type(algorithm).__name__} learns from replay, which this topology does not have; use apex")
    return cast(OnPolicyAlgorithm, algorithm)


def off_policy(algorithm: Algorithm) -> ReplayAlgorithm:
    """The same algorithm, if it learns from replay."""
    if not hasattr(algorithm, "experience"):
        raise UserError(f"{type(algorithm).__name__} learns from fresh unrolls and not from replay; use sync")
    return cast(ReplayAlgorithm, algorithm)


def derive_seed(seed: int, *path: str | int) -> tuple[int, int]:
    """Two seeds for one purpose; purposes differ, and so do their streams."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    first, second = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return int(first) >> 1, int(second) >> 1
