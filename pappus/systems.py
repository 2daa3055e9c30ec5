"""Every named system: a topology, an algorithm, and defaults that work. And presets: what an env wants different."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig, OptimizerConfig, RunConfig, load_file, override
from pappus.core import Algorithm
from pappus.errors import UserError, closest
from pappus.topologies import impala
from pappus.topologies.program import Program
from pappus.topologies.run import Run
from pappus.types import EnvSpec


@dataclass(frozen=True)
class System:
    """A topology and an algorithm that go together."""

    name: str
    purpose: str
    paper: str
    figure: str
    topology: Callable[[Run], Program]
    algorithm: Callable[[Any, EnvSpec, NetworkConfig], Algorithm]
    defaults: RunConfig


SYSTEMS: dict[str, System] = {
    "impala": System(
        name="impala",
        purpose="many actors with slightly stale policies, one learner that corrects for it: the most frames per second",
        paper="Espeholt et al. 2018, IMPALA",
        figure=impala.__doc__ or "",
        topology=impala.impala,
        algorithm=VTrace,
        defaults=RunConfig(algorithm=VTraceConfig(), system="impala", optimizer=OptimizerConfig()),
    ),
}


@dataclass(frozen=True)
class Preset:
    """Settings for one system on envs whose id matches a pattern; only what differs from the defaults."""

    system: str
    envs: str
    settings: Mapping[str, Any]


PRESETS: tuple[Preset, ...] = ()


def find_system(name: str) -> System:
    """The system of that name."""
    if name not in SYSTEMS:
        raise UserError(f"unknown system {name!r}{closest(name, list(SYSTEMS))}; `pappus systems` lists them all")
    return SYSTEMS[name]


def preset_for(system: str, env: str) -> Preset | None:
    """The first preset that matches."""
    matching = (p for p in PRESETS if p.system == system and fnmatch.fnmatch(env, p.envs))
    return next(matching, None)


def saved_config(directory: Path) -> RunConfig:
    """The resolved config of a run directory."""
    path = directory / "config.yaml"
    if not path.is_file():
        raise UserError(f"{str(directory)!r} is no run directory: it has no config.yaml; `ls runs` shows what there is")
    content = load_file(path)
    return override(find_system(str(content.get("system", ""))).defaults, content, str(path))
