"""What the pages of runs and of folders say."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pappus.api import configure, describe
from pappus.cli import main
from pappus.page.assemble import assembled, escaped
from pappus.page.drawing import capacities, drawing
from pappus.page.folder import RunsFolder, groups_of
from pappus.page.following import KILLED, FollowedRun
from pappus.systems import find_system
from pappus.topologies.program import Program
from tests.page.runs import write_program, write_run

BOMB = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{{', '.join(f'<<: *a{i - 1}' for _ in range(9))}}}" for i in range(1, 12))]
).encode()
"""Merge keys that copy what copies: 9 to the power of 11 entries."""
ODD = [None, b"", b"{", b"\xff\xfe", b"- 1\n- 2", b"[[[[", b'{"a": NaN}', b"&a [*a]", BOMB]
FILES = ("config.yaml", "metrics.jsonl", "log.txt", "summary.json", "program.json", "now.json")


def program(system: str, env: str = "CartPole-v1", **settings: Any) -> Program:
    return find_system(system).topology.build(describe(configure(system, env, settings), env))


def edges_of(program: Program) -> dict[str, tuple[str, list[str], list[str]]]:
    return {edge["name"]: (edge["kind"], edge["roles_from"], edge["roles_to"]) for edge in drawing(program)["edges"]}


def test_impala_is_drawn_as_its_figure() -> None:
    built = program("impala", actors=2, envs_per_actor=4, queue_size=3)
    assert edges_of(built) == {
        "unrolls": ("queue", ["actor-0", "actor-1"], ["learner"]),
        "weights": ("weights", ["learner"], ["actor-0", "actor-1", "evaluator"]),
    }
    assert capacities(built) == {"unrolls": 6}
    assert [kind["name"] for kind in drawing(built)["kinds"]] == ["actor", "learner", "evaluator"]


def test_a_table_of_replay_lies_between_those_who_write_and_those_who_read() -> None:
    found = edges_of(program("apex-dqn", actors=2))
    assert found["replay"] == ("replay", ["actor-0", "actor-1"], ["replay"])
    assert found["replay batches"] == ("replay", ["replay"], ["learner"])
    assert found["steps"] == ("counter", ["actor-0", "actor-1"], ["learner"])


def test_inference_and_shared_parameters_have_directions() -> None:
    found = edges_of(program("seed-vtrace", actors=2))
    assert found["inference"] == ("requests", ["actor-0", "actor-1"], ["inference"])
    assert found["batches"] == ("queue", ["inference"], ["learner"])
    hogwild = [edge for edge in edges_of(program("a3c", actors=2)).values() if edge[0] == "parameters"]
    assert all(set(give) == set(take) for _, give, take in hogwild)


def test_a_run_that_is_over_is_shown_from_its_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_program(run)
    document = FollowedRun(run).document()
    assert document["about"]["phase"] == "over" and document["about"]["exit_reason"] == "steps done"
    assert document["about"]["topology"] == "impala" and document["now"] is not None
    assert document["config"]["resolved"]["evaluation.episodes"] == 7
    assert document["config"]["differs"] == [{"name": "steps", "preset": 10, "value": 1000}]
    assert document["curves"]["columns"]["step"] == [100, 200, 300, 400, 500]
    assert [(one["role"], one["text"]) for one in document["events"]] == [
        ("", "begins"), ("learner", "died\ntraceback"),
    ]
    assert document["video"] is None and document["program"] is not None


def test_a_run_that_was_killed_is_over_once_it_is_silent(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", over=False)
    assert FollowedRun(run).document()["about"]["live"], "it wrote something just now"
    for path in run.iterdir():
        os.utime(path, (1e9, 1e9))
    about = FollowedRun(run).document()["about"]
    assert not about["live"] and about["exit_reason"] == KILLED


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ODD)
def test_whatever_is_odd_there_is_a_page(tmp_path: Path, name: str, content: bytes | None) -> None:
    run = write_run(tmp_path / "run")
    write_program(run)
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    page = assembled({"mode": "run", "live": False, "run": FollowedRun(run).document(), "runs": None, "after": ""})
    data = page.rpartition(b'id="pappus-data">')[2].partition(b"</script>")[0]
    assert json.loads(data, parse_constant=pytest.fail)["run"]["version"] == 1


def test_what_is_shown_cannot_leave_its_element() -> None:
    text = escaped({"</script><!--": "\u2028&<>"})
    assert not set(text) & set("<>&\u2028") and json.loads(text) == {"</script><!--": "\u2028&<>"}


def test_a_folder_shows_runs_by_group(tmp_path: Path) -> None:
    for seed in (1, 2):
        for rate in (0.1, 0.2):
            write_run(tmp_path / "pop" / f"rate-{rate}-seed-{seed}", seed=seed, optimizer={"learning_rate": rate})
    write_run(tmp_path / "alone", system="ppo")
    (tmp_path / "loop").symlink_to(tmp_path)
    folder = RunsFolder(tmp_path)
    runs = folder.page()["runs"] or []
    assert [(run["name"], run["group"]) for run in runs] == [
        ("alone", "ppo"), *((f"pop/rate-{rate}-seed-{seed}", f"impala, optimizer.learning-rate={rate}")
                            for rate in (0.1, 0.2) for seed in (1, 2)),
    ]
    assert set(runs[0]["curves"]["columns"]) == {"step", "time", "losses/value"}
    assert folder.run("alone") is not None and folder.run("../alone") is None and folder.run("loop/alone") is None


def test_runs_of_several_systems_and_envs_are_no_seeds_of_each_other() -> None:
    pairs = [("impala", "CartPole-v1"), ("ppo", "CartPole-v1"), ("ppo", "Pendulum-v1")]
    runs = [{"system": system, "env": env, "seed": seed} for system, env in pairs for seed in (1, 2)]
    assert groups_of(runs) == [f"{system}, {env}" for system, env in pairs for _ in (1, 2)]
    assert groups_of(runs[:2]) == ["all", "all"]


def test_groups_whose_settings_are_long_stay_apart() -> None:
    runs = [{"system": "ppo", "env": "CartPole-v1", "note": 500 * "x" + end} for end in "aab"]
    one, same, other = groups_of(runs)
    assert one == same != other and len(one) < 300


def test_a_long_run_that_is_read_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("long", "short"):
        write_run(tmp_path / name)
    folder, reads, goes_on = RunsFolder(tmp_path), threading.Event(), threading.Event()
    short = folder.run("short")

    def read(path: Path, shown_as: str) -> FollowedRun:
        if shown_as == "long":
            reads.set()
            assert goes_on.wait(60)
        return FollowedRun(path, shown_as=shown_as)

    monkeypatch.setattr("pappus.page.folder.FollowedRun", read)
    with ThreadPoolExecutor() as threads:
        long = [threads.submit(folder.run, "long") for _ in range(2)]
        try:
            assert reads.wait(60)
            assert threads.submit(folder.run, "short").result(60) is short
            assert threads.submit(folder.watched).result(60) == []
        finally:
            goes_on.set()
        first, second = (one.result(60) for one in long)
    assert first is not None and first is second is folder.run("long")


def test_the_command_writes_a_page_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs" / "one")
    assert main(["page", str(tmp_path / "runs"), "--out", str(tmp_path / "all.html")]) == 0
    assert b'"mode":"runs"' in (tmp_path / "all.html").read_bytes()
    assert main(["page", str(tmp_path / "runs" / "one"), "--out", str(tmp_path / "one.html")]) == 0
    assert b'"mode":"run"' in (tmp_path / "one.html").read_bytes()
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        ([str(tmp_path / "empty")], "holds no run"), ([str(tmp_path / "none")], "is no folder"),
        ([str(tmp_path / "runs"), "--out", "/nowhere/x"], "cannot be written"),
        *(([str(tmp_path / "runs"), "--out", out], "names no file") for out in ("", ".", "/")),
        ([str(tmp_path / "runs"), "--port", "99999"], "must lie between"),
        ([str(tmp_path / "runs"), "--listen", "0.0.0.0:1"], "anybody could see the run"),
    ):
        assert main(["page", *words]) == 2
        assert sentence in capsys.readouterr().err
