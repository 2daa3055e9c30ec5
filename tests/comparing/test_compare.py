"""`pappus compare`: which runs are a group, what a score is, and what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pappus.cli import main
from pappus.comparing.references import KNOWN, reference_of, references
from pappus.comparing.runs import find_runs, groups_of
from pappus.comparing.scores import Measure, curves_of
from pappus.errors import UserError
from pappus.ops.aggregates import interquartile_mean
from pappus.telemetry.history import TRAINING


def make_run(
    directory: Path, returns: Sequence[float], seed: int = 1, env: str = "CartPole-v1", system: str = "ppo",
    reason: str = "steps done", greedy: float | None = None, **settings: Any,
) -> Path:
    """A run directory with a point of its curve every 100 steps and second."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump({"system": system, "env": env, "seed": seed, **settings}))
    lines = [
        {"step": 100 * (i + 1), "time": float(i), "charts/SPS": 100.0, TRAINING: value}
        for i, value in enumerate(returns)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / "summary.json").write_text(json.dumps({
        "steps": 100 * len(returns), "exit_reason": reason, "episodic_return": returns[-1], "eval_return": greedy,
    }))
    return directory


def two_rates(folder: Path) -> None:
    for seed in range(1, 6):
        for i, rate in enumerate((1e-3, 3e-4)):
            returns = [10.0 * seed, 100.0 * (2 - i) + seed, 200.0 * (2 - i) + seed]
            make_run(folder / f"{i}-{seed}", returns, seed, optimizer={"learning_rate": rate}, run_dir=f"{i}-{seed}")


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    assert main(["compare", *map(str, words), "--json", "--resamples", "200"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_groups_differ_in_settings_and_not_in_seeds_or_folders(tmp_path: Path) -> None:
    two_rates(tmp_path)
    groups = groups_of(find_runs([str(tmp_path)])[0])
    assert [(one.name, len(one.runs["CartPole-v1"])) for one in groups] == [
        ("ppo, optimizer.learning-rate=0.001", 5), ("ppo, optimizer.learning-rate=0.0003", 5),
    ]


def test_settings_that_differ_between_envs_alone_make_no_groups(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1.0], env="CartPole-v1", steps=100)
    make_run(tmp_path / "b", [1.0], env="Acrobot-v1", steps=200)
    [group] = groups_of(find_runs([str(tmp_path)])[0])
    assert (group.name, list(group.runs)) == ("ppo", ["CartPole-v1", "Acrobot-v1"])


def test_a_run_is_found_once_however_often_it_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "deep" / "a", [1.0])
    assert len(find_runs([str(tmp_path), str(tmp_path / "deep" / "a")])[0]) == 1


def test_runs_that_did_not_end_are_left_out_and_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1.0])
    (make_run(tmp_path / "b", [1.0]) / "summary.json").unlink()
    make_run(tmp_path / "c", [1.0], reason="failed")
    runs, notes = find_runs([str(tmp_path)])
    assert len(runs) == 1 and ["has not ended" in notes[0], "failed" in notes[1]] == [True, True]


def test_json_holds_what_the_functions_compute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_rates(tmp_path)
    [found] = told(capsys, tmp_path)["comparisons"]
    best, other = found["groups"]
    scores = [400.0 + seed for seed in range(1, 6)]
    assert sorted(best["scores"]["CartPole-v1"].values()) == scores
    assert best["statistics"]["interquartile mean"]["value"] == interquartile_mean([sorted(scores)])  # type: ignore[list-item]
    assert found["improvement"][0]["value"] == 1.0 and found["improvement"][0]["of"] == best["group"]
    assert other["by_steps"][0]["step"] == 100 and other["by_steps"][-1]["value"] == 203.0
    assert found["references"] == {}


def test_the_same_runs_have_the_same_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_rates(tmp_path)
    assert told(capsys, tmp_path)["comparisons"] == told(capsys, tmp_path)["comparisons"]


def test_several_envs_are_aggregated_over_their_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", [475.0], env="CartPole-v1")
    make_run(tmp_path / "b", [-100.0], env="Acrobot-v1")
    whole, *each = told(capsys, tmp_path)["comparisons"]
    assert whole["groups"][0]["statistics"]["mean"]["value"] == 1.0 and len(each) == 2


def test_an_env_without_a_reference_is_in_no_aggregate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", [475.0])
    make_run(tmp_path / "b", [1.0], env="Mine-v0")
    found = told(capsys, tmp_path)
    assert len(found["comparisons"]) == 2 and "Mine-v0 has no reference" in found["notes"][0]
    file = tmp_path / "mine.yaml"
    file.write_text("Mine-*: {low: 0, high: 2}")
    assert len(told(capsys, tmp_path, "--reference", file)["comparisons"]) == 3


@pytest.mark.parametrize("text", ["x: 3", "x: {low: 1}", "x: {low: 1, high: 1}", "x: {low: a, high: 1}"])
def test_a_wrong_reference_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(UserError, match="must be t"):
        references(str(tmp_path / "file.yaml"))


def test_every_atari_game_has_random_and_human_scores() -> None:
    assert len([name for name in KNOWN if name.startswith("ALE/")]) == 57
    pong = reference_of("ALE/Pong-v5", KNOWN)
    assert pong is not None and (pong.low, pong.high) == (-20.7, 14.6)


def test_a_score_by_a_step_is_the_last_one_by_then(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [1.0, 2.0, 3.0])
    make_run(tmp_path / "b", [1.0, 9.0], reason="target reached")
    make_run(tmp_path / "c", [1.0, 2.0], reason="time is up")
    runs = find_runs([str(tmp_path)])[0]
    assert [Measure("training", 250).score(run) for run in runs] == [2.0, 9.0, None]


def test_curves_reach_as_far_as_the_shortest_run_that_did_not_solve_its_task(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.0, 10.0, 20.0])
    make_run(tmp_path / "b", [0.0, 50.0], reason="target reached")
    groups = groups_of(find_runs([str(tmp_path)])[0])
    curves = curves_of(groups, ["CartPole-v1"], "training", {}, by_time=False)
    assert curves is not None and (curves.grid[0], curves.grid[-1]) == (100, 300)
    assert curves.values[0][0][-1].tolist() == [20.0, 50.0]


def test_text_names_the_groups_and_warns_of_few_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", [1.0, 2.0], system="ppo")
    make_run(tmp_path / "b", [3.0, 5.0], system="a2c", reason="target reached")
    assert main(["compare", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "probability that a run of a2c is better" in text and "share of runs above" in text
    assert "fewer than 5 runs" in text and "ended differently" in text


def test_pictures_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    two_rates(tmp_path / "runs")
    assert main(["compare", str(tmp_path / "runs"), "--plots", str(tmp_path / "plots"), "--resamples", "20"]) == 0
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {f"CartPole-v1-{what}.png" for what in ("aggregates", "improvement", "profile", "steps", "seconds")}


def test_without_matplotlib_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", [1.0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "sentence"), [
    (["nowhere"], "'nowhere' is no folder"),
    (["."], "holds no run"),
    ([".", "--confidence", "95"], "between 0 and 1"),
])
def test_wrong_input_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_comparing_needs_no_torch() -> None:
    code = "import sys, pappus.comparing.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_costs_are_compared_in_all_and_until_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, returns in ((1, [10.0, 50.0, 90.0]), (2, [10.0, 20.0, 30.0])):
        run = make_run(tmp_path / f"{seed}", returns, seed)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [line | {"cost/core_hours": 0.1 * (i + 1), "cost/money": float(i)} for i, line in enumerate(lines)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = json.loads((run / "summary.json").read_text())
        cost = {"core_hours": 0.3 * seed, "money": 2.0, "gpu_held_seconds": 0.0, "joules": None}
        (run / "summary.json").write_text(json.dumps(summary | {"cost": cost}))
    (found,) = told(capsys, tmp_path, "--target", "50")["costs"]
    assert found["whole"] == pytest.approx({"core_hours": 0.45, "money": 2.0})
    assert found["reached"] == 1 and found["to_target"] == pytest.approx({"core_hours": 0.2, "money": 1.0})
    main(["compare", str(tmp_path), "--target", "50"])
    text = capsys.readouterr().out
    assert "reached 50.0" in text and "1 of 2" in text and "GPU" not in text


def test_runs_without_costs_have_no_table_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", [1.0, 2.0])
    main(["compare", str(tmp_path)])
    assert "cost" not in capsys.readouterr().out
