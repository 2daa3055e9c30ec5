"""Who looks at a run, and what each is sent: events by a bounded queue, so that a browser that is slow costs nothing.

    files ──look, once a second, while somebody looks──▶ WatchedRun ──queue──▶ Stream ──thread──▶ browser
                                                                   ──queue──▶ Stream ──thread──▶ browser

A stream whose queue is full is ended. Its browser comes back by itself, says what it had last, and gets what it missed.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
from collections import deque
from pathlib import Path

from pappus.page.assemble import escaped
from pappus.page.document import Page
from pappus.page.following import FollowedRun, News

WAITING = 100
"""Events that may wait for one browser."""
REMEMBERED = 60
"""Newest messages that a browser which comes back can still get; if it missed more, it gets all of the run anew."""


class Stream:
    """What one browser is sent."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.closed = False

    def put(self, message: bytes) -> None:
        if self._queue.qsize() >= WAITING:
            self.closed = True
        if not self.closed:
            self._queue.put(message)

    def end(self) -> None:
        """Nothing follows what was put."""
        self._queue.put(b"")

    def get(self, seconds: float) -> bytes | None:
        """The next message, empty at the end; None if none came for so long."""
        if self.closed:
            return b""
        with contextlib.suppress(queue.Empty):
            return self._queue.get(timeout=seconds)
        return None


class WatchedRun:
    """A run and its streams; all threads may call it."""

    def __init__(self, run: FollowedRun) -> None:
        self._run, self._lock = run, threading.Lock()
        self._streams: list[Stream] = []
        self._life, self._count = secrets.token_hex(4), 0
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED)

    @property
    def directory(self) -> Path:
        return self._run.directory

    @property
    def watched(self) -> bool:
        return bool(self._streams)

    def look(self) -> None:
        """Send what is new to all streams."""
        with self._lock:
            self._look()

    def page(self, live: bool = True) -> Page:
        """The page of the run as it is now."""
        with self._lock:
            self._look()
            return {
                "mode": "run", "live": live, "run": self._run.document(), "runs": None, "after": self._id(self._count),
            }

    def subscribe(self, after: str) -> Stream:
        """A stream of what comes after a message; of everything from now on, if that is empty."""
        stream = Stream()
        with self._lock:
            self._look()
            for message in self._missed(after):
                stream.put(message)
            self._streams.append(stream)
        return stream

    def leave(self, stream: Stream) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._streams.remove(stream)

    def end(self) -> None:
        """Send what is new, and then nothing more."""
        with self._lock:
            self._look()
            for stream in self._streams:
                stream.end()

    def _look(self) -> None:
        for news in self._run.look():
            message = self._message(news)
            for stream in self._streams:
                stream.put(message)
        self._streams = [stream for stream in self._streams if not stream.closed]

    def _message(self, news: News) -> bytes:
        if news.name == "now":  # the next one replaces it
            return encoded(news)
        self._count += 1
        message = encoded(news, self._id(self._count))
        self._sent.append((self._count, message))
        return message

    def _missed(self, after: str) -> list[bytes]:
        life, _, number = after.partition(".")
        if not after:
            return []
        oldest = self._sent[0][0] if self._sent else self._count + 1
        if life == self._life and number.isdecimal() and len(number) < 18 and int(number) + 1 >= oldest:
            return [message for count, message in self._sent if count > int(number)]
        return [encoded(News("run", self._run.document()), self._id(self._count))]

    def _id(self, count: int) -> str:
        return f"{self._life}.{count}"


def encoded(news: News, id: str = "") -> bytes:
    """An event as it is sent."""
    name = f"id: {id}\n" if id else ""
    return f"event: {news.name}\n{name}data: {escaped(news.data)}\n\n".encode()
