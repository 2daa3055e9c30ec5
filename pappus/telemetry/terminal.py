"""What a command has of standard output, from its first second, long before torch is loaded."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal, TypeAlias, cast

from pappus.errors import UserError

Style: TypeAlias = Literal["shown", "quiet", "json"]
"""All there is to see; the result alone; or a JSON object per line."""
STYLES = ("--quiet", "--json")
CLEAR = "\r\x1b[2K"
"""Back to the beginning of the line, and remove it."""


class Terminal:
    """Says what a command does before there is anything to show of its run, in one line that gives way. The two other
    styles say nothing."""

    def __init__(self, style: Style = "shown", file: IO[str] | None = None) -> None:
        self.style, self.file = style, file or cast(IO[str], sys.stdout)
        self.title = ""
        self._in_place = self.file.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._said = False

    def say(self, what: str, stays: bool = False) -> None:
        """What takes time now. Where no line can give way, only one that `stays` is written."""
        if self.style != "shown" or not (self._in_place or stays):
            return
        self._said = True
        line = f"{self.title}: {what} …" if self.title else f"{what} …"
        line = "".join(letter if letter.isprintable() else " " for letter in line)
        if not self._in_place:
            self._write(line + "\n")
            return
        width = shutil.get_terminal_size().columns
        self._write(CLEAR + (line if len(line) < width else line[: width - 2] + "…"))

    def clear(self) -> None:
        """Something else is shown from now on."""
        if self._said and self._in_place:
            self._write(CLEAR)
        self._said = False

    def print(self, text: str) -> None:
        """A result, whatever the style."""
        self._write(text + "\n")

    def object(self, kind: str, **content: Any) -> None:
        """A JSON object on a line of its own."""
        from pappus.telemetry.files import jsonable

        self._write(json.dumps(jsonable({"type": kind, **content}), allow_nan=False) + "\n")

    def _write(self, text: str) -> None:
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        self.file.write(text.encode(encoding, "replace").decode(encoding))
        self.file.flush()


def style_of(words: list[str]) -> tuple[Style, list[str]]:
    """The style that the words of a command ask for, and the words without it."""
    asked = [word for word in STYLES if word in words]
    if len(asked) > 1:
        raise UserError("--quiet and --json exclude each other; --json lines say less with a filter such as jq")
    style: Style = "shown" if not asked else "json" if asked == ["--json"] else "quiet"
    return style, [word for word in words if word not in STYLES]


@contextmanager
def terminal(style: Style) -> Iterator[Terminal]:
    """Standard output for the time of a command. Where it is to hold nothing but results, whatever else prints there,
    such as an env, prints to standard error meanwhile."""
    if style == "shown":
        shown = Terminal()
        try:
            yield shown
        finally:
            shown.clear()
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as mine:
        os.dup2(2, 1)
        try:
            yield Terminal(style, mine)
        finally:
            sys.stdout.flush()
            os.dup2(mine.fileno(), 1)
