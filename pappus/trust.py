"""What a run directory or a data set asks for, and whether its reader asked for the same before.

Anybody can write a run directory, and its config.yaml names code. What is free: Gymnasium ids, systems of ours, and
what installed packages register. Everything else that it asks for must be allowed by `--trust` (Python: `trust=True`),
or be what this user himself asked for in this working directory. That is remembered outside of any run directory:

    $XDG_STATE_HOME/pappus/asked/DIGEST.json    (default: ~/.local/state), one per folder, setting and value

So a stranger's directory can name at most what its reader ran in this place before, with the same arguments.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pappus.config import RunConfig
from pappus.errors import UserError

RUN_FILE = "config.yaml"
"""Where a run directory has its config."""
REMEDY = "add --trust (Python: trust=True)"
RUNS_CODE = "runs code"
CODE = (
    "env_options.backend", "network.factory", "topology.replay.sampler", "topology.replay.remover", "hooks.callbacks",
    "hooks.loggers",
)
"""Settings whose `module:name`, or each of several, is imported and called."""
REACHES = {
    "cluster.address": "hands this machine to a cluster", "topology.wire.listen": "listens there",
    "record": "writes a data set there", "page_server.listen": "serves a page there",
}
"""Settings by which a run that goes on reaches beyond its directory."""
ENV = ("env", "env_options.kwargs", "env_options.backend")
"""Settings that mean nothing where no env is made."""
FILES = ("spec:", "data:")
"""Prefixes of envs that are files."""


class Asked(NamedTuple):
    """Something that only its reader may want."""

    setting: str
    value: Any
    effect: str = RUNS_CODE

    @property
    def path(self) -> Path:
        """Where it is remembered for this working directory."""
        key = json.dumps([os.path.realpath(os.getcwd()), self.setting, _plain(self.value)])
        return _state() / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    @property
    def known(self) -> bool:
        """Whether this user asked for it here before."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_uid == os.getuid()
        return False


def asked_by(config: RunConfig, defaults: RunConfig, without: Collection[str] = ()) -> list[Asked]:
    """What a config asks for, beyond what its system does anyway; `without` are settings that mean nothing here."""
    found = system_asked(config.system)
    found += env_asked(config.env)
    if env_asked(config.env) or _holds_name(config.env_options.kwargs):
        found.append(Asked("env_options.kwargs", [config.env, config.env_options.kwargs]))
    for name in (*CODE, *REACHES):
        usual = several(setting_of(defaults, name))
        for value in several(setting_of(config, name)):
            if value and value not in usual and (name in REACHES or is_name(value)):
                found.append(Asked(name, value, REACHES.get(name, RUNS_CODE)))
    return [one for one in found if one.setting not in without]


def system_asked(system: str) -> list[Asked]:
    """The same of a system's name alone: it must be found before there is a config."""
    if system.startswith("python:"):  # a Python value, which no name finds
        return []
    return [Asked("system", part) for part in system.split("@") if is_name(part) and not part.startswith("pappus.")]


def env_asked(env: str) -> list[Asked]:
    """The same of an env's name alone: a data set has one, too."""
    return [] if env.startswith(FILES) or not is_name(env) else [Asked("env", env)]


def check_trust(source: str, asked: Sequence[Asked], remedy: str = REMEDY) -> None:
    """Raise `UserError` for the first thing that this user did not ask for here before."""
    for one in asked:
        if not one.known:
            value = one.value[1] if one.setting == "env_options.kwargs" else one.value
            raise UserError(
                f"{source} asks for {one.setting}={value!r:.200}, which {one.effect} here, and you did not ask for it "
                f"in this folder before; if you trust whoever wrote it, {remedy}"
            )


def remember(asked: Sequence[Asked]) -> None:
    """Note what this user asked for here. Where that cannot be written, he is asked to `--trust` it later."""
    with contextlib.suppress(OSError):
        for one in asked:
            path = one.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = {"folder": os.path.realpath(os.getcwd()), "setting": one.setting, "value": _plain(one.value)}
            path.write_text(json.dumps(content) + "\n")


def is_name(value: Any) -> bool:
    """Whether a value may be `module:name`."""
    return isinstance(value, str) and ":" in value


def _state() -> Path:
    home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state") / "pappus" / "asked"


def setting_of(config: RunConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def several(value: Any) -> tuple[Any, ...]:
    """The values of a setting that may have more than one."""
    return value if isinstance(value, tuple) else (value,)


def _plain(value: Any) -> Any:
    """A setting as JSON, the same before it is written to config.yaml and after it is read from there."""
    if isinstance(value, Mapping):
        return {"mapping": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


def _holds_name(value: Any) -> bool:
    """Whether names hide in the arguments of an env: some envs make another one."""
    if isinstance(value, Mapping):
        return any(map(_holds_name, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_name, value))
    return is_name(value)
