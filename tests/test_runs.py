"""Runs as tables."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import pappus
from pappus.errors import UserError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = [
        '{"step": 10, "time": 1.0, "a": 1.0}', '{"step": 30, "time": 2.0, "a": 2.0}',
        '{"step": 20, "time": 3.0, "b": null}', '{"step": 40, "time": 4.0, "a": 4.0, "b": 5}', '{"step": 50, "ti',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "config.yaml").write_text("system: ppo\noptimizer: {learning_rate: 1e-3}\n")
    (tmp_path / "summary.json").write_text('{"eval_return": 7.5}')
    return tmp_path


def test_a_run_is_columns_without_the_past_that_was_lost(run: Path) -> None:
    table = pappus.runs.load(run)
    assert list(table) == ["step", "time", "a", "b"] and table["step"].tolist() == [10, 20, 40]
    np.testing.assert_array_equal(table["a"], [1.0, np.nan, 4.0])
    np.testing.assert_array_equal(table["b"], [np.nan, np.nan, 5.0])
    assert table.config["optimizer"]["learning_rate"] == 1e-3 and table.summary == {"eval_return": 7.5}


def test_what_is_missing_or_broken_gets_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="no metric 'aa'; did you mean 'a'"):
        pappus.runs.load(run)["aa"]
    with pytest.raises(UserError, match="is no run directory"):
        pappus.runs.load(run / "nowhere")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="run pip install pandas"):
        pappus.runs.load(run).to_pandas()


def test_a_line_that_a_killed_run_left_half_written_is_left_out(run: Path) -> None:
    whole = '{"step": 1, "time": 2.0, "a": 3.0}\n'
    (run / "metrics.jsonl").write_text(whole + '{"step": 2, "ti\n' + whole.replace("3.0", "4.0"))
    assert pappus.runs.load(run)["a"].tolist() == [3.0, 4.0]


def test_a_data_frame_is_made_of_the_columns(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = ModuleType("pandas")
    vars(pandas).update(DataFrame=lambda columns: ("frame", list(columns)))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert pappus.runs.load(run).to_pandas() == ("frame", ["step", "time", "a", "b"])
