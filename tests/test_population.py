"""Several runs side by side: which they are, what is told of them, and that none is left behind."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pappus.cli import main
from pappus.commands.configs import config_of_words
from pappus.commands.population import settled
from pappus.config import PageConfig
from pappus.data.dataset import open_dataset
from pappus.errors import INCOMPLETE, UserError
from pappus.members import Member, members_of, seeds_of, varied_by
from pappus.ops.intervals import interval
from pappus.population import Population, saved_population
from pappus.telemetry.checkpoint import CheckpointStore, has_checkpoint

TINY = [
    "ppo", "--env", "CartPole-v1", "--envs-per-actor", "2", "--unroll-length", "8", "--algorithm.epochs", "1",
    "--evaluation.episodes", "1",
]
INLINE = [*TINY, "--runtime", "inline"]
"""A member is a process anyway. How the processes of one run end with it is tested in `test_processes.py`."""
SECONDS = 120.0


@pytest.mark.parametrize(("text", "seeds"), [("1..3", [1, 2, 3]), ("4..4", [4]), ("7", [7]), ("1,5,2", [1, 5, 2])])
def test_seeds_are_ranges_or_lists(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["3..1", "1..", "a", "1,1", "", "1 2"])
def test_what_names_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="names no seeds"):
        seeds_of(text)


def test_every_combination_of_values_has_every_seed() -> None:
    varied = varied_by(["optimizer.learning_rate=1e-3,3e-4", "unroll-length=8,16"])
    members = members_of("ppo", ["--env", "CartPole-v1"], [1, 2], varied)
    assert len(members) == 8 and len({member.name for member in members}) == 8
    assert members[0].name == "learning-rate-1e-3-unroll-length-8-seed-1"
    assert members[0].words[-6:] == ("--optimizer.learning-rate", "1e-3", "--unroll-length", "8", "--seed", "1")
    assert len({member.setting for member in members}) == 4


@pytest.mark.parametrize("text", ["unroll-length", "=1", "unroll-length="])
def test_what_varies_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="names no values"):
        varied_by([text])


@pytest.mark.parametrize(("texts", "sentence"), [
    (["unroll-length=8,8"], "makes 2 runs of one name, 'unroll-length-8-seed-1'; give each value once"),
    (["env=a/b,a:b"], "makes 2 runs of one name"),
    (["unroll-length=8", "unroll_length=16"], "--vary unroll-length is given twice; give all its values at once"),
])
def test_values_that_would_share_a_folder_or_replace_others_are_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        members_of("ppo", [], [1], varied_by(texts))


@pytest.mark.parametrize(("words", "varied", "parts"), [
    (["--budget", "core-hours=3,money=0.6", "--price", "hour=1"], {}, {"core-hours": 1.0, "money": 0.2}),
    (["--cost.budget", "core-hours=3"], {"unroll-length": ["8"]}, {"core-hours": 1.0}),
    ([], {"budget": ["core-hours=3"]}, {"core-hours": 3.0}),
    ([], {}, {}),
])
def test_a_budget_is_for_all_members_together(
    words: list[str], varied: dict[str, list[str]], parts: dict[str, float]
) -> None:
    runs, _ = settled(members_of("ppo", [*INLINE[1:], *words], [1, 2, 3], varied), varied)
    budgets = [config_of_words(member.words)[1].cost.budget for member in runs]
    assert budgets == [pytest.approx(parts)] * 3


def test_what_all_members_cost_is_told(tmp_path: Path) -> None:
    members = [Member(f"seed-{i}", "", ()) for i in (1, 2)]
    for member, hours in zip(members, (0.25, 0.75), strict=True):
        (tmp_path / member.name).mkdir()
        (tmp_path / member.name / "summary.json").write_text(json.dumps({"cost": {"core_hours": hours}}))
    assert Population(tmp_path, members, 1).verdict() == [
        "all: nothing finished; 0.5 core hours each", "cost: 1 core hours in all 2 runs"
    ]


def test_the_interval_is_students() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    half = 3.182 * statistics.stdev(values) / 2
    assert interval(values) == f"2.5 ± {half:.1f}"
    assert interval([7.0]) == "7.0" and interval([1000.0, 3000.0]) == "2,000 ± 12,710"


def test_the_verdict_is_over_the_seeds_of_a_setting(tmp_path: Path) -> None:
    members = [Member(f"{s}-{i}", s, ()) for s in ("a=1", "a=2") for i in (1, 2)]
    for index, member in enumerate(members[:3]):
        (tmp_path / member.name).mkdir()
        summary = {"eval_return": float(index), "solved_at_step": 100 if index == 2 else None}
        (tmp_path / member.name / "summary.json").write_text(json.dumps(summary))
    lines = Population(tmp_path, members, 1).verdict()
    assert lines[0] == f"a=1: greedy return {interval([0.0, 1.0])} over 2 seeds"
    assert lines[1] == "a=2: greedy return 2.0 over 1 seeds; solved 1 of 2, at 100.0 steps"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "1..2", "--seed", "1"], "exclude each other"),
        (["--seeds", "1..2", "--bogus", "1"], "unknown option --bogus"),
        (["--seeds", "1..2", "--jobs", "0"], "--jobs 0 must be"),
        (["--vary", "unroll-length=8,x"], "unroll-length"),
        (["--seeds", "1..2", "--algorithm.clip", "-1"], "clip=-1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *TINY, *words, "--run-dir", str(tmp_path / "all")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "all").exists()


def test_runs_are_whole_and_a_second_time_nothing_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "all"
    words = ["train", *INLINE, "--steps", "64", "--seeds", "1..2", "--run-dir", str(directory)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "seed-1: done" in shown and "over 2 seeds" in shown
    content = json.loads((directory / "population.json").read_text())
    assert [content["results"][f"seed-{seed}"]["seed"] for seed in (1, 2)] == [1, 2]
    for seed in (1, 2):
        assert (directory / f"seed-{seed}" / "checkpoints").is_dir()
        assert (directory / f"seed-{seed}" / "metrics.jsonl").is_file()
    assert main(words) == 2, "the folder holds runs already"
    before = (directory / "seed-1" / "summary.json").stat().st_mtime_ns
    assert main(["train", "--resume", str(directory)]) == 0
    assert (directory / "seed-1" / "summary.json").stat().st_mtime_ns == before


def test_what_all_members_wrote_into_one_data_set_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    words = ["--steps", "64", "--seeds", "1..2", "--run-dir", str(tmp_path / "all"), "--record", str(data)]
    assert main(["train", *INLINE, *words]) == 0
    shown, known = " ".join(capsys.readouterr().out.split()), open_dataset(data)
    assert shown.count("recorded") == 1
    assert f"recorded: {known.num_episodes} episodes, {known.num_steps} steps are in {data} now" in shown


def test_a_member_that_was_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    directory = tmp_path / "all"
    members = members_of("ppo", [*INLINE[1:], "--steps", "64"], [1], {})
    Population(directory, members, jobs=1)._write()
    (directory / "seed-1" / "checkpoints" / ".partial-step-000000000032").mkdir(parents=True)
    (directory / "seed-1" / "config.yaml").write_text("system: ppo\n")
    (directory / "seed-1" / "output.txt").write_text("what happened\n")
    assert main(["train", "--resume", str(directory)]) == 0
    assert (directory / "seed-1" / "output.txt").read_text().startswith("what happened\n")
    assert json.loads((directory / "seed-1" / "summary.json").read_text())["exit_reason"] == "steps done"


def test_a_population_goes_on_with_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    page = PageConfig("127.0.0.1:0")
    Population(tmp_path, members_of("ppo", INLINE[1:], [1], {}), jobs=1, page=page)._write()
    assert saved_population(tmp_path).page == page
    content = json.loads((tmp_path / "population.json").read_text())
    for odd, sentence in (
        ({"listen": "127.0.0.1:80"}, "asks for its page=.*which opens a port here"), ({"listen": 3}, "cannot be read"),
        ({"ports": "80"}, "cannot be read"), ([], "cannot be read"),
    ):
        (tmp_path / "population.json").write_text(json.dumps(content | {"page": odd}))
        with pytest.raises(UserError, match=sentence):
            saved_population(tmp_path)
    (tmp_path / "population.json").write_text(json.dumps(content | {"page": {"listen": "0.0.0.0:80"}}))
    with pytest.raises(UserError, match="anybody could see the run"):
        saved_population(tmp_path, trust=True)


def test_a_checkpoint_whose_name_was_being_changed_counts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    assert not has_checkpoint(tmp_path)
    saved = store.commit(store.begin(3), {})
    assert has_checkpoint(tmp_path)
    saved.rename(tmp_path / f".replaced-{saved.name}")
    assert has_checkpoint(tmp_path), "a store that is opened to write gives it its name back"
    (tmp_path / f".replaced-{saved.name}" / "checkpoint.json").unlink()
    assert not has_checkpoint(tmp_path)


def test_a_run_that_fails_is_told_and_the_others_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = members_of("ppo", [*INLINE[1:], "--steps", "64"], [1], {})
    bad = Member("bad", "", ("ppo", "--env", "tests.envs.broken:missing"))
    population = Population(tmp_path / "all", [bad, *good], jobs=1)
    assert population.run() == 1
    told = capsys.readouterr()
    assert "1 of 2 runs failed" in told.err and "output.txt" in told.err
    assert population.codes["bad"] == 2 and population.codes["seed-1"] == 0


def test_a_run_that_lost_something_to_its_storage_is_incomplete_and_not_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    population = Population(tmp_path, members_of("ppo", INLINE[1:], [1, 2], {}), jobs=1)
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2" / "summary.json").write_text('{"exit_reason": "steps done"}')
    population.codes = {"seed-1": 0, "seed-2": INCOMPLETE}
    assert population._report_codes() == INCOMPLETE
    assert "1 of 2 runs lost metrics, logs or their last checkpoint; see " in capsys.readouterr().err
    assert population.rows()[1].state == "steps done, incomplete"
    population.codes["seed-1"] = 1
    assert population._report_codes() == 1


def running(directory: Path) -> list[int]:
    """Ids of living processes that were started for runs in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, state = path.read_bytes(), (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(directory).encode() in words and b"--run-dir" in words and state != "Z":
            found.append(int(path.parent.name))
    return found


def until(holds: Any, what: str) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def _begun(metrics: Path) -> bool:
    return metrics.is_file() and metrics.stat().st_size > 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_run_outlives_its_population(how: signal.Signals, tmp_path: Path) -> None:
    directory = tmp_path / "all"
    line = f"--steps 1000000000 --seeds 1..2 --jobs 2 --run-dir {directory}"
    words = [*(TINY if how == signal.SIGINT else INLINE), *line.split()]
    process = subprocess.Popen(
        [sys.executable, "-m", "pappus", "train", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "100"}, start_new_session=True,
    )
    try:
        members = [directory / f"seed-{seed}" for seed in (1, 2)]
        until(lambda: all(_begun(member / "metrics.jsonl") for member in members), "they never began")
        process.send_signal(how)
        output, _ = process.communicate(timeout=SECONDS)
        until(lambda: not [pid for pid in running(directory) if pid != process.pid], "runs were left behind")
    finally:
        process.kill()
    if how != signal.SIGKILL:
        assert process.returncode == 130 and "--resume" in output.decode()
        summaries = [json.loads((member / "summary.json").read_text()) for member in members]
        assert [summary["exit_reason"] for summary in summaries] == ["interrupted", "interrupted"]
        assert [member.name for member in saved_population(directory).members] == ["seed-1", "seed-2"]


def test_who_does_not_stop_is_killed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pappus.population.STOP_SECONDS", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline(), "it ignores Ctrl-C from now on"
    population = Population(tmp_path, [Member("deaf", "", ())], 1, running={"deaf": process})
    population._stop()
    assert population.codes == {"deaf": -signal.SIGKILL} and not population.running
