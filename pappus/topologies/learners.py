"""Learners: one, or several that share every update (`--learners`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from pappus.config import RunConfig
from pappus.core import (
    AllReduce,
    EpochAlgorithm,
    ItemSource,
    Sink,
    Source,
    StepTotal,
    SyncedEpochAlgorithm,
    SyncedEpochs,
    WeightsReader,
    WeightsWriter,
)
from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import LEARNER
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import Body, RunningMoments
from pappus.overrides import stands_for
from pappus.recording.mixed import MixedSource
from pappus.roles.epoch_training import EpochTraining
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.gradient_sync import numbers_beside
from pappus.roles.learner import Learner, Publication, Training, UnrollTraining
from pappus.roles.replay_training import ReplayTraining
from pappus.telemetry.metrics import Metrics
from pappus.telemetry.weights import stored_weights
from pappus.topologies.program import Program, Run, derive_seed, off_policy, on_policy


def numbered(name: str, index: int) -> str:
    """`unrolls`, `unrolls-1`, `unrolls-2` …"""
    return f"{name}-{index}" if index else name


def actors_of(config: RunConfig, learner: int) -> int:
    """The number of actors that feed learner `learner`; actors are assigned round-robin."""
    return len(range(learner, config.actors, config.learners))


def slots_per_batch(config: RunConfig, learner: int) -> int:
    """Unrolls that make a batch of learner `learner`: as the config says, or one of each of its actors."""
    steady = len(range(learner, config.steady_actors, config.learners))
    return config.batch_size // config.envs_per_actor or steady


def add_learners(
    program: Program, run: Run, weights: WeightsEdge, arguments: Callable[[int], dict[str, Any]]
) -> None:
    """Add all learners of a run; `arguments(i)` are further arguments of `build_learner` for learner i. The first
    publishes and saves, and is called `learner`; the others are its replicas. None can continue alone."""
    members = run.config.learners
    all_reduce = None
    if members > 1:
        size = check_network(run) + numbers_beside(members)
        all_reduce = program.connect(AllReduceEdge("other learners", members, size, backend_of(run.config)))
    for i in range(members):
        program.add(
            LEARNER, build_learner, index=i or None, essential=True, replica_of=LEARNER.name if i else "", run=run,
            weights=None if i else weights.writer(), all_reduce=None if all_reduce is None else all_reduce.member(i),
            **arguments(i),
        )


def build_learner(
    name: str, incarnation: int, run: Run, slots: int, source: Source, weights: WeightsWriter | None,
    nearby: WeightsWriter | None = None, index: int = 0, all_reduce: AllReduce | None = None,
    published: WeightsReader | None = None, suspects: Sink | None = None,
) -> Learner:
    """A learner of unrolls, in epochs if its algorithm has them; `slots` slots of its source make a batch."""
    algorithm = run.algorithm
    gradient = GradientStep(Metrics(name), algorithm, learner_settings(run, index), all_reduce)
    training: Training
    if isinstance(algorithm, EpochAlgorithm):
        synced = None if all_reduce is None else synced_epochs(algorithm, all_reduce.members)
        training = EpochTraining(algorithm, source, gradient, slots, synced)
    else:
        epochs = getattr(algorithm, "epochs", 1)
        training = UnrollTraining(
            on_policy(algorithm), source, gradient, slots, releases_early=nearby is not None, epochs=epochs
        )
    return Learner(name, gradient, training, Publication(weights, nearby, published), suspects)


def learner_settings(run: Run, index: int = 0) -> LearnerSettings:
    """Settings of learner `index`. All begin with the same weights. None share a GPU; Ray shows each only its own."""
    config, seed = run.config, derive_seed(run.config.seed, "learner")[0]
    alone = config.learners == 1 or config.device == "cpu" or config.runtime == "ray"
    device = config.device if alone else f"cuda:{index}"
    return LearnerSettings(
        config.optimizer, config.steps, seed, device, config.precision, run.directory, run.first_weights,
        config.skips_non_finite,
    )


def initial_weights(run: Run) -> torch.Tensor:
    """The first weights of a run, in one flat tensor."""
    if run.first_weights is not None:
        return torch.from_numpy(stored_weights(run.first_weights))
    torch.manual_seed(derive_seed(run.config.seed, "learner")[0])
    return FlatParameters(run.algorithm.build_network()).values


def build_replay_learner(
    name: str, incarnation: int, run: Run, capacity: int, source: ItemSource, weights: WeightsWriter,
    counted: StepTotal | None, data: ItemSource | None = None, keeps_rows: bool = False,
    nearby: WeightsWriter | None = None, suspects: Sink | None = None,
) -> Learner:
    """The one learner of a table of `capacity` items, and where there is `data` of a second one. `counted` are the
    steps of actors, if there are any; these lag anyway, so weights seldom leave a device. `keeps_rows`: see
    `ReplayConfig.keep_on_device`."""
    gradient = GradientStep(Metrics(name), run.algorithm, learner_settings(run))
    source = source if data is None else MixedSource([source, data])
    training = ReplayTraining(off_policy(run.algorithm), source, counted, gradient, capacity, keeps_rows)
    return Learner(name, gradient, training, Publication(weights, nearby, seldom=gradient.accelerator.real), suspects)


def backend_of(config: RunConfig) -> Literal["memory", "gloo", "nccl"]:
    if config.all_reduce != "auto":
        return config.all_reduce
    return "memory" if config.device == "cpu" else "nccl"


def check_network(run: Run) -> int:
    """The number of parameters; `UserError` if the network has buffers that would differ between learners. Running
    moments of observations do not, nor do the buffers that a `SyncedEpochs` keeps equal."""
    network, algorithm = run.algorithm.build_network(), run.algorithm
    modules = list(network.torso.modules()) if isinstance(network, Body) else []
    synced = [buffer for module in modules if isinstance(module, RunningMoments) for buffer in module.buffers()]
    if isinstance(algorithm, EpochAlgorithm):
        synced += synced_epochs(algorithm, run.config.learners).synced_buffers(network)
    known = {id(buffer) for buffer in synced}
    buffers = [name for name, it in network.named_buffers() if it.is_floating_point() and id(it) not in known]
    if buffers:
        raise UserError(
            f"the network has buffers that gradients do not train ({', '.join(buffers[:3])}), which would differ "
            f"between learners={run.config.learners}; use layers without running statistics, or one learner"
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


def check_learners(config: RunConfig) -> None:
    """Raise `UserError` for several learners whose all-reduce cannot work."""
    backend = backend_of(config)
    if config.learners == 1:
        return
    if config.inline and backend != "memory":
        raise UserError(f"all_reduce={backend!r} needs processes, and the inline runtime has none; use memory")
    if backend == "nccl" and config.device == "cpu":
        raise UserError("all_reduce='nccl' needs GPUs, but device='cpu'; use gloo or memory")
    if backend == "memory" and config.device != "cpu":
        raise UserError(f"all_reduce='memory' sums on the CPU, not on device={config.device!r}; use nccl or gloo")
    if config.device not in ("cpu", "cuda"):
        raise UserError(
            f"device={config.device!r} is one GPU, and learners={config.learners} need one each; use --device cuda"
        )
