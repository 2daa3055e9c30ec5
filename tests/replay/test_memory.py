"""Tables that do not fit are refused before they fill up: the machine's memory counts, and so does a container's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pappus.errors import UserError
from pappus.replay import ArraySpec, Service, uniform_replay
from pappus.replay.storage.chunks import plan
from pappus.replay.storage.memory import available_memory, refuse_too_large

GIB = 1 << 30


def machine(root: Path, groups: str, **files: str) -> str:
    """A /proc and a /sys that say so; of the machine's memory 8 GiB are left."""
    left = f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n"
    for path, text in {"proc/meminfo": left, "proc/self/cgroup": groups, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def group(path: str, most: int | str, used: int, cached: int = 0) -> dict[str, str]:
    """A group of version 2."""
    folder = f"sys/fs/cgroup/{path}".rstrip("/")
    stat = f"anon 7\nfile {cached}\nactive_file {cached // 2}\ninactive_file {cached - cached // 2}\n"
    return {f"{folder}/memory.max": f"{most}\n", f"{folder}/memory.current": str(used), f"{folder}/memory.stat": stat}


def test_without_groups_the_machine_s_memory_counts(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, "")) == 8 * GIB


def test_a_container_s_limit_counts_and_cached_files_make_way(tmp_path: Path) -> None:
    files = group("", 4 * GIB, 3 * GIB, cached=GIB)
    assert available_memory(machine(tmp_path, "0::/\n", **files)) == 2 * GIB


def test_the_limit_of_a_group_around_counts(tmp_path: Path) -> None:
    files = {**group("jobs", 5 * GIB, GIB), **group("jobs/one", "max", GIB)}
    assert available_memory(machine(tmp_path, "0::/jobs/one\n", **files)) == 4 * GIB


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, "0::/\n", **group("", GIB, 2 * GIB))) == 0


@pytest.mark.parametrize("path", ["/docker/abc", "/elsewhere"], ids=["seen from outside", "seen from inside"])
def test_groups_of_version_1_count(tmp_path: Path, path: str) -> None:
    inside = "docker/abc/" if path == "/docker/abc" else ""
    files = {
        f"sys/fs/cgroup/memory/{inside}memory.limit_in_bytes": str(3 * GIB),
        f"sys/fs/cgroup/memory/{inside}memory.usage_in_bytes": str(2 * GIB),
        f"sys/fs/cgroup/memory/{inside}memory.stat": f"active_file 1\ntotal_inactive_file {GIB // 2}",
    }
    assert available_memory(machine(tmp_path, f"5:cpu,cpuacct:/\n4:memory:{path}\n0::/\n", **files)) == 3 * GIB // 2


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "much", "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB)}
    assert available_memory(machine(tmp_path, "4:memory:/\n0::/\n", **files)) == 8 * GIB


def test_chunks_beyond_what_is_left_are_refused_with_the_sum(tmp_path: Path) -> None:
    layout = plan({"obs": ArraySpec((1 << 20,), "uint8")}, 3000, 32)
    refuse_too_large(layout, machine(tmp_path / "large", ""))
    with pytest.raises(UserError, match=r"take 3\.44 GiB, and 2\.0 GiB are left .* lower max_steps"):
        refuse_too_large(layout, machine(tmp_path / "small", "0::/\n", **group("", 2 * GIB, 0)))


def test_a_service_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="lower max_steps"):
        Service([uniform_replay("t", 1 << 40, {"obs": ArraySpec((1 << 20,), "uint8")})])
