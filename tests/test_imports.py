"""`module:name`: what is found, and which sentence says that it is not."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from pappus.errors import UserError
from pappus.imports import imported, imported_callable


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (None, "mine:x", "thing 'mine:x': there is no module 'mine' here; run this in the folder"),
        ("y = 1", "mine:x", r"thing 'mine:x': module 'mine' \(.*mine.py\) has no 'x'"),
        ("import not_installed", "mine:x", "'mine' cannot be imported: No module named 'not_installed'"),
        ("from mine import later", "mine:x", "'mine' cannot be imported: cannot import name 'later'"),
        ("x = 1 / 0", "mine:x", r"cannot be imported: ZeroDivisionError: division by zero \(.*mine.py, line 1\)"),
        ("x = (", "mine:x", "'mine' cannot be imported: SyntaxError: '\\(' was never closed"),
        ("x = 1", "mine:", "must be module:name"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_its_reason(
    content: str | None, name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(UserError, match=sentence):
        imported(name, "thing ")


def test_a_name_that_is_no_function_is_refused_where_one_is_needed() -> None:
    assert imported("math:pi", "thing ") == pytest.approx(3.14159, abs=1e-5)
    with pytest.raises(UserError, match=r"thing 'math:pi' is 3.14.*; name a function or a class"):
        imported_callable("math:pi", "thing ")


def test_a_function_that_cannot_take_what_it_is_given_is_refused() -> None:
    assert imported_callable("math:pow", "thing ", takes=("x", "y")) is math.pow
    with pytest.raises(UserError, match=r"thing 'os:getcwd' must take \(env, config\): too many positional arguments"):
        imported_callable("os:getcwd", "thing ", takes=("env", "config"))
