"""The tables of the results pages as JSON: `python docs/tables.py` writes them to benchmarks/results/.

A page of docs/results/ becomes a list of tables, each with the heading above it and its rows by column. Cells stay
text, as they are shown.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "results"
RESULTS = ROOT / "benchmarks" / "results"


def tables_of(markdown: str) -> list[dict[str, Any]]:
    """All tables of a page, in order."""
    found: list[dict[str, Any]] = []
    heading, lines = "", markdown.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("| ---"):
            columns = [name or f"column {n}" for n, name in enumerate(cells(lines[i - 1]))]
            if len({*columns}) < len(columns):
                raise ValueError(f"line {i}: columns must have different names, and not {columns}")
            rows = []
            for row in lines[i + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(columns, cells(row), strict=True)))
            found.append({"heading": heading, "rows": rows})
    return found


def cells(line: str) -> list[str]:
    """The cells of a row, without markup."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [re.sub(r"[`*]", "", cell).strip() for cell in inner.split("|")]


def content_of(page: Path) -> str:
    """What the JSON file of a page holds."""
    return json.dumps(tables_of(page.read_text()), indent=1, ensure_ascii=False) + "\n"


def pages() -> list[Path]:
    """All pages with results of their own."""
    return [page for page in sorted(PAGES.glob("*.md")) if page.stem != "index"]


if __name__ == "__main__":
    for page in pages():
        (RESULTS / f"{page.stem}.json").write_text(content_of(page))
