"""A system is a value: an algorithm, a topology, and settings that suit the pair.

    from pappus.system import AlgorithmSpec, System
    from pappus.systems import TOPOLOGIES

    reinforce = AlgorithmSpec("reinforce", Reinforce, ReinforceConfig())
    my_system = System(reinforce, TOPOLOGIES["sync"])

`pappus train my_module:my_system --env CartPole-v1` finds it, and so do `eval`, `--resume`, `--seeds` and the cluster.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pappus.config import AlgorithmConfig, NetworkConfig, RunConfig, TopologyConfig
from pappus.core import Algorithm
from pappus.errors import UserError
from pappus.settings import override
from pappus.topologies.program import Program, Run
from pappus.types import ActionSpec, EnvSpec


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm by name, and what it asks of a topology."""

    name: str
    make: Callable[[Any, EnvSpec, NetworkConfig], Algorithm]
    """(its config, env, network config) → the algorithm."""
    config: AlgorithmConfig
    """Default settings, `--algorithm.*`."""
    learns_from_replay: bool = False
    """Learns from replayed items; otherwise from unrolls, each used once, in order."""
    corrects_for_lag: bool = False
    """Learns from unrolls of older weights, too (V-trace's ratios, a clip); otherwise the newest weights must act."""
    several_epochs: bool = False
    """Makes several updates from each batch, so a batch must reach one learner (or learners in step) as a whole."""
    updates_all_weights: bool = True
    """Every update changes all weights; False where parts of the network are trained less often (TD3's policy)."""
    topologies: tuple[str, ...] = ()
    """The only topologies that it is for; empty: all that can carry it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace the topology's, wherever it runs."""
    refusal: Callable[[ActionSpec], str] = lambda action: ""
    """Why it cannot take an env's actions, as a clause and a remedy; empty where it can."""
    purpose: str = ""


@dataclass(frozen=True)
class Topology:
    """An architecture by name: who the roles are, and what travels between them."""

    name: str
    build: Callable[[Run], Program]
    config: TopologyConfig
    """Default settings, `--topology.*`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace the defaults of a run."""
    over_algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace the algorithm's, too."""
    replay: bool | None = None
    """Whether it trains on replayed items; False: on fresh unrolls, each used once; None: on either."""
    lags: bool = False
    """Whether its actors may act with older weights than the newest."""
    refusal: Callable[[AlgorithmSpec], str] = lambda algorithm: ""
    """A further reason why it cannot carry an algorithm, as a clause and a remedy; empty where it can."""
    variants: tuple[Topology, ...] = ()
    """The same architecture for other kinds of algorithms; the first that carries an algorithm is used."""
    figure: str = ""
    """What `pappus systems` shows; the default is the docstring of the module that builds it, which opens with one."""

    def __post_init__(self) -> None:
        module = inspect.getmodule(self.build)
        object.__setattr__(self, "figure", (self.figure or (module and module.__doc__) or "").strip())

    def for_algorithm(self, algorithm: AlgorithmSpec) -> Topology:
        """This topology or the variant that carries the algorithm; `UserError` where none does."""
        for topology in (self, *self.variants):
            if not topology.why_not(algorithm):
                return topology
        raise UserError(f"{algorithm.name}@{self.name} cannot work: {self.why_not(algorithm)}")

    def why_not(self, algorithm: AlgorithmSpec) -> str:
        """Why it cannot carry an algorithm, as a clause and a remedy; empty where it can."""
        name = algorithm.name
        if algorithm.topologies and self.name not in algorithm.topologies:
            return f"{name} is made for {_listed(algorithm.topologies)}; use {name}@{algorithm.topologies[0]}"
        if algorithm.learns_from_replay and self.replay is False:
            return f"{name} learns from replay, and {self.name} has none; use {name}@apex"
        if self.replay and not algorithm.learns_from_replay:
            return (
                f"{name} learns from fresh unrolls, each used once, and {self.name} trains on replayed items; use "
                f"{name}@sync"
            )
        if self.lags and not algorithm.learns_from_replay and not algorithm.corrects_for_lag:
            return (
                f"{name} needs unrolls of the newest weights, and {self.name}'s actors lag behind; use {name}@sync, or "
                "vtrace or appo, which correct for the lag"
            )
        return self.refusal(algorithm)


@dataclass(frozen=True)
class Preset:
    """Settings for envs whose id matches a pattern: only what differs from the defaults, and why. `pairs` are patterns
    of ALGORITHM@TOPOLOGY, such as `ppo@*`."""

    pairs: tuple[str, ...]
    envs: str
    settings: Mapping[str, Any]
    on_gpu: bool = False
    """Whether it is only for learners that compute on a GPU."""
    topology: str = ""
    """The topology that named systems take instead, such as `seed`."""

    @property
    def name(self) -> str:
        """What it is for, in words."""
        return f"{', '.join(self.pairs)} on {self.envs}{' with a GPU' if self.on_gpu else ''}"

    def matches(self, pair: str, env: str) -> bool:
        """Whether it is for this pair on this env."""
        return fnmatch.fnmatch(env, self.envs) and any(fnmatch.fnmatch(pair, pattern) for pattern in self.pairs)


@dataclass(frozen=True)
class System:
    """An algorithm on a topology, with settings that suit both."""

    algorithm: AlgorithmSpec
    topology: Topology
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that replace those of topology and algorithm."""
    presets: tuple[Preset, ...] = ()
    """Settings for particular envs, beside the built-in ones."""
    on_gpu: bool = False
    """Whether presets for a GPU apply. Set by `api.system_here`."""
    purpose: str = ""
    paper: str = ""
    found_as: str = ""
    """How commands find it: a name, ALGORITHM@TOPOLOGY, or module:name. Set by `systems.find_system`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topology", self.topology.for_algorithm(self.algorithm))
        object.__setattr__(self, "name", self.name or self.pair)

    @property
    def pair(self) -> str:
        """ALGORITHM@TOPOLOGY."""
        return f"{self.algorithm.name}@{self.topology.name}"

    @property
    def defaults(self) -> RunConfig:
        """The config of a run on an env without presets."""
        system = self.found_as or f"python:{self.name}"
        config = RunConfig(algorithm=self.algorithm.config, system=system, topology=self.topology.config)
        topology = self.topology
        for settings in (topology.settings, self.algorithm.settings, topology.over_algorithm, self.settings):
            config = override(config, settings, f"defaults of {self.name}")
        return config


def _listed(names: Sequence[str]) -> str:
    """`offline, single and apex`."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last
