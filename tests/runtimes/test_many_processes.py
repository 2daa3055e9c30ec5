"""Runs with many processes: each holds what it needs alone, all take part, and what cannot be is refused before."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, cast

import pytest

from pappus.config import AlgorithmConfig, RunConfig, SupervisionConfig
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs import gym_backend  # noqa: F401
from pappus.errors import UserError
from pappus.kinds import RoleKind
from pappus.runtimes import local
from pappus.runtimes.local import LocalRuntime
from pappus.runtimes.process_limits import check_limits
from pappus.topologies.program import Program
from tests.contracts.queue_contract import SPEC
from tests.contracts.runtime_contract import CONSUMER, ITEMS, PRODUCER, Consumer, FakeController, Producer, program

MANY = 34
"""More than the fork server is asked for at a time."""
GIB = 1 << 30


def run(made: Program, controller: FakeController) -> None:
    LocalRuntime(made, cast(Any, controller), SupervisionConfig()).run()


class Counts(FakeController):
    """Notes who has sent something, and the descriptors of each process; ends when all have and all is consumed."""

    def __init__(self, producers: int) -> None:
        super().__init__()
        self._producers = producers
        self.sent: set[str] = set()
        self.descriptors: dict[str, int] = {}

    def report(self, report: Any) -> None:
        super().report(report)
        folder = Path(f"/proc/{self.pids[report['role']][0]}/fd")
        if report["counts"] and folder.exists():  # it may have ended by now
            self.descriptors.setdefault(report["role"], len(os.listdir(folder)))
        if "sent" in report["counts"]:
            self.sent.add(report["role"])

    def decide(self) -> bool:
        return self.is_over and len(self.sent) == self._producers


def test_all_of_many_processes_take_part_and_none_is_left() -> None:
    assert 2 * LocalRuntime.most_coming < MANY
    before = len(os.listdir("/proc/self/fd"))
    controller = Counts(MANY)
    run(program(MANY), controller)
    assert len(controller.pids) == MANY + 1 and not controller.faults
    assert not any(Path(f"/proc/{pid}").exists() for pids in controller.pids.values() for pid in pids)
    assert len(os.listdir("/proc/self/fd")) < before + MANY // 2


def test_a_process_holds_the_descriptors_of_its_own_ends_alone() -> None:
    """The consumer of 300 rings gets more than the system passes with one packet."""
    made = Program("toy")
    queue = made.connect(QueueEdge("items", SPEC, 300, 2))
    weights = made.connect(WeightsEdge("weights", 4))
    for i in range(2):
        made.add(PRODUCER, Producer, index=i, sink=queue.sink(298 + i), weights=weights.reader())
    made.add(CONSUMER, Consumer, essential=True, source=queue.source(), weights=weights.writer())
    controller = Counts(2)
    run(made, controller)
    assert sum(count for name, count in controller.counts.items() if name.startswith("from")) == ITEMS
    assert controller.descriptors["consumer"] > 300
    assert max(controller.descriptors["producer-0"], controller.descriptors["producer-1"]) < 30


class EndsEarly(FakeController):
    """Ends before any process is there, as a run that is interrupted while it starts."""

    finishing, over = True, ""

    def decide(self) -> bool:
        return "consumer" in self.pids


def test_a_run_that_ends_while_it_starts_starts_no_more_actors() -> None:
    made = Program("toy")
    queue = made.connect(QueueEdge("items", SPEC, 1, 2))
    weights = made.connect(WeightsEdge("weights", 4))
    made.add(RoleKind("actor", steps_envs=True), Producer, index=0, sink=queue.sink(0), weights=weights.reader())
    made.add(CONSUMER, Consumer, essential=True, source=queue.source(), weights=weights.writer())
    controller = EndsEarly()
    run(made, controller)
    assert list(controller.pids) == ["consumer"]


def test_what_the_main_process_has_loaded_is_imported_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(local.ForkServer, "prepare", lambda self, modules: asked.extend(modules))
    run(program(1), FakeController())
    assert "pappus.envs.gym_backend" in asked
    assert all(name.startswith(local.SHARED_PACKAGES) for name in asked), "what starts threads survives no fork"


def machine(root: Path, groups: str = "", pids: str = "", most: int = 32768) -> str:
    """A /proc and a /sys that say so; of the machine's memory 8 GiB are left."""
    files = {"proc/meminfo": f"MemAvailable: {8 * GIB // 1024} kB\n", "proc/sys/kernel/pid_max": str(most)}
    files |= {"proc/self/cgroup": groups} if groups else {}
    files |= {"sys/fs/cgroup/jobs/pids.max": pids, "sys/fs/cgroup/jobs/pids.current": "40"} if pids else {}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def config_of(actors: int) -> RunConfig:
    return RunConfig(AlgorithmConfig(), actors=actors)


def test_a_thousand_actors_pass_on_a_common_machine(tmp_path: Path) -> None:
    check_limits(config_of(1000), machine(tmp_path, "0::/jobs\n", "max"))


@pytest.mark.parametrize(
    ("groups", "pids", "most", "actors", "sentence"),
    [
        ("0::/jobs\n", "500", 32768, 1000, r"needs 1,005 processes, and the container \(pids.max of .*\) allows 460"),
        ("", "", 900, 1000, r"needs 1,005 processes, and the system \(sysctl kernel.pid_max\) allows 900; raise it"),
        ("", "", 32768, 2000, r"2,005 processes take at least 15.7 GiB, and 8.0 GiB are left .*; use fewer --actors"),
    ],
    ids=["container", "system", "memory"],
)
def test_more_processes_than_there_can_be_are_refused_by_the_limit_s_name(
    tmp_path: Path, groups: str, pids: str, most: int, actors: int, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        check_limits(config_of(actors), machine(tmp_path, groups, pids, most))


def test_more_open_files_than_allowed_are_refused_by_the_limit_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 2000))
    with pytest.raises(UserError, match=r"1,005 processes need 3,079 open files .* may have 2,000 \(ulimit -Hn\)"):
        check_limits(config_of(1000), machine(tmp_path))
