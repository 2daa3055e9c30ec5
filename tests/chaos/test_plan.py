"""The plan of faults: the same for the same seed, and with every kind in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pappus.chaos.command import DEFAULTS, Chaos, parse, training_words
from pappus.chaos.faults import KINDS
from pappus.chaos.plan import plan
from pappus.chaos.training import Subject
from pappus.errors import UserError

WEIGHTS = {name: kind.weight for name, kind in KINDS.items()}


def test_the_same_seed_gives_the_same_plan_and_another_another() -> None:
    first, again, other = (plan(seed, 600.0, 10.0, WEIGHTS) for seed in (1, 1, 2))
    assert first == again != other


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = (plan(1, seconds, 10.0, WEIGHTS) for seconds in (100.0, 600.0))
    assert long[: len(short)] == short and len(long) > len(short)


def test_faults_come_in_time_and_as_often_as_asked_for() -> None:
    planned = plan(3, 600.0, 10.0, WEIGHTS)
    times = [one.at for one in planned]
    assert times == sorted(times) and times[0] > 0 and times[-1] < 600
    assert 40 <= len(planned) <= 85 and all(0 <= one.draw < 1 for one in planned)


def test_every_kind_comes_before_one_comes_more_often_than_its_weight() -> None:
    dealt = sum(WEIGHTS.values())
    assert Counter(one.kind for one in plan(5, 1e4, 10.0, WEIGHTS)[:dealt]) == WEIGHTS


def test_once_is_each_kind_once() -> None:
    assert sorted(one.kind for one in plan(5, 60.0, 1.0, WEIGHTS, once=True)) == sorted(KINDS)


def test_each_kind_says_in_a_line_what_it_does() -> None:
    assert all(len(kind.says) > 20 and kind.weight > 0 for kind in KINDS.values())


@pytest.mark.parametrize(
    ("subject", "left_out"),
    [
        (Subject((), None, {"actor-0": False, "learner": True}), {"flood", "partition"}),  # type: ignore[arg-type]
        (Subject((), None, {"worker-0": False}, "127.0.0.1:1"), {"end"}),  # type: ignore[arg-type]
    ],
)
def test_a_system_gets_the_faults_that_apply_to_it_and_hears_why(subject: Subject, left_out: set[str]) -> None:
    options, _ = parse(["a3c", "--minutes", "60"])
    chaos = Chaos(options, subject, "a3c")
    assert set(chaos.report.not_applicable) == left_out and all(chaos.report.not_applicable.values())
    assert {one.kind for one in chaos.plan} == set(KINDS) - left_out


def test_a_dry_run_prints_the_plan_and_starts_nothing() -> None:
    lines: list[str] = []
    options, rest = parse(["impala", "--env", "CartPole-v1", "--minutes", "1", "--dry-run"])
    chaos = Chaos(options, Subject((), None, {}), "impala", lines.append)  # type: ignore[arg-type]
    assert chaos.run() == 0 and len(lines) == len(chaos.plan) > 0
    assert rest == ["impala", "--env", "CartPole-v1"]


def test_options_of_the_training_stay_and_others_get_what_suits_chaos() -> None:
    words = training_words(["impala", "--env", "CartPole-v1", "--steps=9", "--checkpoint.every_seconds", "7"], 3)
    assert words.count("--seed") == 1 and "--steps" not in words and "--checkpoint.every-seconds" not in words
    assert words[words.index("--runtime") + 1] == DEFAULTS["runtime"] == "local"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["impala", "--faults", "kil"], "'kil' is no kind of fault; did you mean 'kill'"),
        (["impala", "--minutes", "0"], "--minutes 0 and --every 10 must be positive"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(words)


def test_chaos_resumes_only_its_own_run() -> None:
    with pytest.raises(UserError, match="--resume is not for chaos"):
        training_words(["--resume", "runs/mine"], 1)


@pytest.mark.parametrize("name", ["checkpoint:\n  every_seconds", "checkpoint.every-seconds"])
def test_what_a_config_file_gives_stays(tmp_path: Path, name: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"steps: 9\n{name}: 7\n")
    for words in (["--config", str(file)], [f"--config={file}"]):
        found = training_words(["impala", *words], 3)
        assert "--steps" not in found and "--checkpoint.every-seconds" not in found
        assert "--supervision.hang-seconds" in found
