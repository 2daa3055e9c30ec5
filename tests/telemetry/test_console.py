from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from helpers import FakeTime, report, run_stats

from pappus.kinds import ACTOR, LEARNER
from pappus.telemetry.console import Console, Output
from pappus.telemetry.figures import figure, memory
from pappus.telemetry.live_view import picture, shown_roles
from pappus.telemetry.plain_views import status_line
from pappus.telemetry.role_view import RoleView
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import NO_EPISODE, RunStats
from pappus.telemetry.wording import done, duration, farewell
from pappus.topologies.offline import OfflineConfig

SUMMARY = Summary(
    system="impala", env="CartPole-v1", seed=1, steps=1000, updates=10, wall_seconds=65.0, train_seconds=60.0,
    steps_per_second=16.7, episodic_return=200.0, eval_return=500.0, solved_at_step=900, exit_reason="target reached",
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def _running(time: FakeTime, **settings) -> RunStats:
    subject = run_stats(time, **settings)
    subject.process("learner", os.getpid())
    actor = report("actor-0", 0.49, {"slots": 0.01}, counts={"env_steps": 100, "episodes": 7}, episodes=[[132.4, 90.0]])
    subject.add(actor)
    subject.add(report(
        "learner", 0.3, {"unrolls": 0.2}, counts={"env_steps": 100, "updates": 5}, gauges={"queue/depth": 3},
        means={"learner/policy_lag": [6.0, 5.0]}, maxima={"policy_lag": 4.0},
    ))
    return subject


def _terminal(width: int = 120, **options) -> Output:
    return Output(file=io.StringIO(), force_terminal=True, width=width, height=30, **options)


def _pipe() -> Output:
    return Output(file=io.StringIO(), force_terminal=False)


def _text(output: Output) -> str:
    assert isinstance(output.file, io.StringIO)
    return output.file.getvalue()


@pytest.mark.parametrize("width", [60, 120])
def test_the_picture_fits_the_terminal_and_shows_what_matters(width):
    subject = _running(FakeTime())
    subject.event("saved a checkpoint")
    output = Output(record=True, width=width, file=io.StringIO())
    output.print(picture(subject, "runs/demo", width, height=30))
    text = output.export_text()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for expected in (
        "impala · CartPole-v1 · seed 1 · processes (local)", "runs/demo",
        "actor 200.0/s ──▶ queue 3 ──▶ learner 200.0/s",
        "10 % · 100 of 1,000 steps", "ETA 0:04", "200.0 steps/s, 10.0 updates/s", "return 132.4, length 90.0",
        "policy lag 1.2 (max 4)", "queue depth 3", "unrolls 40 %", "iB", "saved a checkpoint",
        "the others wait for the actors: actor-0 computes 98 %",
    ):
        assert expected in words, expected


def test_progress_is_told_as_a_share_of_the_limit_that_is_nearest():
    subject = _running(FakeTime())
    for limits, told in (
        ({}, "10 % · 100 of 1,000 steps"), ({"seconds": 0.5}, "50 % of the time · 100 steps"),
        ({"seconds": 0.5, "money": 0.7}, "70 % of the budget of money · 100 steps"),
    ):
        subject.limits_used = limits
        assert done(subject) == told


def test_before_the_first_report_the_picture_is_calm():
    output = Output(record=True, width=80, file=io.StringIO())
    output.print(picture(run_stats(FakeTime()), "runs/demo", 80, height=30))
    text = output.export_text()
    assert "starting" in text and NO_EPISODE in text and "nan" not in text.lower()


def test_a_run_that_stands_still_shows_why_in_place_of_the_verdict():
    subject = _running(FakeTime())
    subject.stall = "nothing moves for 6 s: the learner waits for unrolls from actor-0"
    output = Output(record=True, width=80, file=io.StringIO())
    output.print(picture(subject, "runs/demo", 80, height=30))
    text = output.export_text()
    assert "■ nothing moves for 6 s: the learner waits for unrolls from actor-0" in text and "▸" not in text


def test_the_picture_and_the_line_show_losses():
    subject = _running(FakeTime())
    subject.add(report("learner", 0.3, {}, counts={"updates": 1}, means={"losses/policy_loss": [0.5, 2.0]}))
    output = Output(record=True, width=80, file=io.StringIO())
    output.print(picture(subject, "runs/demo", 80, height=30))
    assert "policy loss 0.25" in output.export_text() and "policy loss 0.25" in status_line(subject)


def test_storage_that_fails_is_shown_as_long_as_it_does():
    subject = run_stats(FakeTime())
    for text in ("metrics.jsonl cannot be written", ""):
        subject.storage = text
        output = Output(record=True, width=80, file=io.StringIO())
        output.print(picture(subject, "runs/demo", 80, height=30))
        assert ("storage" in output.export_text()) == bool(text)


@pytest.mark.parametrize("width", [60, 100])
def test_long_reasons_for_waiting_give_way_to_names_and_numbers(width):
    subject = run_stats(FakeTime())
    subject.process("evaluator", os.getpid())
    subject.add(report("evaluator", 0.1, {"a free slot of the queue of unrolls": 0.5, "a new version of weights": 0.4}))
    output = Output(record=True, width=width, file=io.StringIO())
    output.print(picture(subject, "runs/demo", width, height=30))
    row = next(line for line in output.export_text().splitlines() if line.startswith("evaluator"))
    assert " 10 % " in row and "a free slot" in row and "…" in row and row.rstrip().endswith("iB")


def test_shares_stand_below_each_other_though_a_role_waited_for_a_core(monkeypatch):
    subject, output = run_stats(FakeTime()), Output(record=True, width=80, file=io.StringIO())
    views = [RoleView(f"actor-{i}", ACTOR, "busy", 0.5, {"unrolls slots": idle}) for i, idle in enumerate((0.1, 0.5))]
    monkeypatch.setattr(subject, "views", lambda *_: views)
    output.print(picture(subject, "runs/demo", 80, height=30))
    one, other = (line for line in output.export_text().splitlines() if line.startswith("actor-"))
    assert one.index(" 50 %") == other.index(" 50 %")


def test_roles_that_do_not_fit_share_a_row_per_kind():
    views = [
        RoleView(f"actor-{index}", ACTOR, "busy", 0.5, {"slots": 0.5}, restarts=1, memory=2**20) for index in range(64)
    ]
    rows = shown_roles([*views, RoleView("learner", LEARNER, "busy", 1.0, {})], rows=10)
    assert [row.role for row in rows] == ["actor ×64", "learner"]
    assert (rows[0].busy, rows[0].waiting, rows[0].restarts) == (0.5, {"slots": 0.5}, 64)
    assert (rows[0].memory, rows[0].members) == (2**20, 64), "the mean: a sum would count shared pages again and again"
    assert len(shown_roles(views[:8], rows=10)) == 8


def test_a_terminal_is_repainted_and_left_with_the_last_words_only():
    time = FakeTime()
    output = _terminal()
    console = Console(_running(time), output=output, clock=time)
    console.update()
    assert "policy lag" in _text(output) and "\x1b[?25l" in _text(output)
    console.close(SUMMARY)
    assert _text(output).rstrip().endswith("tensorboard --logdir runs/demo")
    assert "\x1b[?25h" in _text(output), "the cursor is shown again"


def test_a_terminal_is_repainted_at_most_four_times_a_second():
    time = FakeTime()
    output = _terminal()
    console = Console(_running(time), output=output, clock=time)
    console.update()
    once = len(_text(output))
    time.pass_(0.1)
    console.update()
    assert len(_text(output)) == once
    time.pass_(0.2)
    console.update()
    assert len(_text(output)) > once


def test_no_color_is_honoured(monkeypatch):
    time = FakeTime()

    def painted() -> str:
        output = _terminal(color_system="standard")
        Console(_running(time), output=output, clock=time).update()
        return _text(output)

    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colour.search(painted())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(painted())


def test_brackets_in_messages_are_shown_not_interpreted():
    subject = _running(FakeTime())
    subject.event("[Errno 2] [bold]missing[/bold]\x1b[2J", role="actor-0")
    output = Output(record=True, width=120, file=io.StringIO())
    output.print(picture(subject, "runs/[x]", 120, height=30))
    text = output.export_text()
    assert "actor-0: [Errno 2] [bold]missing[/bold]" in text and "runs/[x]" in text and "\x1b[2J" not in text


def test_a_pipe_gets_plain_lines_every_ten_percent_or_ten_seconds():
    time = FakeTime()
    output = _pipe()
    subject = _running(time)
    console = Console(subject, output=output, clock=time)
    console.update()
    assert _text(output) == "impala · CartPole-v1 · seed 1 · processes (local) · 1,000 steps → runs/demo\n"
    time.pass_(1)
    subject.add(report("learner", counts={"env_steps": 100}))
    console.update()
    time.pass_(1)
    console.update()
    assert len(_status_lines(output)) == 1
    time.pass_(10)
    console.update()
    assert len(_status_lines(output)) == 2
    assert not CONTROL.search(_text(output))


def test_a_pipe_gets_no_verdict_after_the_training_but_that_of_the_last_lines():
    time = FakeTime()
    output = _pipe()
    subject = _running(time)
    console = Console(subject, output=output, clock=time)
    console.update()
    subject.training_ended()
    time.pass_(10)
    console.update()
    assert len(_status_lines(output)) == 1 and subject.verdict() not in _text(output)


def test_a_status_line_says_it_all():
    assert status_line(_running(FakeTime())) == (
        " 10 %  100 steps  200.0 steps/s  return 132.4, length 90.0  lag 1.2 (max 4)  queue 3  ETA 0:04"
    )


def test_a_status_line_needs_no_episode():
    assert status_line(run_stats(FakeTime())) == f"  0 %  0 steps  0 steps/s  {NO_EPISODE}  lag –  queue –  ETA –"


def test_a_run_from_data_shows_updates_and_evaluations_and_no_episodes():
    subject = run_stats(FakeTime(), topology=OfflineConfig())
    assert status_line(subject) == "  0 %  0 steps  0 steps/s  not evaluated yet  ETA –"
    subject.add(report("learner", 0.5, {}, counts={"env_steps": 100, "updates": 100}))
    subject.add(report("evaluator", 0.5, {}, gauges={"eval/episodic_return": 12.5}))
    assert status_line(subject) == " 10 %  100 steps  200.0 steps/s  greedy return 12.5  ETA 0:04"
    output = Output(record=True, width=120, file=io.StringIO())
    output.print(picture(subject, "runs/demo", 120, height=30))
    shown = output.export_text()
    assert "200.0 updates/s" in shown and "greedy return 12.5" in shown
    assert "policy lag" not in shown and "episode" not in shown


def test_events_reach_a_pipe_at_once_without_control_characters():
    output = _pipe()
    console = Console(run_stats(FakeTime()), output=output)
    console.event("actor-0: \x1b[31mdied\x07\nTraceback")
    assert "  actor-0:  [31mdied \nTraceback\n" in _text(output)
    assert not CONTROL.search(_text(output))


def test_a_pipe_learns_of_a_new_bottleneck_once():
    time = FakeTime()
    output = _pipe()
    subject = run_stats(time)
    console = Console(subject, output=output, clock=time)
    for busy in (0.96, 0.97, 0.98, 0.3):
        time.pass_(11)
        subject.add(report("actor-0", busy, {"slots": 1 - busy}))
        learner = 0.9 if busy == 0.3 else 0.5
        subject.add(report("learner", learner, {"unrolls": 1 - learner}, counts={"updates": 2}))
        console.update()
    assert _text(output).count("the others wait for the actors") == 1
    assert _text(output).count("the others wait for the learner") == 1


def test_a_terminal_that_cannot_paint_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    output = _terminal()
    console = Console(_running(FakeTime()), output=output)
    console.update()
    console.close(SUMMARY)
    assert not CONTROL.search(_text(output))


def test_an_output_without_unicode_gets_replacements():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(_running(FakeTime()), output=Output(file=stream, force_terminal=True))
    console.update()
    console.close(SUMMARY)
    assert b"Solved after 1,000 steps" in stream.buffer.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError("no space left"), ValueError("closed")])
def test_a_failing_output_ends_the_output_not_the_run(terminal, error):
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    subject = _running(FakeTime())
    before = (sys.stdout, sys.stderr)
    console = Console(subject, output=Output(file=Broken(), force_terminal=terminal))
    console.update()
    console.event("something")
    console.close(SUMMARY)
    assert [event for event in subject.events if "the console ended" in event.text]
    assert (sys.stdout, sys.stderr) == before


def test_a_reader_that_leaves_early_does_not_change_the_exit_code():
    program = (
        "import sys; sys.path[:0] = ['tests/telemetry', '.']\n"
        "from helpers import FakeTime, run_stats\n"
        "from pappus.telemetry.console import Console\n"
        "console = Console(run_stats(FakeTime()))\n"
        "console.event('first')\n"
        "sys.stdin.readline()\n"
        "for _ in range(3): console.event('x' * 100_000)\n"
        "console.close()\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, cwd=root) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        process.stdin.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_the_last_words_say_outcome_place_and_next_steps():
    text = "\n".join(farewell(SUMMARY, "runs/demo", "actor-0 is the bottleneck"))
    for expected in (
        "Solved after 1,000 steps in 1:05 (1:00 of it training).", "16.7 steps/s, 10 updates",
        "200.0 (last 100 episodes), 500.0 (greedy evaluation), target reached at step 900",
        "actor-0 is the bottleneck", "pappus eval runs/demo", "pappus page runs/demo", "tensorboard --logdir runs/demo",
    ):
        assert expected in text


def test_a_run_below_the_working_directory_is_shown_as_one_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, shown in ((tmp_path / "runs" / "x", "pappus eval runs/x\n"), ("/else/x", "pappus eval /else/x\n")):
        output = _pipe()
        Console(run_stats(FakeTime()), place, output).close(SUMMARY)
        assert shown in _text(output)


def test_the_last_words_of_a_failed_run_point_to_its_log_and_to_a_checkpoint_if_there_is_one(tmp_path):
    text = "\n".join(farewell(None, tmp_path, ""))
    assert "ended early" in text and f"{tmp_path}/log.txt" in text and "--resume" not in text
    (tmp_path / "checkpoints" / "step-000000001000").mkdir(parents=True)
    assert f"pappus train --resume {tmp_path}" in "\n".join(farewell(None, tmp_path, ""))


def test_numbers_read_well():
    assert [figure(value) for value in (48211.3, 132.44, 0.0371, -21)] == ["48,211", "132.4", "0.0371", "-21.0"]
    assert [duration(seconds) for seconds in (5, 65, 3723)] == ["0:05", "1:05", "1:02:03"]
    assert [memory(size) for size in (None, 512 * 2**20, 3 * 2**29)] == ["", "512 MiB", "1.5 GiB"]


def _status_lines(output: Output) -> list[str]:
    return [line for line in _text(output).splitlines() if "steps/s" in line]


def test_on_a_cluster_the_picture_says_which_roles_are_on_which_node():
    subject = _running(FakeTime(), runtime="ray")
    subject.process("learner", 7, "10.0.0.1")
    subject.process("actor-0", 7, "10.0.0.2")
    subject.measured("actor-0", 3 * 2**20, 1.5)
    output = Output(record=True, width=120, file=io.StringIO())
    output.print(picture(subject, "runs/demo", 120, height=30))
    text = output.export_text()
    assert "cluster (ray)" in text
    row = next(line for line in text.splitlines() if line.startswith("actor-0"))
    assert "10.0.0.2" in row and row.rstrip().endswith("3 MiB"), "its own word counts, not that of a process here"


def test_roles_that_share_a_row_are_counted_by_node():
    views = [RoleView(f"actor-{index}", ACTOR, "busy", 0.5, {}, node=f"10.0.0.{index % 2}") for index in range(7)]
    assert shown_roles(views, rows=4)[0].node == "10.0.0.0 ×4, 10.0.0.1 ×3"
