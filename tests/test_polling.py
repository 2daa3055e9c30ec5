"""Waits work with more open descriptors than `select` can count."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

from pappus.config import SupervisionConfig
from pappus.polling import FD_SETSIZE, MANY_DESCRIPTORS, allow_many_descriptors, readable
from pappus.roles.role import WaitAny
from pappus.runtimes.local import LocalRuntime
from pappus.runtimes.waiting import Waiter
from pappus.transports.memory import EventNotifier
from tests.contracts.runtime_contract import ITEMS, FakeController, program


@pytest.fixture
def many_open() -> Iterator[None]:
    """All descriptors below 1,024 are taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_many_descriptors()
    first = os.open(os.devnull, os.O_RDONLY)
    taken = [first]
    while taken[-1] < FD_SETSIZE:
        taken.append(os.dup(first))
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Port:
    name = "port"

    def __init__(self) -> None:
        self.notifier = EventNotifier(*EventNotifier.descriptors())
        self.fileno, self.clear = self.notifier.fileno, self.notifier.clear

    def explain(self) -> str:
        return ""


@pytest.mark.usefixtures("many_open")
def test_descriptors_above_1023_are_waited_for() -> None:
    port, silent = Port(), Port()
    assert port.fileno() >= FD_SETSIZE and readable([port.fileno()], 0.0) == []
    port.notifier.notify()
    assert readable([silent.fileno(), port.fileno()], 60.0) == [port.fileno()]
    assert Waiter(0.0).wait(silent, port.fileno(), 60.0), "a role hears its commands"
    assert WaitAny(silent, Port()).sleep(port.fileno(), 60.0), "and so does one that waits for two ports"


@pytest.mark.usefixtures("many_open")
def test_a_local_run_works_with_more_than_1024_descriptors() -> None:
    controller = FakeController()
    LocalRuntime(program(2), cast(Any, controller), SupervisionConfig()).run(None)
    assert sum(count for name, count in controller.counts.items() if name.startswith("from")) >= ITEMS


def test_the_limit_on_descriptors_is_raised_as_far_as_it_may_be() -> None:
    script = (
        "import resource as r; from pappus.polling import allow_many_descriptors as allow; "
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); allow(); "
        f"soft = r.getrlimit(r.RLIMIT_NOFILE)[0]; assert soft in (hard, {MANY_DESCRIPTORS}), soft"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
