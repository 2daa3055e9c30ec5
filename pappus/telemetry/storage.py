"""What of a run cannot be written, and what was lost of it. Storage that fails does not fail the run."""

from __future__ import annotations

from collections import Counter
from typing import Any

CHECKPOINTS = "checkpoints"
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
"""Seconds until a file is tried again: twice as long after each failure, up to the longest."""


class Storage:
    """Failures and losses by what they concern, a file's name or `checkpoints`. Each is told once when it begins, and
    once when it is over."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """Attempts that failed."""
        self.lost: Counter[str] = Counter()
        """Lines, points of curves, files or checkpoints that are not where they should be, nor will be."""
        self.fallback = ""
        """The directory of the newest checkpoint's run, where that is not the run's own."""
        self._failing: dict[str, None] = {}
        self._news: list[str] = []

    def failed(self, what: str, sentence: str) -> None:
        """An attempt to write failed; the sentence says why, and what comes next."""
        self.failures[what] += 1
        if what not in self._failing:
            self._failing[what] = None
            self._news.append(sentence)

    def works(self, what: str, sentence: str) -> None:
        """An attempt to write succeeded; the sentence is for when one had failed before."""
        if what in self._failing:
            del self._failing[what]
            self._news.append(sentence)

    def lose(self, what: str, count: int = 1) -> None:
        """So much will never be written."""
        if count:
            self.lost[what] += count

    def gone(self, what: str, count: int, path: str) -> None:
        """A file has been removed or moved, with what was written to it."""
        self.lose(what, count)
        self._news.append(f"{path!r} was removed or moved while the run wrote to it; it is begun anew")

    def news(self) -> list[str]:
        """What there is to tell since the last call."""
        told, self._news = self._news, []
        return told

    def line(self) -> str:
        """The state for the view; empty while everything can be written and nothing was lost."""
        now = [f"{', '.join(self._failing)} cannot be written"] if self._failing else []
        lost = ", ".join(f"{count:,} of {what}" for what, count in self.lost.items())
        return " · ".join([*now, *([f"lost: {lost}"] if lost else [])])

    def to_dict(self) -> dict[str, Any]:
        """For `summary.json`; empty if nothing ever failed."""
        content: dict[str, Any] = {"failures": dict(self.failures), "lost": dict(self.lost)}
        content |= {"fallback": self.fallback} if self.fallback else {}
        return {"storage": content} if any(content.values()) else {}
