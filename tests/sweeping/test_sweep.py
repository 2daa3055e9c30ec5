"""A sweep's trials: pruned at equal steps, killed and gone on with, judged on other seeds."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pappus import population
from pappus.cli import main
from pappus.errors import RunError, UserError, install_line
from pappus.evidence import evidence_of
from pappus.settings import load_file
from pappus.sweeping import command, sweep
from pappus.sweeping.objective import Objective
from pappus.sweeping.plan import Plan, saved_plan
from pappus.sweeping.space import Choice, Range
from pappus.sweeping.study import Study, Trial
from pappus.sweeping.sweep import Sweep
from pappus.telemetry.history import TRAINING, read_history

SPACE = (
    Range("optimizer.learning-rate", 0.0, 1.0),
    Choice("network.activation", (("relu",), ("tanh",)), ("relu", "tanh")),
)
DEFAULTS = {"optimizer.learning-rate": 0.9, "network.activation": "relu"}
OBJECTIVE = Objective("steps", 1000, 475.0, 4, by_evaluations=False)
PLAN = Plan(
    "ppo", "CartPole-v1", ("ppo", "--env", "CartPole-v1", "--target-return", "475"), SPACE, DEFAULTS, OBJECTIVE,
    trials=4, jobs=2, seeds=(1, 2), held_out=(7, 8, 9), sampler="random",
)


class Ended:
    """A process that has ended."""

    def __init__(self, code: int = 0) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode

    def terminate(self) -> None:
        pass


def steps_of(words: Sequence[str]) -> int:
    """The lower the step size, the sooner it is solved; a seed adds a little."""
    rate = float(words[words.index("--optimizer.learning-rate") + 1]) if "--optimizer.learning-rate" in words else 0.9
    return round(100 + 800 * rate) + int(words[-1])


def trained(directory: Path, words: Sequence[str], trust: bool = False, again: bool = False) -> Any:
    """Stands for a run that solves its task."""
    directory.mkdir(parents=True, exist_ok=True)
    steps = steps_of(words)
    lines = [{"step": step, "time": step, TRAINING: 475 * step / steps} for step in range(0, steps + 1, 10)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "summary.json").write_text(json.dumps({
        "exit_reason": "target reached", "solved_at_step": steps, "eval_return": 500.0, "steps_per_second": 1000.0,
    }))
    return Ended()


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sweep, population):
        monkeypatch.setattr(module, "start_run", trained)
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)


def study_of(directory: Path, plan: Plan = PLAN) -> Study:
    directory.mkdir(exist_ok=True)
    return Study(directory, plan.space, plan.objective.minimises, plan.sampler, plan.pruner, plan.seed, 4)


def run(directory: Path, plan: Plan, study: Study, tell: Callable[[Study, Trial], None] = lambda *_: None) -> bool:
    return Sweep(directory, plan, study, tell).run()


def begun(directory: Path, plan: Plan = PLAN) -> int:
    """`begin` without what parses a command."""
    options = command._options(command_words(directory))
    return command.begin(options, plan)


def command_words(directory: Path) -> Any:
    class Given:
        space, trials, jobs, objective, target_return = "space.yaml", 4, 2, "auto", 475.0
        seeds, held_out, sampler, pruner, rungs, sampler_seed = "1,2", "7..9", "random", "median", 4, 1
        run_dir = str(directory)

    return Given()


def test_a_sweep_finds_the_best_settings_and_judges_them_on_other_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "sweep"
    assert begun(directory) == 0
    text = capsys.readouterr().out
    assert "4 of 4 trials ended" in text and ": better" in text and "(defaults)" in text
    content = load_file(directory / "best.yaml")
    evidence = evidence_of(content.pop("evidence"), "best.yaml")
    assert list(evidence.seeds) == [7, 8, 9] and max(evidence.known) < 820
    assert set(content) == {"optimizer.learning_rate", "network.activation"}
    page = json.loads((directory / "study.json").read_text())
    assert len(page["trials"]) == 4 and page["verdict"]["better"][0] == 1.0
    html = (directory / "study.html").read_text()
    assert html.count("<svg") == 3 and "network.activation" in html
    assert "probability that a run" in (directory / "study.txt").read_text()


def test_the_result_of_a_trial_is_the_mean_over_its_seeds_and_the_first_has_the_defaults(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    study.begin_with(DEFAULTS)
    assert run(tmp_path, PLAN, study)
    first = study.trials()[0]
    assert first.is_default and first.values == DEFAULTS and first.result == 821.5


def test_a_sweep_that_was_killed_repeats_no_trial_that_had_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(study: Study, trial: Trial) -> None:
        if len([one for one in study.trials() if one.state != "running"]) == 2:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, PLAN, study_of(tmp_path), kill)
    before = study_of(tmp_path).trials()
    done = [one for one in before if one.state != "running"]
    started: list[Path] = []
    monkeypatch.setattr(sweep, "start_run", lambda directory, *rest, **more: (
        started.append(directory), trained(directory, *rest, **more))[1])
    assert run(tmp_path, PLAN, study_of(tmp_path))
    after = study_of(tmp_path).trials()
    assert after[: len(done)] == done and len(after) == 4 and all(one.state != "running" for one in after)
    assert not {path.parent.name for path in started} & {f"{one.number:04d}" for one in done}


def test_a_trial_that_was_running_when_all_was_killed_is_finished_with_its_values(tmp_path: Path) -> None:
    left = study_of(tmp_path).ask()
    assert run(tmp_path, PLAN, study_of(tmp_path))
    same = study_of(tmp_path).trials()[0]
    assert same.values == left.values and same.state == "complete"


def test_a_sampler_that_begins_anew_does_not_repeat_its_values(tmp_path: Path) -> None:
    first = study_of(tmp_path).ask()
    second = study_of(tmp_path).ask()
    assert first.values != second.values


def test_a_trial_that_is_behind_at_equal_steps_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(tmp_path)
    for i in range(6):
        number = study.ask().number
        assert not any(study.report(number, rung, 100.0 * rung + i) for rung in range(1, 5))
        study.tell(number, "complete", 500.0)
    number = study.ask().number
    assert study.report(number, 1, 10.0)
    study.tell(number, "pruned")
    assert study.trials()[number].rungs == {1: 10.0} and study.best is not None


def test_a_return_at_a_rung_lies_between_the_points_and_waits_for_all_seeds(tmp_path: Path) -> None:
    for seed, steps in ((1, 1000), (2, 300)):
        trained(tmp_path / str(seed), ["--optimizer.learning-rate", str((steps - 100 - seed) / 800), str(seed)])
    histories = [read_history(tmp_path / str(seed)) for seed in (1, 2)]
    assert OBJECTIVE.at_rung(1, histories, [False, False]) == pytest.approx((475 * 0.25 + 475 * 250 / 300) / 2)
    assert OBJECTIVE.at_rung(2, histories, [False, False]) is None
    assert OBJECTIVE.at_rung(2, histories, [False, True]) == pytest.approx((475 * 0.5 + 475) / 2, rel=0.05)


def test_a_run_that_is_never_solved_counts_as_twice_its_budget() -> None:
    assert OBJECTIVE.result([{"solved_at_step": 100}, {"solved_at_step": None}]) == 1050.0
    returns = Objective("return", 1000, None, 4, by_evaluations=True)
    assert returns.result([{"eval_return": 1.0}, {"eval_return": 3.0}]) == 2.0
    assert returns.result([{"eval_return": None}]) is None


def test_a_sweep_whose_runs_all_fail_ends_with_where_they_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "start_run", lambda *_, **__: Ended(2))
    with pytest.raises(RunError, match=r"first 3 trials failed.*output\.txt"):
        run(tmp_path, PLAN, study_of(tmp_path))


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    assert saved_plan(tmp_path) == PLAN


@pytest.mark.parametrize("change", [{"trials": 0}, {"sampler": "x"}, {"space": 3}, {"words": [1]}, {"objective": {}}])
def test_a_plan_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    PLAN.save(tmp_path)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match="cannot be read"):
        saved_plan(tmp_path)


def test_a_strangers_sweep_runs_nothing_without_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataclasses.replace(PLAN, words=("ppo", "--env", "strangers:env")).save(tmp_path)
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "--trust" in capsys.readouterr().err


WORDS = ["sweep", "ppo", "--env", "CartPole-v1", "--space", "space.yaml"]


@pytest.mark.parametrize(("words", "sentence"), [
    (["sweep", "ppo", "--env", "CartPole-v1"], "--space is missing"),
    ([*WORDS, "--trials", "0"], "--trials 0 must be at least 1"),
    ([*WORDS, "--objective", "steps"], "needs --target-return"),
    ([*WORDS, "--objective", "return", "--target-return", "1"], "exclude each other"),
    ([*WORDS, "--seeds", "1..3", "--held-out", "3..5"], "share seed 3"),
    ([*WORDS, "--seed", "3"], "takes no --seed"),
    ([*WORDS, "--page"], "takes no --page; look at its trials with pappus page"),
    ([*WORDS, "--page-listen=127.0.0.1:0"], "takes no --page-listen"),
    ([*WORDS, "--runtime", "ray"], "needs --address"),
    ([*WORDS, "--run-dir", "old"], "holds runs already"),
    ([*WORDS, "--learners", "x"], "learners"),
    (["sweep", "pppo", *WORDS[2:]], "did you mean 'ppo'"),
    (["sweep", "ppo", "--env", "CartPol-v1", *WORDS[4:]], "CartPol"),
    (["sweep", "--resume", "nowhere"], "is no sweep"),
    (["sweep", "--resume", "old", "--jobs", "2", "--steps", "5"], "leave the other options out"),
])
def test_a_wrong_command_is_refused_before_torch_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pappus.commands.sweep.config_of_words", lambda *_: pytest.fail("it was not refused early"))
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({"unroll-length": {"low": 8, "high": 16}}))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sweep.json").write_text("{}")
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_without_optuna_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    (tmp_path / "space.yaml").write_text(yaml.safe_dump({"unroll-length": {"low": 8, "high": 16}}))
    assert main(WORDS) == 2
    assert install_line("sweep") in capsys.readouterr().err
