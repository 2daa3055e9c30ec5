"""Processes: started fast, restarted when they die, and gone when the run is."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pappus.config import SupervisionConfig
from pappus.core import Waitable
from pappus.errors import RoleDied
from pappus.kinds import RoleKind
from pappus.roles.role import IDLE, Role
from pappus.runtimes.local import LocalRuntime
from pappus.topologies.program import Program
from tests.contracts.runtime_contract import Endless, FakeController, RuntimeContract, program


def run(made: Program, controller: Any, checkpoint: Path | None = None, deaths: int = 5) -> None:
    LocalRuntime(made, controller, SupervisionConfig(max_deaths_in_a_row=deaths)).run(checkpoint)


class TestLocalRuntime(RuntimeContract):
    def run(self, made: Program, controller: Any, checkpoint: Path | None = None) -> None:
        run(made, controller, checkpoint)


class Dying(Role):
    """Dies in its first lives: by an exception, a signal or a crash in native code."""

    def __init__(self, name: str, incarnation: int, how: str, lives: int) -> None:
        super().__init__(name)
        self._how = how if incarnation < lives else "not at all"

    def step(self) -> Waitable | None:
        if self._how == "exception":
            raise ValueError("the env broke")
        if self._how == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "crash":
            ctypes.string_at(0)
        return IDLE


def with_dying(how: str, lives: int) -> Program:
    made = program(1)
    made.add(RoleKind("dying"), Dying, how=how, lives=lives)
    return made


@pytest.mark.parametrize(
    ("how", "shown"), [("exception", "exit code 1"), ("signal", "SIGKILL"), ("crash", "SIGSEGV")]
)
def test_a_role_that_dies_is_restarted_and_the_event_is_shown(how: str, shown: str) -> None:
    controller = EndsWhenReborn("dying", lives=2)
    run(with_dying(how, lives=2), controller)
    assert len(controller.pids["dying"]) == 3
    assert controller.events[0].startswith(f"dying: dying died ({shown}); restarting")
    assert how != "exception" or "ValueError: the env broke" in controller.events[0], "the log keeps the traceback"


@pytest.mark.parametrize(
    ("how", "shown"), [("exception", "ValueError: the env broke"), ("crash", "Segmentation fault")]
)
def test_a_role_that_never_recovers_ends_the_run_with_its_first_traceback(how: str, shown: str) -> None:
    with pytest.raises(RoleDied, match=r"dying died 3 times in a row; the first time:") as caught:
        run(with_dying(how, lives=99), EndsWhenReborn("dying", lives=99), deaths=2)
    assert shown in str(caught.value)


class Hanging(Role):
    """Works once in its first life, and then neither works nor dies."""

    def __init__(self, name: str, incarnation: int, how: str) -> None:
        super().__init__(name)
        self._how, self._steps = how if incarnation == 0 else "not at all", 0

    def step(self) -> Waitable | None:
        self._steps += 1
        self.metrics.count("steps")
        if self._steps == 1 or self._how == "not at all":
            return IDLE
        if self._how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)
        return None


@pytest.mark.parametrize(
    ("how", "shown"), [("stopped", "it does not run: a signal has stopped it"), ("asleep", "in step")]
)
def test_a_role_that_hangs_is_explained_killed_and_replaced(how: str, shown: str) -> None:
    made = program(1)
    made.add(RoleKind("hanging"), Hanging, how=how)
    controller = EndsWhenReborn("hanging", lives=1)
    LocalRuntime(made, controller, SupervisionConfig(hang_seconds=2.0)).run()  # type: ignore[arg-type]
    assert len(controller.pids["hanging"]) == 2
    assert controller.events[0].startswith("hanging: hanging died (hung: hanging gave no sign of life for ")
    assert shown in controller.events[0] and controller.faults == [("hanging", "hangs")]


class DiesOnCommand(Role):
    """Idles until it is told to do something, and dies of it, as a broken evaluator would."""

    def __init__(self, name: str, incarnation: int) -> None:
        super().__init__(name)
        self._told = False

    def step(self) -> Waitable | None:
        if self._told:
            raise ValueError("this role dies of its work")
        return IDLE

    def receive(self, command: str, argument: int) -> None:
        self._told = True


class AsksAgain(Endless):
    """Repeats its command to every new incarnation."""

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        super().role_started(role, pid)
        if role == "servant":
            self._controls.command("servant", "work", 1)


def test_a_role_that_dies_of_every_command_ends_the_run() -> None:
    made = program(1)
    made.add(RoleKind("servant"), DiesOnCommand)
    with pytest.raises(RoleDied, match="this role dies of its work"):
        run(made, AsksAgain(), deaths=2)


def test_a_producer_that_is_killed_comes_back_and_nothing_is_lost() -> None:
    controller = KillsOnce("producer-0")
    run(program(2), controller)
    assert controller.counts.get("from 0", 0) + controller.counts.get("from 1", 0) == 50


def test_no_process_and_no_shared_memory_is_left() -> None:
    before = set(os.listdir("/dev/shm"))
    controller = FakeController()
    run(program(2), controller)
    assert controller.pids
    assert not any(_alive(pid) for pids in controller.pids.values() for pid in pids)
    assert set(os.listdir("/dev/shm")) == before


class EndsWhenReborn(FakeController):
    """The run goes on until a role has lived often enough."""

    def __init__(self, role: str, lives: int) -> None:
        super().__init__()
        self._role, self._lives = role, lives

    def decide(self) -> bool:
        return len(self.pids.get(self._role, [])) > self._lives


class KillsOnce(FakeController):
    """Kills a role as soon as it runs, and ends the run when it is back and all is done."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def role_started(self, role: str, pid: int, node: str = "") -> None:
        super().role_started(role, pid)
        if role == self._role and len(self.pids[role]) == 1:
            os.kill(pid, signal.SIGKILL)

    def decide(self) -> bool:
        return self.is_over and len(self.pids.get(self._role, [])) == 2


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
