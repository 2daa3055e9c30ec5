"""A page that is served while something goes on, and written as a file when that is over."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pappus.config import PageConfig
from pappus.page.answers import Shown
from pappus.page.assemble import assembled
from pappus.page.document import Page
from pappus.page.folder import OneRun, RunsFolder, is_run
from pappus.page.following import FollowedRun
from pappus.page.server import PageServer

FILE = "page.html"


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
    """Write a page that works without its server; `OSError` where that is impossible."""
    page: Page = {**shown.page(), "live": False}
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
