"""What a run starts with: defaults of its system, what suits its env, and what its user gives. It needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pappus.config import RunConfig
from pappus.data.specs import env_of_data
from pappus.errors import UserError
from pappus.presets import presets_for
from pappus.settings import load_file, override
from pappus.system import System
from pappus.trust import RUN_FILE, asked_by, check_trust

OF_ONE_RUN = ("run_dir", "record", "init_from")
"""Settings in the config.yaml of a run that another one with the same config does not share."""


def configured(
    system: System, env: str, settings: Mapping[str, Any] | None = None, file: Path | None = None, trust: bool = False
) -> RunConfig:
    """The resolved config: defaults < preset < file < settings. A file that is the config.yaml of a run is trusted as
    little as its directory."""
    written = load_file(file) if file is not None else {}
    written.pop("evidence", None)  # of a file that a sweep wrote
    if file is not None and file.name == RUN_FILE and written.get("run_dir"):
        written = {name: value for name, value in written.items() if name not in OF_ONE_RUN}
    typed = ["system", *(["env"] if env else [])]
    given = {**written, **(settings or {})}
    env, data = env or str(given.get("env", "")), str(given.get("data", ""))
    env = env_of_data(data, env) if data else env
    config = dataclasses.replace(system.defaults, env=env)
    for preset in presets_for(system, env):
        config = override(config, preset.settings, f"preset {preset.envs}")
    config = override(config, written, str(file))
    if file is not None and file.name == RUN_FILE and not trust:
        check_trust(f"file {str(file)!r}", asked_by(config, system.defaults, typed))
    return same_system(override(config, settings or {}), system)


def same_system(config: RunConfig, system: System) -> RunConfig:
    """`config`, unless its settings name another system than the one that is trained."""
    if config.system != system.defaults.system:
        raise UserError(f"system={config.system!r} is no setting: the run is of {system.name!r}; leave it out")
    return config
