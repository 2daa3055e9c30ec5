"""Callbacks and loggers run beside the run: each in a thread of its own, which takes events from a bounded queue.

    controller ──tell, which never waits──▶ queue ──▶ thread: on_metrics(run, …)
               ◀──stop, failure, metrics, news───────
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.config import HooksConfig
from pappus.hooks.callback import Answers
from pappus.telemetry.run_log import Summary

FAILED = "a callback failed"
"""The exit reason."""
HERE = str(Path(__file__).parent)
END = "on_end"
END_OF_INTERRUPTED = 5.0
"""Seconds that an interrupted run waits for callbacks and loggers, at most: its grace runs."""


@dataclass(frozen=True)
class Hook:
    """A callback or a logger, as the run sees it."""

    name: str
    calls: Mapping[str, Callable[..., None]]
    """By event: what is called with the step and the event's values."""
    may_stop: bool = True
    """Whether `--hooks.on-error stop` is for it."""


class Hooks:
    """All callbacks and loggers of a run. Nothing here waits, except `end`."""

    def __init__(
        self, hooks: Sequence[Hook] = (), config: HooksConfig | None = None, answers: Answers | None = None
    ) -> None:
        config = config or HooksConfig()
        self._answers, self._seconds = answers or Answers(), config.end_seconds
        stops = config.on_error == "stop"
        self._threads = [_Thread(hook, self._answers, config.queue_size, stops and hook.may_stop) for hook in hooks]

    @property
    def stop(self) -> str:
        """Why a callback wants the run to end; empty while none does."""
        return self._answers.stop

    @property
    def failure(self) -> str:
        """The traceback that ends the run; empty while there is none."""
        return self._answers.failure

    def wants(self, event: str) -> bool:
        """Whether anybody listens to an event."""
        return any(event in thread.hook.calls for thread in self._threads)

    def tell(self, event: str, step: int, *values: object) -> None:
        """An event happened. `on_episode` brings many episodes as one value."""
        for thread in self._threads:
            thread.tell(event, step, values)

    def metrics(self) -> dict[str, float]:
        """What callbacks have logged."""
        return self._answers.metrics()

    def news(self) -> list[str]:
        """Lines for the log since the last call."""
        news = self._answers.news
        return [news.popleft() for _ in range(len(news))]

    def end(self, summary: Summary) -> None:
        """Tell of the end, and wait for all to take it, but not for ever."""
        interrupted = summary.exit_reason in ("interrupted", "stopped")
        seconds = min(self._seconds, END_OF_INTERRUPTED) if interrupted else self._seconds
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.end(summary)
        for thread in self._threads:
            thread.settle(max(0.0, until - time.monotonic()), seconds)

    def losses(self) -> dict[str, dict[str, int]]:
        """For `summary.json`, by name: what was dropped, and how often it raised; empty if all went well."""
        return {thread.hook.name: dict(+thread.losses) for thread in self._threads if +thread.losses}


class _Thread(threading.Thread):
    """One callback or logger."""

    def __init__(self, hook: Hook, answers: Answers, size: int, stops: bool) -> None:
        super().__init__(name=hook.name, daemon=True)
        self.hook, self._answers, self._size, self._stops = hook, answers, size, stops
        self._queue: queue.SimpleQueue[tuple[str, int, tuple[Any, ...]]] = queue.SimpleQueue()
        self.losses: Counter[str] = Counter()
        self._told: set[str] = set()
        self._failed = False
        self._step, self._doing = 0, ""

    def tell(self, event: str, step: int, values: tuple[Any, ...]) -> None:
        self._step = step
        if event not in self.hook.calls:
            return
        if self._queue.qsize() < self._size:
            self._put(event, step, values)
            return
        if not self.losses["dropped"]:
            self._answers.news.append(
                f"{self.hook.name} is slower than the run: {self._size:,} events wait for it, and further ones are "
                "dropped until it has taken some"
            )
        self.losses["dropped"] += len(values[0]) if event == "on_episode" else 1

    def end(self, summary: Summary) -> None:
        self._put(END, self._step, (summary,))

    def settle(self, seconds: float, allowed: float) -> None:
        """Wait so long, and say what became of it."""
        self.join(seconds)
        if self.is_alive():
            self.losses["unfinished"] = 1
            self._answers.news.append(
                f"{self.hook.name} has not returned from {self._doing or 'its last event'} within {allowed:g} s of the "
                f"end, with {self._queue.qsize():,} events before it; the run ends without it"
            )
        if self.losses["dropped"]:
            self._answers.news.append(f"{self.hook.name} missed {self.losses['dropped']:,} events, which were dropped")
        if self.losses["errors"] > 1:
            self._answers.news.append(f"{self.hook.name} raised {self.losses['errors']:,} times")

    def run(self) -> None:
        """Take events until the last one."""
        while self._doing != END:
            self._doing, step, values = self._queue.get()
            if self._doing not in self.hook.calls or (self._failed and self._doing != END):
                continue
            try:
                self.hook.calls[self._doing](step, *values)
            except BaseException as error:  # whatever it raises is its own, be it SystemExit
                self._fail(error)

    def _put(self, event: str, step: int, values: tuple[Any, ...]) -> None:
        if not self.is_alive() and self.ident is None:
            with contextlib.suppress(RuntimeError):  # no thread can be started: its events wait, and are dropped
                self.start()
        self._queue.put((event, step, values))

    def _fail(self, error: BaseException) -> None:
        """Note what was raised. Each kind of error is told in full once, and then only counted."""
        self.losses["errors"] += 1
        text = f"{self.hook.name} failed in {self._doing}"
        kind = f"{self._doing} {type(error).__name__}"
        if self._stops:
            self._failed = True
            self._answers.failure = self._answers.failure or f"{text}:\n{_traceback(error)}"
        elif kind not in self._told:
            self._told.add(kind)
            self._answers.news.append(f"{text}, and the run goes on:\n{_traceback(error)}")


def _traceback(error: BaseException) -> str:
    """The traceback, from the user's own code on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(HERE):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()
