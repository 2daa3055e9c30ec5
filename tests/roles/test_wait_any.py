from __future__ import annotations

import select

import pytest

from pappus.roles.role import WaitAny
from pappus.transports.memory import EventNotifier

NEVER = 600.0
"""Seconds; a test that waited so long would have failed before."""


class Port:
    def __init__(self, name: str) -> None:
        self.name, self.notifier = name, EventNotifier(*EventNotifier.descriptors())
        self.fileno, self.clear = self.notifier.fileno, self.notifier.clear

    def explain(self) -> str:
        return f"{self.name} is silent"


class Away(Port):
    """Such as a line to a service that is gone."""

    def __init__(self) -> None:
        super().__init__("away")
        self.fileno = lambda: -1


@pytest.mark.timeout(30)
@pytest.mark.parametrize("rings", [0, 1])
def test_either_of_two_ports_ends_the_wait_and_its_signal_is_taken_back(rings: int) -> None:
    ports, commands = [Port("first"), Port("second")], Port("commands")
    ports[rings].notifier.notify()
    assert not WaitAny(*ports).sleep(commands.fileno(), NEVER)
    assert select.select([port.fileno() for port in ports], [], [], 0)[0] == []


@pytest.mark.timeout(30)
def test_a_command_ends_the_wait_for_two_ports_and_is_left_to_be_read() -> None:
    commands = Port("commands")
    commands.notifier.notify()
    assert WaitAny(Port("first"), Port("second")).sleep(commands.fileno(), NEVER)
    assert select.select([commands.fileno()], [], [], 0)[0] == [commands.fileno()]


@pytest.mark.timeout(30)
def test_a_port_without_a_descriptor_does_not_keep_the_other_from_ending_the_wait() -> None:
    port, commands = Port("port"), Port("commands")
    port.notifier.notify()
    assert not WaitAny(Away(), port).sleep(commands.fileno(), NEVER)


def test_waiting_for_two_ports_is_booked_under_the_first_and_explained_by_both() -> None:
    either = WaitAny(Port("first"), Port("second"))
    assert either.name == "first" and either.explain() == "first is silent; and second: second is silent"
