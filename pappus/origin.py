"""What the settings of a run come from, in a sentence."""

from __future__ import annotations

from pappus.config import RunConfig
from pappus.configured import configured
from pappus.errors import UserError
from pappus.presets import evidence_on, presets_for
from pappus.settings import differences
from pappus.system import System

OF_A_COMMAND = ("env", "seed", "run-dir", "data", "record", "init-from", "trace", "page", "page-server.listen")
"""What every command names anew."""
SHOWN = 6
"""Options that are named; a config file may change dozens."""


def origin_of(system: System, config: RunConfig) -> list[str]:
    """Which presets apply to a run, and what was changed beyond them; `config` as it was asked for."""
    presets = presets_for(system, config.env)
    if presets:
        shown = [str(one) for one in evidence_on(system, config.env)] or ["no evidence recorded"]
        first = f"preset {' and '.join(preset.name for preset in presets)}; {'; '.join(shown)}"
    else:
        first = f"no preset is for {system.name} on {config.env}: it starts from the defaults of {system.name}"
    changed = _changed(system, config)
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return [first, *([f"changed from that: {', '.join(changed[:SHOWN])}{more}"] if changed else [])]


def plain_config(system: System, config: RunConfig) -> RunConfig | None:
    """What the presets alone would make of a run on this env; None where one of its own is wrong, which is told
    elsewhere."""
    try:
        return configured(system, config.env)
    except UserError:
        return None


def _changed(system: System, config: RunConfig) -> list[str]:
    """Options whose values are neither of the system nor of a preset."""
    plain = plain_config(system, config)
    found = {} if plain is None else differences(config, plain)
    return [f"--{name} {_shown(value)}" for name, value in found.items() if name not in OF_A_COMMAND]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={one}" for name, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
