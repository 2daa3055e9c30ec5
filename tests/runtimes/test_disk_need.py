"""What checkpoints will take, told before they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pappus.api import configure, describe
from pappus.runtimes.disk_need import disk_warning, state_bytes, table_bytes
from pappus.systems import find_system
from pappus.topologies.program import Program, Run


class Usage(NamedTuple):
    """As `shutil.disk_usage` says it."""

    free: int


def made(system: str, **settings: Any) -> tuple[Run, Program]:
    run = describe(configure(system, "CartPole-v1", {"actors": 1, "envs_per_actor": 4, **settings}), "CartPole-v1")
    return run, find_system(system).topology.build(run)


def test_a_disk_that_is_too_small_is_told_with_the_sum_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, program = made("apex-dqn")
    needed = 5 * state_bytes(run) + 3 * table_bytes(run, program)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(needed))
    assert disk_warning(run, program, tmp_path) == ""
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(needed - 1))
    text = disk_warning(run, program, tmp_path)
    assert "5 × " in text and "3 × " in text and "--topology.replay.capacity" in text and "--fallback-dir" in text


def test_the_estimate_is_close_to_what_checkpoints_take(tmp_path: Path) -> None:
    from pappus.api import train

    settings = {"runtime": "inline", "envs_per_actor": 4, "actors": 1, "topology.replay.capacity": 3000}
    named: dict[str, Any] = {"steps": 6000, "evaluation.episodes": 1}
    train("apex-dqn", "CartPole-v1", {**settings, **named, "run_dir": str(tmp_path / "run")})
    run, program = made("apex-dqn", **settings, **named)
    (checkpoint,), (tables,) = (list((tmp_path / "run" / name).glob(glob)) for name, glob in (
        ("checkpoints", "step-*/learner.safetensors"), ("replay", "replay-*/chunks.bin")
    ))
    assert 0.7 < checkpoint.stat().st_size / state_bytes(run) < 1.5
    assert 0.5 < tables.stat().st_size / table_bytes(run, program) < 1.2


def test_checkpoints_that_a_resumed_run_has_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, program = made("a2c")
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0))
    assert "has room for 0.0 MiB" in disk_warning(run, program, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "old").write_bytes(bytes(5 * state_bytes(run)))
    assert disk_warning(run, program, tmp_path) == ""
