from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pappus import accelerator
from pappus.accelerator import MOST_CAPTURES, WARMUP_CALLS, Accelerator, CapturedGraph


class FakeGraph:
    """Counts its replays."""

    replays = 0

    def replay(self) -> None:
        FakeGraph.replays += 1


def fake_cuda(failures: int) -> Any:
    """Graphs of which the first captures fail."""
    left = [failures]

    @contextmanager
    def graph(*_: Any, **__: Any) -> Any:
        yield
        if left[0]:
            left[0] -= 1
            raise RuntimeError("operation failed due to a previous error during capture\nmore")

    stream = SimpleNamespace(synchronize=lambda: None)
    return SimpleNamespace(current_stream=lambda _: stream, CUDAGraph=FakeGraph, graph=graph)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`calls(failures, count)`: how often the function ran and the graph was replayed, and what was told."""

    def run(failures: int, count: int) -> tuple[int, int, list[str]]:
        monkeypatch.setattr(accelerator.torch, "cuda", fake_cuda(failures))
        monkeypatch.setattr(FakeGraph, "replays", 0)
        device, ran, told = Accelerator("cpu"), [], list[str]()
        device.real = True
        captured = CapturedGraph(device, lambda: ran.append(1), told.append)
        for _ in range(count):
            captured()
        return len(ran), FakeGraph.replays, told

    return run


def test_a_graph_is_captured_after_the_warm_up_and_replayed_from_then_on(calls: Any) -> None:
    assert calls(0, 10) == (WARMUP_CALLS + 1, 10 - WARMUP_CALLS, [])


def test_a_capture_that_another_thread_disturbed_is_tried_again_after_further_calls(calls: Any) -> None:
    ran, replays, told = calls(1, 20)
    assert replays > 10 and not told
    assert ran + replays == 20 + 2, "every call did the work once; two attempts at a capture ran it once more"


def test_after_the_last_attempt_it_is_called_as_usual_and_says_why_once(calls: Any) -> None:
    ran, replays, told = calls(MOST_CAPTURES, 40)
    assert replays == 0 and ran == 40 + MOST_CAPTURES
    assert len(told) == 1 and told[0].endswith("as usual: operation failed due to a previous error during capture")
