"""Callbacks and loggers run beside the run: nothing that they do holds it up, and nothing is lost in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pappus.config import HooksConfig
from pappus.hooks.beside import Hook, Hooks
from pappus.hooks.callback import Answers
from pappus.telemetry.run_log import Summary

SUMMARY = Summary("ppo", "CartPole-v1", 1, 10, 1, 1.0, 1.0, 10.0, None, None, None, "steps done")


def hooks(config: HooksConfig | None = None, **calls: Callable[..., None]) -> Hooks:
    return Hooks([Hook("mine", calls)], config)


def test_events_come_in_their_order_in_one_thread_of_its_own_and_the_end_comes_last() -> None:
    seen: list[object] = []
    names = set()

    def note(step: int, value: object) -> None:
        seen.append((step, value))
        names.add(threading.current_thread().name)

    subject = hooks(on_metrics=note, on_checkpoint=note, on_end=note)
    subject.tell("on_metrics", 1, "a")
    subject.tell("on_start", 2)
    subject.tell("on_checkpoint", 3, "b")
    subject.end(SUMMARY)
    assert seen == [(1, "a"), (3, "b"), (3, SUMMARY)] and names == {"mine"}
    assert subject.losses() == {} and subject.news() == []


def test_one_that_blocks_holds_nobody_up_and_what_it_misses_is_counted_and_told() -> None:
    entered, free = threading.Event(), threading.Event()

    def block(step: int, *values: object) -> None:
        entered.set()
        free.wait()

    subject = hooks(HooksConfig(queue_size=2, end_seconds=0.0), on_metrics=block, on_episode=block)
    subject.tell("on_metrics", 1, {})
    assert entered.wait(10)
    for _ in range(3):
        subject.tell("on_metrics", 2, {})
    subject.tell("on_episode", 3, [[1.0, 2.0], [3.0, 4.0]], "actor-0")
    (slow,) = subject.news()
    assert slow.startswith("mine is slower than the run: 2 events wait")
    subject.end(SUMMARY)
    unfinished, missed = subject.news()
    assert "mine has not returned from on_metrics within 0 s of the end, with 3 events before it" in unfinished
    assert missed == "mine missed 3 events, which were dropped", "one line of metrics and two episodes"
    assert subject.losses() == {"mine": {"dropped": 3, "unfinished": 1}}
    free.set()


def test_the_end_is_told_even_where_events_were_dropped() -> None:
    entered, free, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(step: int, value: object) -> None:
        entered.set()
        free.wait()

    subject = hooks(HooksConfig(queue_size=1), on_metrics=slow, on_end=lambda step, summary: ended.set())
    subject.tell("on_metrics", 1, {})
    assert entered.wait(10)
    for _ in range(9):
        subject.tell("on_metrics", 1, {})
    free.set()
    subject.end(SUMMARY)
    assert ended.is_set()


def boom(step: int, value: object) -> None:
    raise ValueError("boom")


def test_one_that_raises_stops_the_run_with_its_traceback() -> None:
    subject = hooks(on_metrics=boom)
    subject.tell("on_metrics", 1, {})
    subject.tell("on_metrics", 2, {})
    subject.end(SUMMARY)
    assert subject.failure.startswith("mine failed in on_metrics:\nTraceback")
    assert 'raise ValueError("boom")' in subject.failure and "/beside.py" not in subject.failure
    assert subject.losses() == {"mine": {"errors": 1}}, "it hears nothing more"


@pytest.mark.parametrize(("on_error", "may_stop"), [("log", True), ("stop", False)])
def test_one_that_raises_is_logged_once_and_counted_where_that_is_wanted(on_error: str, may_stop: bool) -> None:
    subject = Hooks([Hook("mine", {"on_metrics": boom}, may_stop)], HooksConfig(on_error=on_error))  # type: ignore[arg-type]
    for step in range(5):
        subject.tell("on_metrics", step, {})
    subject.end(SUMMARY)
    first, count = subject.news()
    assert not subject.failure and first.startswith("mine failed in on_metrics, and the run goes on:\nTraceback")
    assert count == "mine raised 5 times" and subject.losses() == {"mine": {"errors": 5}}


def test_metrics_of_callbacks_keep_their_newest_value() -> None:
    answers = Answers()
    answers.add({"callback/a": 1.0, "b/c": 2.0})
    answers.add({"callback/a": 3.0})
    assert Hooks([], None, answers).metrics() == {"callback/a": 3.0, "b/c": 2.0}
