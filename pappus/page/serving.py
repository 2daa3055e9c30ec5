"""A page that is served while something goes on, and written as a file when that is over."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pappus.config import PageConfig
from pappus.page import reading
from pappus.page.answers import Shown
from pappus.page.assemble import assembled
from pappus.page.document import Page
from pappus.page.folder import OneRun, RunsFolder, is_run
from pappus.page.following import FollowedRun
from pappus.page.server import PageServer

FILE = "page.html"
MOST_FILM = 16 << 20
"""Bytes of a film that is put into a page's file; a larger one stays beside the run."""


def shown(directory: Path) -> Shown:
    """A run directory or a folder of runs, as a server shows it."""
    return OneRun(FollowedRun(directory)) if is_run(directory) else RunsFolder(directory)


@contextmanager
def served_meanwhile(shown: Shown, directory: Path, config: PageConfig) -> Iterator[None]:
    """Serve a page, tell where, and write it into the directory in the end. `UserError` where it cannot be served;
    after that nothing here fails."""
    server = PageServer(shown, config)
    with contextlib.suppress(RuntimeError):  # no thread can be started: the file will have to do
        server.start()
        tell(server.url)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            server.close()
        with contextlib.suppress(Exception):
            write_page(shown, directory / FILE)


def write_page(shown: Shown, file: Path) -> None:
    """Write a page that works without its server, its film in it; `OSError` where that is impossible."""
    page: Page = {**shown.page(), "live": False}
    run, only = page["run"], shown.run("")
    if run is not None and only is not None and run["video"]:
        film = reading.content(only.directory / run["video"], MOST_FILM)
        if film is not None:
            page["run"] = {**run, "video": f"data:video/mp4;base64,{base64.b64encode(film).decode()}"}
    temporary = file.with_name(f".{file.name}.partial")
    try:
        temporary.write_bytes(assembled(page))
        os.replace(temporary, file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def tell(url: str) -> None:
    """One line with the address, where it disturbs no output."""
    with contextlib.suppress(OSError, ValueError):
        print(f"page: {url}", file=sys.stderr, flush=True)
