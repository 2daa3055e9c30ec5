"""Files that anybody may have written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pappus.page import reading
from pappus.page.document import Now
from pappus.page.tail import BLOCK, LONGEST, Tail
from tests.page.fake import fake_run

ODD: list[bytes] = [
    b"", b"{", b"null", b"[]", b"NaN", b'"text"', b"\xff\xfe\x00", b"[" * 100_000, b"1" * 10_000, b"{}", b'{"now": 3}',
]


@pytest.mark.parametrize("content", ODD)
def test_odd_files_of_json_are_none_or_an_empty_mapping(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert reading.mapping_of(tmp_path / "file") in (None, {}, {"now": 3})
    assert reading.shaped(reading.json_of(tmp_path / "file"), Now) is None


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing", ".", "a\0b"):
        assert reading.content(tmp_path / name) is None and reading.stamp(tmp_path / name) is None
    assert reading.content(tmp_path / "secret") == b"{}"
    assert reading.content(tmp_path / "secret", most=1) is None, "a file that is too large is none"


def test_a_document_keeps_its_shape_and_loses_what_does_not_belong_there() -> None:
    now: dict[str, Any] = json.loads(json.dumps(fake_run()["now"]))
    assert reading.shaped(now, Now) == now
    now |= {"episodic_return": float("nan"), "more": "text"}
    found = reading.shaped(now, Now)
    assert found is not None and found["episodic_return"] is None and "more" not in found
    for name, value in (("roles", []), ("time", "x"), ("step", 1.5), ("verdict", None), ("progress", float("inf"))):
        assert reading.shaped(now | {name: value}, Now) is None, name


def test_plain_bounds_values_levels_and_texts() -> None:
    nested: Any = 1
    for _ in range(100):
        nested = {"in": nested}
    shown = json.dumps(reading.plain({"deep": nested, "long": "x" * 10**6, "nan": float("nan"), 3: {1, 2}}))
    assert len(shown) < 2 * reading.LONGEST and '"nan": null' in shown
    assert len(reading.plain(list(range(10**6)))) <= reading.MOST_VALUES
    assert reading.plain(10**400) is None


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path, tail = tmp_path / "lines", Tail(tmp_path / "lines", 1 << 20)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\ntwo\nthr")
    assert list(tail.lines()) == [b"one", b"two"]
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert list(tail.lines()) == [b"three"] and list(tail.lines()) == []
    path.write_bytes(b"new\n")
    assert list(tail.lines()) == [b"new"] and tail.again == 1


def test_of_a_huge_file_lines_from_all_of_it_are_seen(tmp_path: Path) -> None:
    path, size = tmp_path / "lines", 100
    count = 20 * BLOCK // size
    path.write_bytes(b"".join(b"%099d\n" % i for i in range(count)))
    found = [int(line) for line in Tail(path, 4 * BLOCK).lines()]
    assert found == sorted(found) and found[0] == 0 and found[-1] == count - 1
    assert 3 * BLOCK // size < len(found) < 7 * BLOCK // size


def test_a_line_that_never_ends_is_left_out(tmp_path: Path) -> None:
    path, tail = tmp_path / "lines", Tail(tmp_path / "lines", 1 << 30)
    path.write_bytes(b"x" * (2 * LONGEST) + b"\nnext\n")
    assert b"next" in list(tail.lines())
    path.write_bytes(b"x" * (3 * LONGEST))
    assert list(tail.lines()) == []
