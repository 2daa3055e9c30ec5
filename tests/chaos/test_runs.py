"""Short runs with every kind of fault: all is survived, all is accounted for, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.warm_processes import ROOT, Forked, _fork_a_server

QUICK = [
    "--once", "--every", "0.1", "--minutes", "5", "--checkpoint.every-seconds", "1", "--supervision.hang-seconds", "1",
    "--evaluation.episodes", "1", "--supervision.stop-seconds", "5",
]


class Fork:
    """A training that is forked from the chaos, which has imported everything."""

    def __init__(self, output: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _train(output, words, environment)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 60.0)
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._code is None:
            raise subprocess.TimeoutExpired("chaos", timeout or 60.0)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _train(output: Path, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    import tempfile
    import traceback

    from pappus.cli import main

    code = 1
    try:
        os.setsid()
        os.environ.update(environment)
        tempfile.tempdir = None
        file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        if back := float(environment.get("PAPPUS_CHAOS_CLOCK", 0)):
            real = time.time
            time.time = lambda: real() - back
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        code = main(list(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _chaos(words: Sequence[str]) -> NoReturn:
    from pappus.chaos import faults, training
    from pappus.cli import main
    from pappus.runtimes import controller
    from pappus.runtimes.forkserver import ForkServer

    os.chdir(ROOT)
    ForkServer.__init__ = _fork_a_server  # type: ignore[method-assign]
    training.launch = Fork
    faults.FULL_SECONDS, faults.DELAY_SECONDS = 2.0, (0.2, 0.4)
    controller.LOG_SECONDS = 0.2  # metrics show sooner that a run is well
    sys.exit(main(list(words)))


def chaos(folder: Path, *words: str) -> dict[str, Any]:
    """The report of a run that survived everything."""
    log = folder / "out.txt"
    with log.open("w") as file:
        command = Forked(
            _chaos, ["chaos", *words, *QUICK, "--run-dir", str(folder / "run")], output=(file.fileno(), file.fileno())
        )
    assert command.wait(150) == 0, log.read_text() + (folder / "run-chaos.log").read_text()[-3000:]
    report: dict[str, Any] = json.loads((folder / "run" / "chaos.json").read_text())
    assert report["failures"] == [] and report["accounts"]["exact"] and report["accounts"]["parts"] > 0
    return report


@pytest.mark.parametrize(
    ("system", "faults", "seed", "hit"),
    [
        ("impala", "kill,end", 3, "actor-0"), ("seed-vtrace", "kill,flood,partition", 9, "inference"),
        ("apex-dqn", "corrupt,kill", 2, "replay"), ("ppo", "preempt,hang", 1, "actor-0"),
        ("a3c", "kill-run,crash,delay", 14, "worker-0"), ("gorila-dqn", "disk,clock,kill", 1, "bundle-0"),
    ],
)
def test_a_run_survives(system: str, faults: str, seed: int, hit: str, tmp_path: Path) -> None:
    """The seed is one with which a process is hit that holds steps: accounts are exact all the same."""
    report = chaos(tmp_path, system, "--env", "CartPole-v1", "--faults", faults, "--seed", str(seed))
    assert sorted(fault["kind"] for fault in report["faults"]) == sorted(faults.split(","))
    assert all(fault["seconds"] is not None for fault in report["faults"])
    assert hit in [fault["target"] for fault in report["faults"]]
