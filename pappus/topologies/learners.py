"""Several learners that share every update: for all topologies that have `--learners`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pappus.config import RunConfig
from pappus.core import AllReduce, EpochAlgorithm, SyncedEpochAlgorithm, SyncedEpochs
from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.edge import PortRef
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import LEARNER
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import Body, RunningMoments
from pappus.overrides import stands_for
from pappus.roles.gradient_sync import numbers_beside
from pappus.roles.role import Role
from pappus.topologies.program import Program
from pappus.topologies.run import Run

ALL_REDUCE = "other learners"
"""The name under which a learner waits for the gradients of others."""


def numbered(name: str, index: int) -> str:
    """`unrolls`, `unrolls-1`, `unrolls-2` …"""
    return f"{name}-{index}" if index else name


def add_learners(
    program: Program, run: Run, build: Callable[..., Role], weights: WeightsEdge,
    arguments: Callable[[int], dict[str, Any]],
) -> None:
    """Add all learners of a run; `arguments(i)` are further arguments of learner i.

    The first publishes and saves, and is called `learner` as where it is alone; the others are its replicas. All are
    essential: none can go on without the others.
    """
    for i in range(run.config.learners):
        program.add(
            LEARNER, build, index=i or None, essential=True, replica_of=LEARNER.name if i else "", run=run,
            weights=weights.writer() if i == 0 else None, all_reduce=all_reduce_end(program, run, i), **arguments(i),
        )


def all_reduce_end(program: Program, run: Run, index: int) -> PortRef[AllReduce] | None:
    """The all-reduce of learner `index` with the others; None if it is alone."""
    if run.config.learners == 1:
        return None
    edge = program.edges.get(ALL_REDUCE) or program.connect(_all_reduce(run))
    assert isinstance(edge, AllReduceEdge)
    return edge.member(index)


def _all_reduce(run: Run) -> AllReduceEdge:
    members = run.config.learners
    parameters = check_network(run)
    return AllReduceEdge(ALL_REDUCE, members, parameters + numbers_beside(members), backend_of(run.config))


def backend_of(config: RunConfig) -> Literal["memory", "gloo", "nccl"]:
    """The all-reduce backend."""
    if config.all_reduce != "auto":
        return config.all_reduce
    return "memory" if config.device == "cpu" else "nccl"


def check_network(run: Run) -> int:
    """The number of parameters; `UserError` if the network has buffers that would differ between learners.

    Running moments of observations do not, nor do the buffers that a `SyncedEpochs` keeps equal.
    """
    network, algorithm = run.algorithm.build_network(), run.algorithm
    synced = [buffer for moments in _moments_of_observations(network) for buffer in moments.buffers()]
    if isinstance(algorithm, EpochAlgorithm):
        synced += synced_epochs(algorithm, run.config.learners).synced_buffers(network)
    known = {id(buffer) for buffer in synced}
    buffers = [name for name, it in network.named_buffers() if it.is_floating_point() and id(it) not in known]
    if buffers:
        raise UserError(
            f"the network has buffers that no gradient moves ({', '.join(buffers[:3])}), which would differ between "
            f"learners={run.config.learners}; use layers without running statistics, or one learner"
        )
    return FlatParameters(network).num_parameters


def synced_epochs(algorithm: EpochAlgorithm, learners: int) -> SyncedEpochs:
    """How learners share the minibatches of an algorithm; `UserError` if it does not say, or for other minibatches."""
    kind = type(algorithm)
    if not isinstance(algorithm, SyncedEpochAlgorithm):
        raise UserError(f"{kind.__name__} has no synced(), which learners={learners} need for minibatches; use one")
    if not stands_for(kind, "synced", "prepare", "minibatches"):
        raise UserError(
            f"{kind.__name__} overrides prepare or minibatches, and learners={learners} share batches by synced(); "
            "override that, too, or use one learner"
        )
    return algorithm.synced()


def _moments_of_observations(network: Any) -> list[RunningMoments]:
    """Running moments of the observations that a network was shown."""
    modules = network.torso.modules() if isinstance(network, Body) else ()
    return [module for module in modules if isinstance(module, RunningMoments)]


def device_of(config: RunConfig, index: int) -> str:
    """The device of learner `index`: learners do not share a GPU, and Ray shows each learner its own only."""
    alone = config.learners == 1 or config.device == "cpu" or config.runtime == "ray"
    return config.device if alone else f"cuda:{index}"


def check_learners(config: RunConfig) -> None:
    """Raise `UserError` for several learners whose all-reduce cannot work."""
    backend = backend_of(config)
    if config.learners == 1:
        return
    if config.inline and backend != "memory":
        raise UserError(f"all_reduce={backend!r} needs processes, and the inline runtime has none; use memory")
    if backend == "nccl" and config.device == "cpu":
        raise UserError("all_reduce='nccl' adds up on GPUs, and device='cpu' is none; use gloo or memory")
    if backend == "memory" and config.device != "cpu":
        raise UserError(f"all_reduce='memory' adds up on the CPU, not on device={config.device!r}; use nccl or gloo")
    if config.device not in ("cpu", "cuda"):
        raise UserError(
            f"device={config.device!r} is one GPU, and learners={config.learners} take one each; use --device cuda"
        )
