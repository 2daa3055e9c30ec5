"""In a notebook the view is HTML, in one cell that is repainted; a double stands for IPython."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers import FakeTime
from test_console import SUMMARY, _running, _terminal

from pappus.telemetry.console import Console


class Notebook:
    """What IPython shows, as far as the view uses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: object) -> None:
        self.shown: list[Any] = []
        ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
        vars(ipython).update(get_ipython=lambda: SimpleNamespace(kernel=kernel), display=display)
        vars(display).update(display=self.display)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, *objs: Any, display_id: bool | str | None = None) -> Notebook:
        assert display_id is True
        return self.update(*objs)

    def update(self, obj: Any) -> Notebook:
        self.shown.append(obj._repr_html_())
        return self


def test_a_notebook_shows_the_view_as_html_and_ends_with_the_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, output = Notebook(monkeypatch, kernel=object()), _terminal()
    console = Console(_running(FakeTime()), "runs/demo", output)
    console.update()
    console.event("something <b>bold</b>")
    assert "policy lag" in notebook.shown[1] and "<span style=" in notebook.shown[1]
    assert all(html.startswith("<pre") for html in notebook.shown) and "\x1b" not in "".join(notebook.shown)
    console.close(SUMMARY)
    assert "Solved after 1,000 steps" in notebook.shown[-1] and "policy lag" not in notebook.shown[-1]
    assert output.file.getvalue() == "", "nothing else is printed"  # type: ignore[attr-defined]


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, output = Notebook(monkeypatch, kernel=None), _terminal()
    Console(_running(FakeTime()), "runs/demo", output).update()
    assert not notebook.shown and "policy lag" in output.file.getvalue()  # type: ignore[attr-defined]
