"""A line per run: what it holds, and that it fits."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from pappus.population_view import PopulationView, Row, elided, table
from pappus.telemetry.terminal import Style, Terminal

ROWS = [
    Row("optimizer-learning-rate-1e-3-unroll-length-128-seed-1", "trains", 104_800_000, 48211.0, 480.12, None, None),
    Row("optimizer-learning-rate-1e-3-unroll-length-128-seed-2", "target reached", 104_800, 3211.4, 480.1, 500.0, 90),
    Row("optimizer-learning-rate-1e-3-unroll-length-128-seed-3", "steps done, incomplete", 64, None, None, None, None),
]


@pytest.mark.parametrize("width", [80, 120])
def test_every_run_has_one_line_that_fits_and_shows_its_seed(width: int) -> None:
    output = Console(record=True, width=width, file=io.StringIO())
    output.print(table(ROWS, "runs/ppo", width))
    title, head, *lines = output.export_text().splitlines()
    assert title == "runs/ppo" and head.split() == ["run", "state", "steps", "steps/s", "return", "greedy"]
    assert len(lines) == 3 and all(len(line.rstrip()) <= width for line in lines)
    assert "seed-2  solved" in lines[1] and lines[1].split()[-4:] == ["104,800", "3,211", "480.1", "500.0"]


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert elided("learning-rate-1e-3-seed-12", 13) == "learni…eed-12"
    assert len(elided("x" * 90, 20)) == 20 and elided("seed-1", 20) == "seed-1"


def shown(style: Style) -> str:
    """What two looks and an end print to a file: the first run ends between them."""
    file, rows = io.StringIO(), [Row("seed-1", "trains", None, None, None, None, None)]
    view = PopulationView(Terminal(style, file), "runs/ppo", 1, lambda: rows)
    view.update()
    rows[0] = Row("seed-1", "target reached", 104_800, 3211.0, 480.1, 500.0, 104_000)
    view.update()
    view.update()
    view.close(["all: greedy return 500.0 ± 3.0 over 2 seeds"], exit_code=0)
    return file.getvalue()


def test_a_file_gets_a_line_when_a_run_begins_or_ends_and_the_meaning_of_the_interval() -> None:
    lines = shown("shown").splitlines()
    assert lines[:2] == ["seed-1: trains", "seed-1: solved after 104,800 steps, 3,211/s, return 480.1, greedy 500.0"]
    assert lines[-3].startswith("all: greedy return") and lines[-2] == "look: pappus page runs/ppo"
    assert lines[-1].startswith("± is half of the 95 % interval")


def test_quiet_says_only_what_the_runs_say_together() -> None:
    assert shown("quiet").splitlines()[0] == "all: greedy return 500.0 ± 3.0 over 2 seeds"


def test_json_tells_runs_when_they_change() -> None:
    lines = [json.loads(line) for line in shown("json").splitlines()]
    assert [line["type"] for line in lines] == ["start", "run", "run", "end"]
    assert lines[2]["state"] == "target reached" and lines[3]["exit_code"] == 0
