"""What a command shows before its run, and its other styles: nothing but the result, and lines of JSON."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest
from helpers import FakeTime, run_stats

from pappus.errors import UserError
from pappus.telemetry.console import Console, Output
from pappus.telemetry.role_stats import Event
from pappus.telemetry.run_log import Summary
from pappus.telemetry.terminal import Style, Terminal, style_of, terminal
from pappus.telemetry.wording import wrapped

SUMMARY = Summary(
    system="impala", env="CartPole-v1", seed=1, steps=1000, updates=10, wall_seconds=65.0, train_seconds=60.0,
    steps_per_second=16.7, episodic_return=200.0, eval_return=500.0, solved_at_step=900, exit_reason="target reached",
)


class Screen(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


def shown_by(style: Style, error: str = "") -> str:
    """What a run prints from its beginning to its end."""
    file = io.StringIO()
    stats = run_stats(FakeTime())
    console = Console(stats, "runs/demo", Output(file=file), terminal=Terminal(style, file))
    console.update()
    console.event(Event(12.0, "actor-0", "died"))
    console.metrics(64, 13.0, {"losses/policy": 0.5, "charts/SPS": float("nan")})
    console.close(SUMMARY, error)
    return file.getvalue()


def test_a_terminal_says_what_takes_time_in_one_line_that_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    shown = Terminal("shown", screen)
    shown.title = "ppo · CartPole-v1"
    for what in ("loading", "loading torch"):
        shown.say(what)
    shown.clear()
    parts = screen.getvalue().split("\r\x1b[2K")
    assert parts == ["", "ppo · CartPole-v1: loading …", "ppo · CartPole-v1: loading t…", ""]
    assert max(map(len, parts)) < 30 and "\n" not in screen.getvalue()


def test_a_file_gets_no_line_that_would_have_to_give_way() -> None:
    file = io.StringIO()
    shown = Terminal("shown", file)
    shown.say("loading")
    shown.say("loading torch", stays=True)
    shown.clear()
    assert file.getvalue() == "loading torch …\n"


@pytest.mark.parametrize("style", ["quiet", "json"])
def test_the_other_styles_say_nothing_before_the_run(style: Style) -> None:
    file = io.StringIO()
    Terminal(style, file).say("loading torch", stays=True)
    assert file.getvalue() == ""


def test_quiet_is_one_line_with_the_result_and_none_for_a_run_that_failed() -> None:
    assert shown_by("quiet") == (
        "Solved after 1,000 steps in 1:05: return 200.0 (last 100 episodes), 500.0 (greedy evaluation), "
        "target reached at step 900 → runs/demo\n"
    )
    assert shown_by("quiet", "RoleDied: learner died") == ""


def test_json_is_an_object_per_line_from_start_to_end() -> None:
    lines = [json.loads(line) for line in shown_by("json").splitlines()]
    assert [line["type"] for line in lines] == ["start", "event", "metrics", "end"]
    start, event, metrics, end = lines
    assert start["format"] == 1 and start["run"] == "runs/demo" and start["env"] == "CartPole-v1"
    assert (event["role"], event["text"], event["time"]) == ("actor-0", "died", 12.0)
    assert metrics["step"] == 64 and metrics["metrics"] == {"losses/policy": 0.5, "charts/SPS": None}
    assert end["exit_reason"] == "target reached" and end["steps"] == 1000 and end["error"] is None


def test_json_ends_with_the_error_of_a_run_that_failed() -> None:
    assert json.loads(shown_by("json", "RoleDied: learner died").splitlines()[-1])["error"] == "RoleDied: learner died"


def test_nothing_but_results_gets_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with terminal("json") as shown:
        os.write(1, b"an env prints\n")
        shown.object("end", value=1)
    os.write(1, b"afterwards\n")
    told = capfd.readouterr()
    assert told.out == '{"type": "end", "value": 1}\nafterwards\n' and told.err == "an env prints\n"


@pytest.mark.parametrize(("words", "style"), [
    ([], "shown"), (["--quiet"], "quiet"), (["--steps", "3", "--json"], "json"),
])
def test_the_style_is_an_option_of_the_command(words: list[str], style: Style) -> None:
    assert style_of(["ppo", *words]) == (style, ["ppo", *(word for word in words if word not in ("--quiet", "--json"))])


def test_two_styles_at_once_are_refused() -> None:
    with pytest.raises(UserError, match="--quiet and --json exclude each other"):
        style_of(["--json", "--quiet"])


def test_final_lines_are_cut_between_words_and_what_is_copied_is_not() -> None:
    verdict = "  verdict         " + "the learner is the bottleneck " * 5
    assert all(len(part) <= 60 for part in wrapped(verdict, 60))
    assert wrapped(verdict, 60)[1].startswith(" " * 18 + "is the bottleneck")
    command: Any = "  go on           pappus train --resume runs/" + "x" * 80
    assert wrapped(command, 60) == [command]
