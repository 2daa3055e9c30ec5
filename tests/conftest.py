"""What all tests share: fork servers that start at once, and lanes.

A lane is a marker that each test gets from the place where it stands. `make test` runs one pytest per lane, three at
a time; `make test-fast` runs the lane `quick` alone.

    quick      in one process, most in milliseconds
    long       in one process, for seconds: whole runs, Atari, the suite of all replay sessions, hostile clients
    values     in one process: every pair finds the values of the closed form
    learning   the known scores, in real processes
    processes  commands that are killed, interrupted and resumed
    faults     runs and populations that lose disks, clients, readers and processes
    ray        clusters
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pappus.runtimes.forkserver import ForkServer
from tests.warm_processes import fork_servers_from_the_template

TESTS = Path(__file__).parent
LANES = {
    "ray": ("runtimes/test_ray.py", "test_ray_processes.py"),
    "learning": ("test_learning.py",),
    "processes": (
        "page/test_in_browser.py", "replay/test_serve.py", "runtimes/test_local.py", "runtimes/test_many_processes.py",
        "telemetry/test_saves.py", "test_doctor.py", "test_api.py", "test_kinds.py", "test_processes.py",
        "test_systems.py", "test_trace_processes.py", "test_without_ray.py", "tuning/test_run.py",
    ),
    "faults": (
        "benchmarks/test_architectures.py", "chaos/test_runs.py", "clients/", "test_offline_processes.py",
        "test_population.py", "test_record_processes.py", "test_remote.py", "test_storage.py",
    ),
    "values": ("conformance/",),
    "long": (
        "edges/test_all_reduce.py", "envs/test_atari.py", "envs/test_check.py", "envs/test_envpool.py", "export/",
        "judging/",
        "recording/test_ports.py", "replay/test_compression.py", "replay/test_hostile_clients.py",
        "replay/test_sessions.py", "test_accounts.py", "test_continuing.py", "test_determinism.py", "test_record.py",
        "test_resume.py",
        "test_seconds.py", "topologies/", "transports/test_wire.py",
    ),
}
"""Files and folders of tests/; what is not here is quick."""


def lane_of(path: Path) -> str:
    """The lane of a test file."""
    place = path.relative_to(TESTS).as_posix()
    return next((lane for lane, places in LANES.items() if place.startswith(places)), "quick")


def pytest_configure(config: pytest.Config) -> None:
    for lane in ("quick", *LANES):
        config.addinivalue_line("markers", f"{lane}: a lane, see tests/conftest.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A lane does not import the files of the others."""
    asked = config.getoption("markexpr")
    known = asked == "quick" or asked in LANES
    return True if known and collection_path.name.startswith("test_") and lane_of(collection_path) != asked else None


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported and collected stays, and is looked through no more


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(lane_of(item.path))


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests ask for is not remembered as what whoever runs them asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_fork_servers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkServer, "__init__", fork_servers_from_the_template)
        yield
        ForkServer.discard()  # a refused command may leave one; it hears no SIGTERM, and multiprocessing sends no other
