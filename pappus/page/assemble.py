"""The page as one file: template, style, script and data in one, so that it works from a disk and asks for nothing.

The template `assets/page.html` has four marks: `__PAPPUS_STYLE__`, `__PAPPUS_SCRIPT__`, `__PAPPUS_DATA__` and
`__PAPPUS_POLICY__`, the Content-Security-Policy, which allows just these two by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pappus.page.document import Page
from pappus.telemetry.files import jsonable

ASSETS = Path(__file__).parent / "assets"
STYLES = ("vendor/uPlot.min.css", "page.css")
SCRIPTS = (
    "vendor/uPlot.iife.min.js", "basics.js", "model.js", "chart_tools.js", "chart.js", "curves.js", "boxes.js",
    "figure.js", "figure_lines.js", "edge_labels.js", "roles.js", "panels.js", "events.js", "config.js", "tiles.js",
    "header.js", "runs.js", "runs_together.js", "page.js",
)
MARKS = ("STYLE", "SCRIPT", "POLICY", "DATA")
UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
"""What would end the element that holds the data, or a line of a script."""


class Template(NamedTuple):
    """The file around the data."""

    before: bytes
    after: bytes
    policy: str


def assembled(page: Page) -> bytes:
    """The file with that data."""
    before, after, _ = template()
    return before + escaped(page).encode() + after


def escaped(content: object) -> str:
    """JSON that can stand in an HTML element, and has no number that JSON has not."""
    return json.dumps(jsonable(content), allow_nan=False, separators=(",", ":")).translate(UNSAFE)


@cache
def template() -> Template:
    """The page's file but for its data."""
    style, script = _joined(STYLES), _joined(SCRIPTS)
    allowed = policy(style, script)
    parts = {"STYLE": style, "SCRIPT": script, "POLICY": allowed, "DATA": "\0"}
    whole = re.sub("__PAPPUS_([A-Z]+)__", lambda mark: parts[mark[1]], (ASSETS / "page.html").read_text("utf-8"))
    before, after = whole.split("\0")
    return Template(before.encode(), after.encode(), allowed)


def policy(style: str, script: str) -> str:
    """What a browser may load for the page: nothing but what is in it, and what its own server sends."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; connect-src 'self'; "
        "img-src data: 'self'; media-src data: 'self'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _joined(names: tuple[str, ...]) -> str:
    """Assets one after the other; those that are not there are left out."""
    files = [ASSETS / name for name in names]
    return "\n".join(file.read_text("utf-8") for file in files if file.is_file())
