"""What a request for the page gets: the page, its data, a stream of events, a film, or a sentence that says why not.

    /  /data  /events  /videos/NAME                       a run, or (/ and /data) a folder of runs
    /run/NAME/  /run/NAME/data  …/events  …/videos/NAME   a run of the folder
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pappus.page.access import Access
from pappus.page.assemble import assembled, escaped, template
from pappus.page.document import Page
from pappus.page.following import FILM, VIDEOS
from pappus.page.reading import opened
from pappus.page.streams import WatchedRun

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
RUN = "run/"
RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
FILM_NAME = re.compile(r"[\w+-][\w.+-]{0,200}")
GO_ON = "<!doctype html><title>Pappus</title>"


class Shown(Protocol):
    """What a server shows: a run, or a folder of runs."""

    def page(self) -> Page: ...

    def run(self, name: str) -> WatchedRun | None:
        """A run by its name, which is empty for the only one; None if there is none."""

    def watched(self) -> list[WatchedRun]:
        """The runs that somebody looks at."""


@dataclass(frozen=True)
class Part:
    """A part of a file, which is open."""

    descriptor: int
    start: int
    length: int


@dataclass(frozen=True)
class Answer:
    """What is sent back: a body, a part of a file, or the events of a run after a message."""

    status: HTTPStatus
    body: bytes = b""
    kind: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    part: Part | None = None
    events: WatchedRun | None = None
    after: str = ""


def refused(status: HTTPStatus, text: str) -> Answer:
    """A sentence."""
    return Answer(status, f"{text}\n".encode(errors="replace"))


def answer(shown: Shown, access: Access, target: str, headers: Mapping[str, str], secure: bool = False) -> Answer:
    """The answer to `GET target`. Headers by lower-case name."""
    try:
        address = urlsplit(target)
        query = parse_qs(address.query, max_num_fields=16)
        path = unquote(address.path, errors="strict")
    except ValueError:
        return refused(HTTPStatus.BAD_REQUEST, "this is no address")
    if access.accepts(query.get("token", [""])[0]):
        onward = quote(path if path.startswith("/") and not path.startswith("//") else "/")
        return Answer(HTTPStatus.OK, GO_ON.encode(), HTML, (
            ("Set-Cookie", access.cookie(secure)), ("Refresh", f"0; url={onward}"),
        ))
    if refusal := access.refusal(headers):
        return refused(HTTPStatus.FORBIDDEN, refusal)
    after = headers.get("last-event-id") or query.get("after", [""])[0]
    return _found(shown, path.removeprefix("/"), after, headers)


def _found(shown: Shown, path: str, after: str, headers: Mapping[str, str]) -> Answer:
    name, what = _split(path)
    run = shown.run(name)
    if what in ("", "data") and (run is not None or not name):
        page = shown.page() if run is None else run.page()
        return _page(page) if not what else Answer(HTTPStatus.OK, escaped(page).encode(), JSON)
    if run is None:
        return refused(HTTPStatus.NOT_FOUND, "there is no such page")
    if what == "events":
        return Answer(HTTPStatus.OK, kind="text/event-stream", events=run, after=after)
    if what == "/":
        onward = f"/{RUN}{quote(name)}/"
        return Answer(HTTPStatus.PERMANENT_REDIRECT, headers=(("Location", onward),))
    return _film(run.directory, what.removeprefix(f"{VIDEOS}/"), headers.get("range", ""))


def _split(path: str) -> tuple[str, str]:
    """The name of a run, and what is asked of it: empty for its page, `/` for one whose last slash is missing. A name
    that is missing is one that no run has."""
    if not path.startswith(RUN):
        return "", path
    path = path.removeprefix(RUN)
    for ending in ("/", "/data", "/events"):
        if path.endswith(ending):
            return path.removesuffix(ending) or "/", ending[1:]
    before, found, file = path.rpartition(f"/{VIDEOS}/")
    return (before or "/", f"{VIDEOS}/{file}") if found else (path or "/", "/")


def _page(page: Page) -> Answer:
    policy = f"{template().policy}; frame-ancestors 'none'"
    return Answer(HTTPStatus.OK, assembled(page), HTML, (("Content-Security-Policy", policy),))


def _film(directory: Path, name: str, wanted: str) -> Answer:
    """A film of a run, or the part of it that is wanted."""
    right = FILM_NAME.fullmatch(name) and name.endswith(FILM)
    descriptor = opened(directory / VIDEOS / name) if right else None
    if descriptor is None:
        return refused(HTTPStatus.NOT_FOUND, "there is no such page")
    size, found = os.fstat(descriptor).st_size, RANGE.fullmatch(wanted)
    if found is None or int(found[1]) >= size:
        return Answer(
            HTTPStatus.OK, kind="video/mp4", headers=(("Accept-Ranges", "bytes"),), part=Part(descriptor, 0, size)
        )
    start, last = int(found[1]), min(size - 1, int(found[2] or size - 1))
    length = max(0, last - start + 1)
    headers = (("Content-Range", f"bytes {start}-{start + length - 1}/{size}"),)
    return Answer(HTTPStatus.PARTIAL_CONTENT, kind="video/mp4", headers=headers, part=Part(descriptor, start, length))
