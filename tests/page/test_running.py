"""Runs that show themselves."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import pappus
from pappus.api import configure
from pappus.errors import UserError
from pappus.hooks.callback import CurrentRun
from pappus.page import serving
from pappus.page.document import Now, ProgramDocument
from pappus.page.folder import COMPARED, RunsFolder
from pappus.page.following import FollowedRun
from pappus.page.reading import shaped
from pappus.page.running import FILE_SECONDS, PATIENCE, RunPage, page_beside
from pappus.systems import find_system
from pappus.telemetry.run_stats import RunStats
from pappus.topologies.program import Program
from tests.telemetry.helpers import FakeTime, report, run_stats

TINY: dict[str, Any] = {
    "runtime": "inline", "envs_per_actor": 4, "steps": 400, "evaluation.episodes": 2, "log": ["none"],
    "network.hidden_sizes": [8], "unroll_length": 5,
}


class Looks(pappus.Callback):
    """Opens the page while the run goes on."""

    def __init__(self, urls: list[str]) -> None:
        self.urls, self.page = urls, dict[str, Any]()

    def on_checkpoint(self, run: CurrentRun, path: Path) -> None:
        with urllib.request.urlopen(f"{self.urls[0]}data", timeout=10) as answer:
            self.page = json.load(answer)


def test_a_run_is_served_while_it_goes_on_and_written_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(serving, "tell", urls.append)
    looks = Looks(urls)
    pappus.train("impala", "CartPole-v1", callbacks=[looks], run_dir=tmp_path / "run", page=True, **TINY)
    about = looks.page["run"]["about"]
    assert about["live"] and about["topology"] == "impala"
    assert {role["name"] for role in looks.page["run"]["program"]["roles"]} == {"actor-0", "learner", "evaluator"}
    differs = {one["name"] for one in looks.page["run"]["config"]["differs"]}
    assert {"steps", "envs_per_actor"} <= differs
    assert not differs & {"actors", "device", "precision"}, "the run settles them"
    written = (tmp_path / "run" / "page.html").read_bytes()
    assert b'"phase":"over"' in written and b'"live":false' in written and len(written) < 1 << 20
    with pytest.raises(OSError):
        urllib.request.urlopen(urls[0], timeout=10)


def test_what_a_preset_leaves_to_the_run_is_a_difference_where_somebody_gave_it(tmp_path: Path) -> None:
    pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **TINY, actors=2)
    differs = {one["name"]: one for one in json.loads((tmp_path / "run" / "program.json").read_text())["differs"]}
    assert (differs["actors"]["preset"], differs["actors"]["value"]) == ("auto", 2)
    assert not differs.keys() & {"device", "precision"}


def test_every_run_writes_what_a_page_needs(tmp_path: Path) -> None:
    result = pappus.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", price={"core-hour": 0.04}, **TINY)
    program = json.loads((tmp_path / "run" / "program.json").read_text())
    assert shaped(program["program"], ProgramDocument) == program["program"]
    moment = json.loads((tmp_path / "run" / "now.json").read_text())
    assert moment["phase"] == "over" and shaped(moment["now"], Now) == moment["now"]
    assert moment["now"]["step"] == result.summary.steps and moment["now"]["lag"]["histogram"]
    assert b'"phase":"over"' in (tmp_path / "run" / "page.html").read_bytes()
    beside = (RunsFolder(tmp_path).page()["runs"] or [])[0]["curves"]["columns"]
    assert moment["now"]["limit"] == "steps"
    assert 0 < moment["now"]["memory_total"] <= result.summary.extras["cost"]["peak_memory_bytes"], "of a moment before"
    for name in COMPARED:
        assert any(column.startswith(name) for column in beside), f"no run has {name}"
    for name in ("cpu_seconds", "wall_seconds", "money"):
        assert None not in beside[f"cost/{name}"]


def test_the_page_of_a_resumed_run_is_not_over(tmp_path: Path) -> None:
    pappus.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", **TINY)
    config = configure("ppo", "CartPole-v1", TINY | {"run_dir": str(tmp_path / "run")})
    (tmp_path / "run" / "summary.json").unlink()
    with page_beside(RunStats(config, {}), Program("none"), tmp_path / "run", find_system("ppo")):
        about = FollowedRun(tmp_path / "run").document()["about"]
    assert about["live"] and about["phase"] == "starting"


def test_an_interrupted_run_has_its_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "tell", lambda url: None)

    class Fails(pappus.Callback):
        def on_start(self, run: CurrentRun) -> None:
            raise ValueError("boom")

    with pytest.raises(pappus.errors.CallbackError):
        pappus.train("impala", "CartPole-v1", callbacks=[Fails()], run_dir=tmp_path / "run", page=True, **TINY)
    assert b'"exit_reason":"a callback failed"' in (tmp_path / "run" / "page.html").read_bytes()


def test_a_page_that_cannot_be_served_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="anybody could see the run"):
        pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", page_listen="0.0.0.0:0", **TINY)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_does_not_harm_the_run(tmp_path: Path) -> None:
    page = page_of(tmp_path / "missing", FakeTime())
    page.update("running", {})
    assert page.moment is not None and not (tmp_path / "missing").exists()


def test_looks_take_a_hundredth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = FakeTime(), list[float]()
    page = page_of(tmp_path, clock)

    def look(*_: object) -> None:
        looks.append(clock.now)
        clock.pass_(0.5)
        raise ValueError("whatever goes wrong")

    monkeypatch.setattr(page, "_look", look)
    for _ in range(300):
        page.update("starting", {})
        clock.pass_(1.0)
    assert 0.5 * PATIENCE > FILE_SECONDS and len(looks) == 300 // (PATIENCE * 0.5)


def page_of(directory: Path, clock: FakeTime) -> RunPage:
    stats = run_stats(clock)
    stats.add(report("learner", counts={"updates": 1}, lags={"0": 1}))
    return RunPage(stats, Program("none"), directory, served=True, clock=clock)
