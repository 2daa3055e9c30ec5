"""The directory of a run, and what is opened in it before the run begins."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pappus.config import RunConfig
from pappus.data.no_env import SPEC_FILE
from pappus.envs.external import PREFIX, is_external
from pappus.errors import UserError
from pappus.hooks.find import TENSORBOARD
from pappus.settings import to_yaml
from pappus.telemetry.checkpoint import CheckpointStore
from pappus.telemetry.run_folders import check_free
from pappus.telemetry.run_log import RunLog
from pappus.topologies.program import Run

if TYPE_CHECKING:
    from pappus.record import RunRecording


def new_directory(config: RunConfig) -> Path:
    """A fresh directory for a run; one that holds a run already is refused."""
    short = config.env.removesuffix("/data").rpartition("/")[2] if config.env.startswith("data:") else config.env
    env, system = (_folder_name(text) for text in (short, config.system_name))
    name = f"{system}-{env}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(config.run_dir or Path("runs") / name)
    while not config.run_dir and directory.exists():  # another run began in the same second
        directory = directory.with_name(f"{directory.name}+")
    check_free(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"run_dir={str(directory)!r} cannot be made: {error.strerror}") from None
    return directory.resolve()


def placed(run: Run, directory: Path, fallback: Path | None) -> Run:
    """The run in its directory; its config names paths as they are found from any working directory."""
    config = run.config
    storage = config.storage if fallback is None else replace(config.storage, fallback_dir=str(fallback.parent))
    record = str(Path(config.record).resolve()) if config.record else ""
    config = replace(config, run_dir=str(directory), record=record, storage=storage)
    return replace(run, directory=directory, config=config)


def _folder_name(text: str) -> str:
    """`<lambda>` of a script is `lambda`: what a shell can take without quotes."""
    return re.sub(r"[^\w.+@=-]+", "-", text.removeprefix("__main__:").replace("<locals>.", "")).strip("-") or "env"


def fallback_directory(config: RunConfig, directory: Path, resumed: bool) -> Path | None:
    """Where the run's checkpoints go that its own directory cannot take; None where that is nowhere else."""
    if not config.storage.fallback_dir:
        return None
    fallback = Path(config.storage.fallback_dir).resolve() / directory.name
    if resumed:
        return None if fallback == directory else fallback
    if fallback == directory:
        raise UserError(f"fallback_dir={config.storage.fallback_dir!r} is where the run itself is; give another disk")
    if (fallback / "config.yaml").exists():
        raise UserError(f"{str(fallback)!r}, the fallback directory, holds a run already; give another --fallback-dir")
    return fallback


def open_stores(
    directory: Path, fallback: Path | None, config: RunConfig
) -> tuple[CheckpointStore, CheckpointStore | None]:
    """The run's checkpoints, and those in its fallback directory, from which it can be resumed as from its own."""
    try:
        store = CheckpointStore(directory / "checkpoints", config.checkpoint.keep_last)
        if fallback is None:
            return store, None
        spare = CheckpointStore(fallback / "checkpoints", config.checkpoint.keep_last)
        (fallback / "config.yaml").write_text(to_yaml(config))
    except OSError as error:
        raise UserError(f"{error.filename!r} cannot be written: {error.strerror}; give another directory") from None
    return store, spare


def open_log(directory: Path, config: RunConfig, resume_step: int | None) -> RunLog:
    """The run's log, with its config; a directory that cannot be written when the run begins is refused."""
    try:
        log = RunLog(directory, resume_step=resume_step, tensorboard=TENSORBOARD in config.hooks.loggers)
        log.keep("config.yaml", to_yaml(config))
        if is_external(config.env):
            log.keep(SPEC_FILE, Path(config.env.removeprefix(PREFIX)).read_text())
    except OSError as error:
        raise UserError(
            f"run_dir={str(directory)!r} cannot be written: {error.strerror}; make room, or give another --run-dir"
        ) from None
    return log


@contextmanager
def recording_of(run: Run) -> Iterator[RunRecording | None]:
    """The recording that the run's config asks for; `UserError` where that is impossible. A run that fails leaves its
    parts: they are taken up when it is resumed, or completed by whoever opens the data set."""
    if not run.config.record:
        yield None
        return
    from pappus.record import RunRecording, about_env

    config = run.config
    about = about_env(run.env, config.env, config.env_options, run.env_spec, system=config.system_name)
    recording = RunRecording(Path(config.record).resolve(), about)
    try:
        yield recording
    finally:
        recording.release()


def begin_trace(directory: Path, config: RunConfig) -> Path | None:
    """The folder of the run's trace, if it is traced."""
    if not config.trace:
        return None
    from pappus.trace import origin

    return origin.begin(directory, to_yaml(config))
