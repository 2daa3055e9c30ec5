from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from pappus.telemetry.run_log import RunLog, Summary, repair

KEYS = {
    "system", "env", "seed", "steps", "updates", "wall_seconds", "train_seconds", "steps_per_second",
    "episodic_return", "eval_return", "solved_at_step", "exit_reason",
}


def _summary(**changes):
    content = {
        "system": "impala", "env": "CartPole-v1", "seed": 1, "steps": 1000, "updates": 10, "wall_seconds": 2.0,
        "train_seconds": 1.0, "steps_per_second": 1000.0, "episodic_return": None, "eval_return": None,
        "solved_at_step": None, "exit_reason": "steps reached",
    } | changes
    return Summary(**content)


def _lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_every_write_is_one_line_with_step_time_and_scalars(tmp_path):
    with RunLog(tmp_path, wall_time=lambda: 5.0, tensorboard=False) as log:
        log.write(64, {"charts/SPS": np.float32(0.5)})
    assert _lines(tmp_path) == [{"step": 64, "time": 5.0, "charts/SPS": 0.5}]


def test_what_json_cannot_say_is_null(tmp_path):
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write(1, {"losses/policy": float("nan"), "losses/value": float("inf")})
    assert [_lines(tmp_path)[0][name] for name in ("losses/policy", "losses/value")] == [None, None]


def test_a_reopened_log_appends(tmp_path):
    for step in (1, 2):
        with RunLog(tmp_path, tensorboard=False) as log:
            log.write(step, {})
    assert [line["step"] for line in _lines(tmp_path)] == [1, 2]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_cut_by_a_kill_is_removed_on_resume(tmp_path, cut):
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write(1, {})
        log.write(2, {"charts/SPS": 3.0})
    content = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(content[:-cut])
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write(3, {})
    # Only the newline is lost at cut 1, so the line itself is whole and kept.
    assert [line["step"] for line in _lines(tmp_path)] == ([1, 2, 3] if cut == 1 else [1, 3])


def test_a_file_of_one_broken_line_or_none_is_repaired(tmp_path):
    path = tmp_path / "metrics.jsonl"
    repair(path)
    assert not path.exists()
    for content in (b"", b'{"step"', b"\0\0\0"):
        path.write_bytes(content)
        repair(path)
        assert path.read_bytes() == b""


def test_events_carry_their_time_and_tracebacks_stay_together(tmp_path):
    with RunLog(tmp_path, wall_time=lambda: 0.0, tensorboard=False) as log:
        log.event("Traceback:\n  line\nError\n")
        log.event("later", at=3600.0 * 24 * 365)
    first, second, third, fourth = (tmp_path / "log.txt").read_text().splitlines()
    assert first.endswith(" Traceback:") and second == "      line" and third == "    Error"
    assert fourth.startswith("1971-01-01 ") and fourth.endswith(" later")


def test_curves_have_env_steps_as_their_axis(tmp_path):
    with RunLog(tmp_path, wall_time=lambda: 5.0) as log:
        log.write(640, {"charts/SPS": 1.5})
        log.write(1280, {"charts/SPS": 2.5})
    assert _curve(tmp_path, "charts/SPS") == [(640, 1.5), (1280, 2.5)]


def test_curves_of_a_resumed_run_drop_the_lost_future(tmp_path):
    with RunLog(tmp_path) as log:
        for step in (100, 200, 300):
            log.write(step, {"charts/SPS": 1.0})
    with RunLog(tmp_path, resume_step=200) as log:
        log.write(250, {"charts/SPS": 2.0})
    assert _curve(tmp_path, "charts/SPS") == [(100, 1.0), (200, 1.0), (250, 2.0)]


def test_without_tensorboard_the_run_goes_on_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with RunLog(tmp_path) as log:
        log.write(1, {"charts/SPS": 1.0})
        log.write(2, {"charts/SPS": 1.0})
    assert len(_lines(tmp_path)) == 2
    assert (tmp_path / "log.txt").read_text().count("no TensorBoard events") == 1


def test_the_summary_has_the_documented_keys_and_the_extras(tmp_path):
    with RunLog(tmp_path) as log:
        log.write_summary(_summary(episodic_return=float("nan"), extras={"precision": "float32"}))
    content = json.loads((tmp_path / "summary.json").read_text())
    assert set(content) == KEYS | {"versions", "git_hash", "precision"}
    assert content["episodic_return"] is None and content["precision"] == "float32"
    assert set(content["versions"]) == {"python", "pappus", "torch", "numpy", "gymnasium"}


def test_a_summary_replaces_the_one_before_and_leaves_nothing_beside(tmp_path):
    with RunLog(tmp_path, tensorboard=False) as log:
        log.write_summary(_summary(steps=1))
        log.write_summary(_summary(steps=2))
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "metrics.jsonl", "summary.json"]


def _curve(directory, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]
