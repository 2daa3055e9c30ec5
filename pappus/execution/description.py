"""What is derived from a config before anything is written or started."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from pappus.accelerator import one_thread
from pappus.beginnings import EnvLike, with_data
from pappus.config import RunConfig
from pappus.core import Algorithm
from pappus.data.dataset import open_dataset
from pappus.data.specs import check_spec, spec_of
from pappus.errors import UserError
from pappus.machine import fit
from pappus.networks.flat import FlatParameters
from pappus.precision import choose_precision
from pappus.runtimes.forkserver import ForkServer
from pappus.runtimes.memory_need import MemoryPlan, memory_plan
from pappus.system import System
from pappus.systems import find_system
from pappus.telemetry.meter import meter_for
from pappus.telemetry.process_tree import ProcessTree
from pappus.telemetry.spending import check_measurable
from pappus.topologies.program import Run
from pappus.validation import validate


@one_thread()  # first weights took seconds beside other programs: OpenMP's threads wait for each other at every step
def describe(config: RunConfig, env: EnvLike, system: System | None = None) -> Run:
    """What follows from a config before anything is written or started: env, network, precision, memory."""
    system = system or find_system(config.system)
    config, _ = fit(config, env, system)
    spec = spec_of(env, config.env_options)
    if config.data:
        check_spec(open_dataset(config.data), env, spec, config.env_options)
    algorithm = system.algorithm.make(config.algorithm, spec, config.network)
    network: Any = first_network(algorithm)
    config = dataclasses.replace(
        config, precision=choose_precision(config, algorithm, spec), topology=config.topology.settled(config)
    )
    return Run(config, env, spec, algorithm, network.state_spec, FlatParameters(network).layout)


def plan_memory(config: RunConfig, env: EnvLike, system: System) -> MemoryPlan:
    """What a run of a resolved config would take of this machine's memory. Nothing is written or started."""
    config, env = with_data(config, env)
    config, _ = fit(config, env, system)
    validate(config)
    check_measurable(config, meter_for(config, ProcessTree(), None))
    run = describe(config, env, system)
    return memory_plan(run, system.topology.build(run), envs=True)


def check_traced(run: Run, system: System, resumed: bool) -> None:
    """Raise `UserError` for a run that cannot be traced."""
    from pappus.trace import origin
    from pappus.trace.products import VARIABLE, same_products

    origin.check_config(run.config, resumed)
    program = system.topology.build(run)
    origin.check_program(run.config.system_name, program.kinds.values(), program.edges.values())
    if VARIABLE not in os.environ:  # the processes of roles must have it from their start
        ForkServer.discard()
        same_products()


def first_network(algorithm: Algorithm) -> Any:
    """A fresh network; `UserError` for one that does not fit into memory."""
    try:
        return algorithm.build_network()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            "the network does not fit into memory; use smaller --network.hidden-sizes, --network.core-size or "
            "--algorithm.head-size"
        ) from None
