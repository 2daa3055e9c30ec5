"""Parts die, users lose patience, and nothing is lost or left behind."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pappus.cli import main
from pappus.telemetry.doctor_file import read_diagnosis
from tests.process_tools import Training, eventually

ENDLESS = ["impala", "--env", "CartPole-v1", "--steps", "1000000000", "--evaluation.episodes", "2"]
Start = Callable[..., Training]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Training] = []

    def begin(*words: str, interpreter: bool = False) -> Training:
        directory, words = tmp_path / "run", words or tuple(ENDLESS)
        started.append(Training(directory, *words, "--run-dir", str(directory), interpreter=interpreter))
        return started[-1]

    yield begin
    for training in started:
        training.end()


def test_ctrl_c_saves_a_checkpoint_stops_every_process_and_can_be_resumed(start: Start) -> None:
    training = start(interpreter=True)
    training.until_it_learns()
    training.interrupt()
    assert training.wait() == 130
    training.nothing_is_left()
    summary = training.summary()
    assert summary["exit_reason"] == "interrupted" and summary["steps"] > 0
    enough = str(summary["steps"] + 5000)
    assert main(["train", "--resume", str(training.directory), "--steps", enough]) == 0
    assert training.summary()["steps"] >= int(enough)


def test_a_second_ctrl_c_stops_at_once(start: Start) -> None:
    training = start()
    training.until_it_learns()
    os.kill(training.pid("learner"), signal.SIGSTOP)  # it will not answer, so that saving cannot end
    training.interrupt()
    eventually(lambda: "interrupt again" in training.output())
    training.interrupt()
    assert training.wait(10) == 130
    training.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_to_all_processes_of_a_job_saves_and_ends_the_run(start: Start, number: signal.Signals) -> None:
    training = start()
    training.until_it_learns()
    for pid in (*training.known, training.process.pid):
        os.kill(pid, number)
    assert training.wait() == 130
    training.nothing_is_left()
    summary = training.summary()
    assert summary["exit_reason"] == "interrupted" and "unsaved" not in summary
    assert any((training.directory / "checkpoints").glob("step-*"))


def test_a_preempted_run_goes_on_with_the_command_that_started_it(start: Start) -> None:
    training = start(*ENDLESS, "--resume-or-start")
    training.until_it_learns()
    training.process.send_signal(signal.SIGTERM)
    assert training.wait() == 130
    enough = training.summary()["steps"] + 5000
    same = [*ENDLESS, "--run-dir", str(training.directory), "--resume-or-start"]
    assert main(["train", *same, "--steps", str(enough)]) == 0
    assert training.summary()["steps"] >= enough and "resumed from" in (training.directory / "log.txt").read_text()


def test_one_ctrl_c_ends_a_run_whose_learner_hangs(start: Start) -> None:
    training = start(*ENDLESS, "--supervision.grace-seconds", "6", "--supervision.stop-seconds", "1")
    training.until_it_learns()
    os.kill(training.pid("learner"), signal.SIGSTOP)
    training.interrupt()
    assert training.wait(15) == 130
    training.nothing_is_left()
    assert training.summary()["unsaved"] and "without a last checkpoint" in training.output()


@pytest.mark.parametrize("env", ["Hangs", "HangsInNativeCode"])
def test_one_ctrl_c_ends_a_run_whose_env_hangs_in_its_only_thread(start: Start, env: str) -> None:
    words = ["--runtime", "inline", "--supervision.grace-seconds", "3"]
    training = start("ppo", "--env", f"tests.envs.broken:{env}", *words)
    eventually(lambda: "hangs now" in training.output())
    training.interrupt()
    assert training.wait(15) == 130


def test_when_the_main_process_is_killed_all_others_go(start: Start) -> None:
    training = start()
    training.until_it_learns()
    assert len(training.known) == 4, training.known
    training.process.kill()
    training.wait()
    training.nothing_is_left(5)


def test_when_the_process_server_is_killed_the_run_ends(start: Start) -> None:
    training = start()
    training.until_it_learns()
    os.kill(training.pid("forkserver"), signal.SIGKILL)
    assert training.wait(10) == 1
    assert "the fork server died" in training.output()
    training.nothing_is_left()


def test_a_dead_learner_ends_the_run_within_seconds(start: Start) -> None:
    training = start()
    training.until_it_learns()
    os.kill(training.pid("learner"), signal.SIGKILL)
    assert training.wait(10) == 1
    assert "learner died (SIGKILL)" in training.output()
    assert training.summary()["exit_reason"] == "failed"
    training.nothing_is_left()


@pytest.mark.parametrize(("system", "all_reduce"), [("impala", "memory"), ("impala", "gloo"), ("ppo", "memory")])
def test_a_dead_learner_of_two_ends_the_run_within_seconds_and_is_named(
    start: Start, system: str, all_reduce: str
) -> None:
    words = ["--actors", "2", "--learners", "2", "--all-reduce", all_reduce]
    training = start(system, *ENDLESS[1:], *words)
    training.until_it_learns()
    os.kill(training.pid("learner-1"), signal.SIGKILL)
    assert training.wait(10) == 1
    assert "learner-1 died (SIGKILL)" in training.output()
    assert training.summary()["exit_reason"] == "failed"
    training.nothing_is_left()


def test_two_learners_are_interrupted_together_and_resumed_as_one(start: Start) -> None:
    training = start("seed-vtrace", *ENDLESS[1:], "--learners", "2")
    training.until_it_learns()
    training.interrupt()
    assert training.wait() == 130
    training.nothing_is_left()
    summary = training.summary()
    accounts = summary["accounts"]
    assert accounts["received"] == summary["steps"] + accounts["dropped"], "whoever trained on them"
    enough = str(summary["steps"] + 5000)
    assert main(["train", "--resume", str(training.directory), "--steps", enough, "--learners", "1"]) == 0
    assert training.summary()["steps"] >= int(enough)


def test_a_killed_actor_comes_back_and_training_goes_on(start: Start) -> None:
    training = start(*ENDLESS, "--actors", "2")
    training.until_it_learns()
    victim = training.pid("actor-1")
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: training._find("actor-1") not in (None, victim), 5)
    steps = training.steps()
    eventually(lambda: training.steps() > steps)
    training.interrupt()
    assert training.wait() == 130
    assert "actor-1: actor-1 died (SIGKILL); restarting" in (training.directory / "log.txt").read_text()
    training.nothing_is_left()


@pytest.mark.parametrize("system", ["ppo", "ppo@seed"])
def test_a_stopped_actor_is_replaced_and_those_that_waited_for_it_go_on(start: Start, system: str) -> None:
    words = ["--runtime", "local", "--actors", "2", "--envs-per-actor", "4", "--supervision.hang-seconds", "4"]
    training = start(system, *ENDLESS[1:], *words)
    training.until_it_learns()
    os.kill(training.pid("actor-1"), signal.SIGSTOP)
    logged(training, r"actor-1 died \(hung: actor-1 gave no sign of life .*; restarting\n.*it does not run")
    steps = training.steps()
    eventually(lambda: training.steps() > steps + 2000)
    training.interrupt()
    assert training.wait() == 130
    training.nothing_is_left()
    summary = training.summary()
    assert summary["hangs"] == {"actor": 1} and summary["restarts"] == {"actor": 1}


def test_a_stopped_learner_ends_the_run_and_is_named(start: Start) -> None:
    training = start(*ENDLESS, "--supervision.hang-seconds", "3")
    training.until_it_learns()
    os.kill(training.pid("learner"), signal.SIGSTOP)
    assert training.wait() == 1
    assert "learner died (hung: learner gave no sign of life" in training.output()
    training.nothing_is_left()


def test_a_run_that_a_stopped_actor_holds_up_says_so_and_when_it_moves_again(start: Start) -> None:
    training = start("ppo", *ENDLESS[1:], "--runtime", "local", "--actors", "2", "--supervision.stall-seconds", "1")
    training.until_it_learns()
    os.kill(training.pid("actor-1"), signal.SIGSTOP)
    logged(training, "the learner waits for unrolls from actor-1; actor-1 has been stopped by a signal for .* s")
    assert read_diagnosis(training.directory)[0].top.what == "stall", "pappus doctor says so, too"
    os.kill(training.pid("actor-1"), signal.SIGCONT)
    logged(training, "actor-1 moves again after .* s")
    training.interrupt()
    assert training.wait() == 130


def test_a_run_that_a_stuck_loss_holds_up_says_where_it_is(start: Start) -> None:
    training = start("tests.stuck_learner:stuck", *ENDLESS[1:], "--actors", "1", "--supervision.stall-seconds", "1")
    logged(training, r"(?s)nothing moves for .* the learner has been stuck for .* s, asleep in loss "
           r"\(tests/stuck_learner.py:\d+\), called from .*; actor-0 waits for .*stuck_learner.py\", line \d+ in loss")
    os.kill(training.pid("learner"), signal.SIGKILL)
    assert training.wait() == 1


def test_an_env_that_hangs_in_a_step_is_named_and_replaced(start: Start) -> None:
    env = ["--env", "tests.envs.broken:Hangs", "--envs-per-actor", "1", "--unroll-length", "5"]
    training = start("impala", *env, *ENDLESS[3:], "--env-options.step-timeout", "2")
    logged(training, r"actor-0 died \(hung: .*, in a step of env tests.envs.broken:Hangs\); restarting")
    training.interrupt()
    assert training.wait() == 130
    assert training.summary()["hangs"] == {"actor": 1}


def test_env_crashes_are_counted_in_summary_metrics_and_last_report(start: Start) -> None:
    env = ["--env", "tests.envs.broken:CrashesNowAndThen", "--envs-per-actor", "1", "--unroll-length", "5"]
    training = start("impala", *env, "--actors", "1", *ENDLESS[3:])
    logged(training, r"(?s)(actor-0 died.*){3}")
    training.interrupt()
    assert training.wait() == 130
    summary = training.summary()
    crashes = summary["env_crashes"]["actor"]
    assert crashes >= 3 and summary["crashes"] == {} and crashes - 1 <= summary["restarts"]["actor"] <= crashes
    assert f"env crashes (actor {crashes})" in training.output()
    rows = [json.loads(line) for line in (training.directory / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["actor/env_crashes"] == crashes


def test_a_directory_in_use_is_refused(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    training = start()
    training.until_it_learns()
    config = (training.directory / "config.yaml").read_text()
    assert main(["train", "--resume", str(training.directory)]) == 2
    assert "is in use by a running process" in capsys.readouterr().err
    assert (training.directory / "config.yaml").read_text() == config and training.process.poll() is None


@pytest.mark.parametrize("system", ["impala", "a3c"])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_metric(start: Start, system: str) -> None:
    training = start(system, "--env", "tests.envs.broken:PaysNaN", "--envs-per-actor", "4")
    assert training.wait() == 1
    assert "value_loss=nan at update" in training.output() and "is not finite" in training.output()
    assert (training.directory / "non_finite_batch.safetensors").exists()


@pytest.mark.parametrize("system", ["impala", "a3c"])
def test_a_run_that_skips_such_batches_goes_on_and_counts_them(start: Start, system: str) -> None:
    words = ["--envs-per-actor", "4", "--on-non-finite", "skip", "--steps", "4000"]
    training = start(system, "--env", "tests.envs.broken:PaysNaN", *words)
    assert training.wait() == 0, training.output()
    summary = json.loads((training.directory / "summary.json").read_text())
    assert summary["batches_skipped"] > 0 and summary["steps"] >= 4000
    assert "is not finite" in training.output() and "the batch is skipped" in training.output()


def test_an_env_that_always_raises_ends_the_run_with_its_traceback(start: Start) -> None:
    training = start("impala", "--env", "tests.envs.broken:RaisesInStep", "--envs-per-actor", "4")
    assert training.wait() == 1
    assert "this env is broken" in training.output() and "in a row; the first time:" in training.output()
    training.nothing_is_left()


LASTING = ["--steps", "1000000000", "--evaluation.every-steps", "0"]
VALUES = ["--env", "CartPole-v1", *LASTING]


def kill_and_go_on(training: Training, role: str) -> str:
    """Kill a role, and wait until its successor is there and the run learns on; the log."""
    victim = training.pid(role)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: training._find(role) not in (None, victim), 10)
    steps = training.steps()
    eventually(lambda: training.steps() > steps + 1000)
    return (training.directory / "log.txt").read_text()


def logged(training: Training, pattern: str) -> re.Match[str]:
    """What matches in the log; events come there a moment after what they tell of."""
    log = training.directory / "log.txt"
    eventually(lambda: log.exists() and re.search(pattern, log.read_text()) is not None)
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found


CENTRAL_GORILA = ["gorila-dqn", "--topology.replay-memory", "central"]
WITH_REPLAY = pytest.mark.parametrize(
    ("system", "writer"), [(["apex-dqn"], "actor-0"), (CENTRAL_GORILA, "bundle-0")], ids=["apex", "gorila"]
)


@WITH_REPLAY
def test_a_killed_replay_comes_back_from_its_checkpoint_and_says_what_is_lost(
    start: Start, system: list[str], writer: str
) -> None:
    training = start(*system, *VALUES, "--checkpoint.every-seconds", "1")
    training.until_it_learns(3000)
    saved = training.directory / "checkpoints"
    eventually(lambda: any(int(path.parent.name[5:]) > 1000 for path in saved.glob("step-*/replay.json")))
    assert "replay died (SIGKILL); restarting" in kill_and_go_on(training, "replay")
    back = logged(training, r"replay: back with ([\d,]+) of ([\d,]+) inserted items: ([\d,]+) are lost")
    here, noted, lost = (int(number.replace(",", "")) for number in back.groups())
    assert here > 0 and noted - here == lost, "something was restored, and the sum is right"
    kill_and_go_on(training, writer)
    training.interrupt()
    assert training.wait() == 130
    training.nothing_is_left()


@pytest.mark.parametrize("system", ["apex-sac", "apex-crossq", "apex-d4pg", "fast-td3"])
def test_continuous_control_outlives_its_actor_and_its_replay(start: Start, system: str) -> None:
    quick = ["--network.hidden-sizes", "16", "--batch-size", "32", "--topology.replay.samples-per-insert", "8"]
    training = start(system, "--env", "Pendulum-v1", *LASTING, *quick, "--checkpoint.every-seconds", "1")
    training.until_it_learns(3000)
    eventually(lambda: [*(training.directory / "checkpoints").glob("step-*/replay.json")])
    for role in ("actor-0", "replay"):
        assert f"{role} died (SIGKILL); restarting" in kill_and_go_on(training, role)
    eventually(lambda: training.reports("charts/episodic_return"))
    training.interrupt()
    assert training.wait() == 130
    assert training.summary()["episodic_return"] is not None, "its episodes went on"
    training.nothing_is_left()


@WITH_REPLAY
def test_a_run_with_replay_is_resumed_with_its_table(start: Start, system: list[str], writer: str) -> None:
    training = start(*system, *VALUES)
    training.until_it_learns(2000)
    training.interrupt()
    assert training.wait() == 130
    before = training.summary()["steps"]
    (manifest,) = training.directory.rglob("manifest.json")
    inserted = json.loads(manifest.read_text())["tables"][0]["counts"][0]
    assert inserted > before / 2, "actors go on while a checkpoint is written: not all steps are in its table"
    again = Training(training.directory, "--resume", str(training.directory), "--steps", str(before + 1000))
    assert again.wait(60) == 0, again.output()
    assert again.summary()["steps"] >= before + 1000
    lines = [json.loads(line) for line in (training.directory / "metrics.jsonl").read_text().splitlines()]
    sizes = [line["replay/size"] for line in lines if line["step"] > before and "replay/size" in line]
    assert min(sizes) >= inserted, "the items of the first part are there"


def test_a_killed_shard_comes_back_with_the_weights_that_it_published(start: Start) -> None:
    training = start("gorila-dqn", *VALUES, "--topology.shards", "2")
    training.until_it_learns(3000)
    kill_and_go_on(training, "parameter-server-1")
    back = re.compile(r"parameter-server-1: back with the weights of version ([\d,]+)")
    log = training.directory / "log.txt"
    version = eventually(lambda: back.search(log.read_text()))  # others go on without it for a moment
    assert int(version[1].replace(",", "")) > 0
    kill_and_go_on(training, "bundle-0")
    training.interrupt()
    assert training.wait() == 130
    training.nothing_is_left()


@pytest.mark.parametrize(
    ("updates", "replay_server", "found"),
    [
        ("lock-free", "master", r"master: back; weights and statistics are unchanged, at version ([\d,]+)"),
        ("serialised", "parameter-server-0", r"parameter-server-0: back with the weights of version ([\d,]+)"),
    ],
    ids=["lock-free", "serialised"],
)
def test_a_killed_worker_comes_back_and_so_does_who_looks_after_the_weights(
    start: Start, updates: str, replay_server: str, found: str
) -> None:
    training = start("a3c", *VALUES, "--topology.updates", updates, "--actors", "2")
    training.until_it_learns(3000)
    assert "worker-1 died (SIGKILL); restarting" in kill_and_go_on(training, "worker-1")
    kill_and_go_on(training, replay_server)
    log = training.directory / "log.txt"
    version = eventually(lambda: re.search(found, log.read_text()))
    assert int(version[1].replace(",", "")) > 0
    training.interrupt()
    assert training.wait() == 130
    training.nothing_is_left()
    enough = str(training.summary()["steps"] + 5000)
    assert main(["train", "--resume", str(training.directory), "--steps", enough]) == 0
    assert training.summary()["steps"] >= int(enough)
