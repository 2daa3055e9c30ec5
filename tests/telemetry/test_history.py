"""Metrics of a run as columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pappus.telemetry.history import GREEDY, TRAINING, History, read_history


def history_of(directory: Path, *lines: dict[str, Any] | str) -> History:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (directory / "metrics.jsonl").write_text("\n".join(texts))
    return read_history(directory)


def test_metrics_are_columns_with_nan_where_a_line_has_none(tmp_path: Path) -> None:
    history = history_of(tmp_path, {"step": 1, "time": 5.0, TRAINING: 3}, {"step": 2, "time": 6.0, TRAINING: None})
    assert history.columns["step"].tolist() == [1, 2]
    assert history.columns[TRAINING][0] == 3 and np.isnan(history.columns[TRAINING][1])


def test_a_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    assert len(history_of(tmp_path, {"step": 1, "time": 5.0}, '{"step": 2, "ti', "[]", '{"step": "x", "time": 1}')) == 1


def test_lines_of_a_future_that_was_lost_are_left_out(tmp_path: Path) -> None:
    steps = [10, 20, 30, 15, 25]
    history = history_of(tmp_path, *({"step": step, "time": i} for i, step in enumerate(steps)))
    assert history.columns["step"].tolist() == [10, 15, 25]


def test_an_evaluation_counts_for_the_step_that_it_looked_at(tmp_path: Path) -> None:
    history = history_of(
        tmp_path, {"step": 10, "time": 5.0}, {"step": 20, "time": 7.0, GREEDY: 9.0, "eval/step": 12},
    )
    steps, seconds, values = history.points(GREEDY)
    assert (steps.tolist(), seconds.tolist(), values.tolist()) == ([12], [2.0], [9.0])


def test_seconds_begin_with_training(tmp_path: Path) -> None:
    history = history_of(tmp_path, {"step": 100, "time": 50.0, "charts/SPS": 50.0}, {"step": 200, "time": 51.0})
    assert history.seconds.tolist() == [2.0, 3.0]


def test_a_folder_without_metrics_has_an_empty_history(tmp_path: Path) -> None:
    assert len(read_history(tmp_path)) == 0 and read_history(tmp_path).points(TRAINING)[2].tolist() == []
