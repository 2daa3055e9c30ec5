"""CPU time of real processes, as the kernel counts it."""

import os
import resource
import subprocess
import sys

import pytest

from pappus.telemetry.process_tree import PacedMemory, ProcessTree, held_bytes, with_children

COMPUTE = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
NESTED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {COMPUTE!r}])\nprint('done', flush=True)\n"


def waited() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_children_and_theirs_count_while_they_live_and_when_they_have_ended():
    tree, before = ProcessTree(), waited()
    code = NESTED + "input()\n"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"done\n"
        alive = tree.cpu_seconds()
        assert alive >= 0.3 and with_children(process.pid) >= 0.3, "its child has ended, and counts"
        process.communicate(b"\n")
    of_child = waited() - before
    assert of_child == pytest.approx(tree.cpu_seconds(), abs=0.1) and tree.cpu_seconds() >= alive - 0.05


def test_a_process_alone_counts_nobody_else():
    tree = ProcessTree(alone=True)
    subprocess.run([sys.executable, "-c", COMPUTE], check=True)
    assert tree.cpu_seconds() < 0.2 and tree.memory() == pytest.approx(held_bytes(os.getpid()), rel=0.1)


class Pages:
    """Processes that hold a byte more in each reading, which takes a while."""

    def __init__(self, takes: float) -> None:
        self.now, self._takes, self._held = 0.0, takes, 0

    def memory(self) -> int:
        self.now += self._takes
        self._held += 1
        return self._held


@pytest.mark.parametrize(("takes", "pause"), [(0.001, 2.0), (0.01, 10.0)])
def test_memory_is_read_in_a_small_share_of_the_time(takes: float, pause: float):
    pages = Pages(takes)
    memory = PacedMemory(pages, lambda: pages.now)
    assert [memory.read(), memory.read()] == [1, 1]
    pages.now = pause - 0.1
    assert memory.read() == 1, "the last value stays in between"
    pages.now = pause + 0.1
    assert [memory.read(), memory.read(), memory.read(now_at_all=True)] == [2, 2, 3]


def test_a_process_that_is_gone_holds_and_computes_nothing():
    assert with_children(2**22 + 1) == 0.0 and held_bytes(2**22 + 1) == 0
