"""What `--record DIR` does around a run: before it, say what will be recorded; after it, make a data set of the parts.

    checks, DIR/parts/spec.json ──▶ roles write DIR/parts/*.part ──▶ DIR/data, a Minari data set
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pappus.config import EnvOptions
from pappus.data.assemble import RecordedEnv, assemble, begin_recording
from pappus.data.recorder import shared_lock
from pappus.data.spaces import recorded_spaces
from pappus.envs.external import is_external
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.types import EnvSpec


class RunRecording:
    """The recording of one run, from its checks to its data set."""

    def __init__(self, directory: Path, about: RecordedEnv) -> None:
        """`UserError` where nothing can be recorded into the directory."""
        self._directory = directory
        try:
            self._lock = shared_lock(directory)
            begin_recording(directory, about)
        except OSError as error:
            raise UserError(f"record={str(directory)!r} cannot be written: {error.strerror}; give another") from None

    def release(self) -> None:
        """Record no more. The parts stay for a run that goes on, or for whoever opens the data set."""
        self._lock.close()

    def finish(self) -> str:
        """Assemble the data set, and say what is in it now."""
        self.release()
        try:
            added = assemble(self._directory)
        except OSError as error:
            return (
                f"{str(self._directory)!r} could not be completed: {error}; its parts are kept: make room, then run "
                f"pappus data info {self._directory}"
            )
        except UserError as error:
            return f"{str(self._directory)!r} could not be completed: {error}"
        if added is None:
            return f"{str(self._directory)!r}: another run still records there, and completes the data set when it ends"
        if not added.episodes:
            return f"recorded nothing: no episode began: {self._directory}"
        return f"recorded {added.episodes:,} episodes, {added.steps:,} steps: {self._directory}"


def about_env(
    env: str | Callable[..., Any], name: str, options: EnvOptions, spec: EnvSpec, **own: Any
) -> RecordedEnv:
    """What a data set says of an env that is called `name`; `own` are further entries of its metadata."""
    known = {"env_options": asdict(options), "clipped_rewards": False, **own}
    if is_external(env):
        return RecordedEnv("", *recorded_spaces(spec, None), spec.frame_stack, known)
    with contextlib.closing(make_env(env, 1, 0, options)) as one:
        rules = getattr(getattr(one, "_env", one), "clips_rewards", False)
        return RecordedEnv(name, *recorded_spaces(spec, one), spec.frame_stack, {**known, "clipped_rewards": rules})
