"""`pappus tune` and `train --tune`: what is refused, printed and written."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pappus import cli
from pappus.api import configure
from pappus.commands.configs import with_system
from pappus.config import CostConfig
from pappus.runtimes.forkserver import ForkServer
from pappus.systems import find_system
from pappus.tuning import tuner, window
from pappus.tuning.model import Costs, EnvCost, Line
from pappus.tuning.window import OWN, Watcher, Window, _short, machine_seconds, rate_of, watch

US = 1e-6
COSTS = Costs(EnvCost(Line(20 * US, 0.1 * US), Line(0, 0)), None, Line(20 * US, 0.2 * US), {64: US}, 0.0, 5 * US, 2)


@pytest.mark.parametrize(("line", "sentence"), [
    ("impala --env CartPole-v1 --seconds nan", "--seconds nan must be at least 10"),
    ("impala --env CartPole-v1 --out nowhere/tuned.yaml", "give a file in a folder that there is"),
    ("impala --env CartPole-v1 --actor 3", "unknown option --actor"),
    ("impala --env CartPole-v1 --page", "takes no --page: its trials are short"),
    ("impala --env CartPole-v1 --page-listen=127.0.0.1:0", "takes no --page-listen"),
    ("impala --env CartPole-v1 --plan", "takes no --plan"),
    ("impala --env CartPole-v1 --run-dir here", "takes no --run-dir"),
    ("impala --env CartPole-v1 --quiet", "takes no --quiet: what it prints is what it is for"),
    ("--env CartPole-v1", "write pappus tune SYSTEM --env ID"),
    ("impala --env CartPole-v1 --runtime ray", "a cluster has others"),
    ("impala --env ray --nothing", "unknown option --nothing"),
    ("impala --env CartPole-v1 --budget core-hours=1", "takes no --budget"),
    ("sac --env CartPole-v1", "continuous actions"),
    ("seed-vtrace --env CartPole-v1 --actors 0 --topology.wire.listen 127.0.0.1:0", "steps no envs here"),
])
def test_what_cannot_be_tuned_is_refused_with_a_sentence(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", *line.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("actors: 3\n")
    assert cli.main(["tune", "impala", "--env", "CartPole-v1", "--out", str(tmp_path / "mine.yaml")]) == 2
    assert "not from pappus tune" in capsys.readouterr().err


def test_a_run_that_may_be_continued_is_not_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "impala", "--env", "CartPole-v1", "--tune", "--resume-or-start", "--run-dir", str(tmp_path)]
    assert cli.main(words) == 2
    assert "use pappus tune before it" in capsys.readouterr().err


class Scripted:
    """In place of measurements: rates by (actors, envs), a tenth of them in one thread, and after how many trials
    somebody presses Ctrl-C."""

    def __init__(self, rates: dict[tuple[int, int], float], interrupt_after: int = 100) -> None:
        self._rates, self._left = rates, interrupt_after

    def watch(self, config: Any, *_: object) -> Window:
        self._left -= 1
        rate = self._rates.get((config.actors, config.envs_per_actor), 10.0)
        return Window(rate / 10 if config.inline else rate, {}, interrupted=self._left < 0)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Nothing is measured, and no process is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ForkServer, "prestart", lambda: None)
    monkeypatch.setattr(tuner, "measure", lambda *_: COSTS)
    yield monkeypatch


def test_it_writes_a_config_that_train_takes_and_says_what_it_costs(
    scripted: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.setattr(tuner, "watch", Scripted({(1, 64): 100.0, (2, 64): 150.0}).watch)
    words = "tune impala --env CartPole-v1 --algorithm.entropy-cost 0.02 --out tuned.yaml"
    assert cli.main(words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("impala · CartPole-v1: loading torch …"), "there is something to look at from the beginning"
    assert "150 steps/s with 2 × 64 envs, processes" in out and "1.50 times as fast" in out
    assert "batch           64 unrolls per update, as the preset" in out
    assert "at most about 6 updates instead of 3" in out
    assert "128 in all instead of 64" in out
    config = configure("impala", "CartPole-v1", file=tmp_path / "tuned.yaml")
    assert (config.actors, config.envs_per_actor, config.batch_size, config.runtime) == (2, 64, 64, "local")
    assert (config.algorithm.entropy_cost, config.device) == (0.02, "auto")  # type: ignore[attr-defined]
    assert with_system(["--config", "tuned.yaml"]) == ["impala", "--config", "tuned.yaml"]


def test_a_start_that_alone_was_tried_is_not_called_the_fastest(
    scripted: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.setattr(tuner, "watch", Scripted({(1, 64): 100.0}, interrupt_after=1).watch)
    cli.main(["tune", "impala", "--env", "CartPole-v1", "--out", "tuned.yaml"])
    assert "only the settings that it started with were tried; give more --seconds" in capsys.readouterr().out


def test_it_starts_from_a_file_and_goes_beyond_it(
    scripted: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text("run_dir: here\nseed: 3\nactors: 2\nenvs_per_actor: 2\nruntime: local\n")
    scripted.setattr(tuner, "watch", Scripted({(2, 2): 20.0, (1, 64): 100.0}).watch)
    assert cli.main(["tune", "impala", "--env", "CartPole-v1", "--config", "bad.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["start"]["setting"]["envs"] == 2
    assert (found["choice"]["setting"]["actors"], found["choice"]["setting"]["envs"]) == (1, 64)
    assert found["gain"] == 5.0
    written = yaml.safe_load((tmp_path / found["file"]).read_text())
    assert (written["system"], written["actors"], written["envs_per_actor"]) == ("impala", 1, 64)
    assert written["seed"] == 3 and "run_dir" not in written, "it is for other runs, too"


def test_ctrl_c_keeps_what_was_found_and_exits_130(
    scripted: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.setattr(tuner, "watch", Scripted({(1, 64): 100.0}, interrupt_after=1).watch)
    assert cli.main(["tune", "impala", "--env", "CartPole-v1", "--out", "tuned.yaml"]) == 130
    assert "stopped before its time" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "tuned.yaml").read_text())["envs_per_actor"] == 64


def test_ctrl_c_before_anything_was_tried_writes_nothing(scripted: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> Costs:
        raise KeyboardInterrupt

    scripted.setattr(tuner, "measure", interrupted)
    assert cli.main(["tune", "impala", "--env", "CartPole-v1", "--out", "tuned.yaml"]) == 130
    assert not (tmp_path / "tuned.yaml").exists()


@pytest.mark.parametrize("late", ["LEAST_SECONDS", "TRIAL_START"])
def test_without_time_for_a_trial_it_says_what_to_give(
    late: str, scripted: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.setattr(tuner, "watch", Scripted({}).watch)
    scripted.setattr(tuner, late, 60.0)
    assert cli.main(["tune", "impala", "--env", "CartPole-v1", "--seconds", "60"]) == 2
    assert "60 s leave no time for a trial" in capsys.readouterr().err


def test_settings_whose_envs_take_too_long_to_make_are_not_tried(scripted: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[int] = []

    def watch(config: Any, *_: object) -> Window:
        tried.append(config.envs_per_actor)
        return Window(10.0)

    scripted.setattr(tuner, "watch", watch)
    scripted.setattr(tuner, "measure", lambda *_: replace(COSTS, env=EnvCost(*COSTS.env[:2], making=0.2)))
    assert cli.main(["tune", "impala", "--env", "CartPole-v1", "--seconds", "60", "--out", "tuned.yaml"]) == 0
    assert tried and max(tried) <= 30  # a tenth of the time


def test_a_run_that_is_tuned_first_is_trained_with_what_was_found(
    scripted: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.setattr(tuner, "watch", Scripted({(2, 64): 150.0}).watch)
    words = "train impala --env CartPole-v1 --runtime inline --tune --steps 3000 --run-dir run --evaluation.episodes 1"
    assert cli.main(words.split()) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["actors"], config["envs_per_actor"], config["runtime"]) == (2, 64, "inline")
    assert not list(tmp_path.glob("*.yaml")), "the run's own config.yaml says it"


def test_a_trial_has_no_page_and_no_budget_whatever_the_training_has() -> None:
    options = {"page": True, "page_listen": "127.0.0.1:0", "price": {"hour": 1.0}, "budget": {"money": 1e-9}}
    trial = _short(configure("impala", "CartPole-v1", options), Path("trial"))
    assert not trial.has_page and trial.cost == CostConfig()


@pytest.mark.parametrize(("points", "rate"), [
    ([(0.0, 100), (1.0, 200), (2.0, 350), (3.0, 500)], 150.0),  # the first line is of the start
    ([(0.0, 100), (1.0, 100), (2.0, 300), (3.0, 300), (4.0, 500)], 100.0),  # from leap to leap
    ([(0.0, 100), (1.0, 300)], 200.0),
    ([(0.0, 100)], 0.0),
    ([], 0.0),
])
def test_rates_are_between_leaps(points: list[tuple[float, int]], rate: float) -> None:
    assert rate_of(points) == rate


class Stopped:
    """A run, as a watcher sees it."""

    def __init__(self) -> None:
        self.steps, self.why = 0, ""

    def stop(self, reason: str) -> None:
        self.why = reason


def test_a_run_is_watched_from_its_first_update_on_and_given_up_without_one() -> None:
    clock = iter([0.0, 4.0, 5.0, 6.0, 7.5]).__next__
    watcher, seen, row = Watcher(2.0, 10.0, clock), Stopped(), {OWN: 1.0}
    watcher.on_metrics(seen, row)  # type: ignore[arg-type]
    for steps in (100, 200, 300):
        seen.steps = steps
        assert not seen.why
        watcher.on_metrics(seen, row)  # type: ignore[arg-type]
    assert seen.why and watcher.points == [(5.0, 100), (6.0, 200), (7.5, 300)]
    idle, lazy = Watcher(2.0, 10.0, iter([0.0, 9.0, 10.0]).__next__), Stopped()
    idle.on_metrics(lazy, {})  # type: ignore[arg-type]
    assert not lazy.why
    idle.on_metrics(lazy, {})  # type: ignore[arg-type]
    assert lazy.why == "it has made no update"


def test_a_trial_ends_when_the_time_is_over() -> None:
    watcher, seen = Watcher(2.0, 10.0, iter([0.0, 3.0, 4.5]).__next__, end=4.0), Stopped()
    for seen.steps in (100, 300):
        assert not seen.why
        watcher.on_metrics(seen, {OWN: 1.0})  # type: ignore[arg-type]
    assert seen.why and rate_of(watcher.points) == pytest.approx(200 / 1.5)
    idle, lazy = Watcher(2.0, 10.0, iter([0.0, 4.0]).__next__, end=4.0), Stopped()
    idle.on_metrics(lazy, {})  # type: ignore[arg-type]
    assert lazy.why == "it has made no update"


def test_others_used_what_the_machine_computed_and_the_run_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("impala", "CartPole-v1", {"runtime": "inline", "actors": 1, "device": "cpu"})
    row = dict(watch(config, "CartPole-v1", find_system("impala"), 0.1).metrics)
    assert row[OWN] > 0
    monkeypatch.setattr(window, "machine_seconds", iter([100.0, 105.0]).__next__)
    watcher, run = Watcher(9.0, 9.0, iter([0.0, 0.0, 2.0]).__next__), Stopped()
    run.steps = 1
    for later in (0.0, 3.0):  # of 5 s that two cores computed in 2 s
        watcher.on_metrics(run, {**row, OWN: row[OWN] + later})  # type: ignore[arg-type]
    assert watcher.others == pytest.approx(1.0)


def test_what_the_machine_computes_only_grows() -> None:
    assert 0 < machine_seconds() <= machine_seconds()
