"""The lines of log.txt as events: a time, the role that it is about, and a text that may have several lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable
from datetime import datetime

from pappus.page.document import EventDocument
from pappus.page.reading import shortened

MOST_EVENTS = 300
MOST_LETTERS = 4000
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)", re.DOTALL)
ROLE = re.compile(r"([\w.-]{1,80}): (.*)", re.DOTALL)
INDENT = "    "


class EventLog:
    """The newest events of a run."""

    def __init__(self, roles: Collection[str] = ()) -> None:
        self.roles = roles
        """Names that may stand before an event's text."""
        self.events: deque[EventDocument] = deque(maxlen=MOST_EVENTS)

    def add(self, lines: Iterable[bytes]) -> list[EventDocument]:
        """The events that begin in these lines; an indented line belongs to the event before it."""
        new: list[EventDocument] = []
        for line in lines:
            text = line[:MOST_LETTERS].decode(errors="replace")
            if text.startswith(INDENT):
                self._continue(new, text.removeprefix(INDENT))
            elif event := self._event(text):
                new.append(event)
                self.events.append(event)
        return new[-MOST_EVENTS:]

    def _continue(self, new: list[EventDocument], text: str) -> None:
        last = new[-1] if new else self.events[-1] if self.events else None
        if last is not None and len(last["text"]) + len(text) < MOST_LETTERS:
            last["text"] += f"\n{text}"

    def _event(self, line: str) -> EventDocument | None:
        found = LINE.match(line)
        if found is None:
            return None
        try:
            moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").timestamp()
        except (ValueError, OverflowError):
            return None
        named = ROLE.match(found[2])
        role, text = (named[1], named[2]) if named is not None and named[1] in self.roles else ("", found[2])
        return {"time": moment, "role": role, "text": shortened(text, MOST_LETTERS)}
