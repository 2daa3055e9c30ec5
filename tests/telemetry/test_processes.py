from __future__ import annotations

import os
import sys
from pathlib import Path

from pappus.telemetry.processes import cpu_seconds, resident_bytes, set_title, usable_cores


def test_this_process_holds_memory():
    held = resident_bytes(os.getpid())
    assert held is not None and 2**20 < held < 2**40


def test_memory_of_a_process_that_does_not_exist_is_unknown():
    assert resident_bytes(2**22 + 1) is None


def test_this_process_has_computed_and_one_that_does_not_exist_is_unknown():
    computed = cpu_seconds(os.getpid())
    assert computed is not None and 0 < computed < 1e6
    assert cpu_seconds(2**22 + 1) is None


def test_the_title_names_the_role(monkeypatch):
    titles = []
    monkeypatch.setitem(sys.modules, "setproctitle", type("Module", (), {"setproctitle": titles.append}))
    set_title("actor-2")
    assert titles == ["pappus actor-2"]


def test_a_missing_setproctitle_is_no_error(monkeypatch):
    before = Path("/proc/self/cmdline").read_bytes()
    monkeypatch.setitem(sys.modules, "setproctitle", None)
    set_title("actor-2")
    assert Path("/proc/self/cmdline").read_bytes() == before


def test_at_least_one_core_is_usable():
    assert usable_cores() >= 1
