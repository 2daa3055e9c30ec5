"""The live view of a run in a notebook: the picture of the terminal as HTML, repainted in place."""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console as RichConsole

from pappus.telemetry.live_view import picture
from pappus.telemetry.role_stats import Event
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.wording import printable

WIDTH, HEIGHT = 110, 40
"""Characters of the picture."""
BLOCK = "<pre style='line-height: 1.2; white-space: pre; overflow-x: auto'>{}</pre>"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML. IPython in a terminal is none."""
    known = sys.modules.get("IPython")
    shell = known.get_ipython() if known is not None and hasattr(known, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class NotebookView:
    """Repaints one output cell; at the end it holds the final lines."""

    def __init__(self, run_stats: RunStats, run: str) -> None:
        from IPython.display import display

        self._run_stats, self._run = run_stats, run
        self._handle: Any = display(_Page("starting"), display_id=True)

    def update(self) -> None:
        output = RichConsole(file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, force_jupyter=False)
        output.print(picture(self._run_stats, self._run, WIDTH, HEIGHT))
        self._handle.update(_Page(output.export_html(inline_styles=True, code_format="{code}"), plain=False))

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """`RunStats` has it already."""

    def event(self, event: Event | str) -> None:
        """The same."""
        self.update()

    def close(self, lines: Sequence[str], summary: Summary | None, error: str) -> None:
        """The final lines in place of the picture."""
        self._handle.update(_Page("\n".join(printable(line) for line in lines)))


class _Page:
    """What IPython asks for its HTML, and for its text where none is shown."""

    def __init__(self, text: str, plain: bool = True) -> None:
        self._text, self._html = text if plain else "", BLOCK.format(html.escape(text) if plain else text)

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text or "the view of a run"
