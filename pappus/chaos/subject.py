"""What a command trains, and what of it may be hurt: its processes, and where it listens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pappus.chaos.training import Subject
from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.execution.description import describe
from pappus.execution.directory import new_directory
from pappus.system import System
from pappus.transports.addresses import with_port

LISTEN = "127.0.0.1:0"


def subject_of(system: System, config: RunConfig, words: Sequence[str], run_dir: str | None) -> Subject:
    """The run that some words of `pappus train` mean, in a fresh directory. Where others may join, they may, at a port
    that stays the same in all parts of the run."""
    if config.runtime != "local":
        raise UserError(f"runtime={config.runtime!r}: chaos disturbs the processes of one machine; use --runtime local")
    topology: Any = config.topology
    listens = with_port(topology.wire.listen or LISTEN) if hasattr(topology, "wire") else ""
    if listens and listens != topology.wire.listen:
        words = [*words, "--listen", listens]
        wire = dataclasses.replace(topology.wire, listen=listens)
        config = dataclasses.replace(config, topology=dataclasses.replace(topology, wire=wire))
    run = describe(config, config.env, system)
    groups = system.topology.build(run).groups()
    directory = new_directory(dataclasses.replace(config, run_dir=run_dir or config.run_dir))
    directory.rmdir()  # the training makes it
    essential = {name: any(spec.essential for spec in specs) for name, specs in groups.items()}
    return Subject(tuple(words), directory, essential, listens, config.env)
