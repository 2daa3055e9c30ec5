"""A run in a process of its own: `pappus train`, begun or gone on with."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pappus.telemetry.checkpoint import has_checkpoint

OUTPUT = "output.txt"
"""What the run prints, in its directory."""
_PR_SET_PDEATHSIG = 1


def start_run(
    directory: Path, words: Sequence[str], trust: bool = False, again: bool = False
) -> subprocess.Popen[bytes]:
    """Train in `directory` what the words of a command line mean, or what is left of it. A run that was begun `again`
    without a checkpoint starts anew. If this process is killed, so is the run's."""
    begun = has_checkpoint(directory / "checkpoints")
    if again and not begun:
        _clear(directory)
    resume = ["--resume", str(directory), *(["--trust"] if trust else [])]
    directory.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-P", "-m", "pappus", "train",  # -P: nothing is imported from this folder
        *(resume if begun else [*words, "--run-dir", str(directory)]),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (directory / OUTPUT).open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=_die_with_parent, env=environment,
        )


def _clear(directory: Path) -> None:
    """Remove what is left of a run that was killed before its first checkpoint."""
    for path in directory.glob("*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != OUTPUT:  # which says what happened
            path.unlink()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
