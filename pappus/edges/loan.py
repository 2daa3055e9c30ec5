"""Objects that one role lends to another of the same process, and gets back when they were used."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pappus.core import Borrower, Lender
from pappus.edges.edge import Edge, Port, PortRef
from pappus.transports.memory import Block, Notifier

if TYPE_CHECKING:
    from pappus.recording.shared import ServiceDirectory


@dataclass(frozen=True)
class LoanEdge(Edge):
    """From one role to another of the same process, and back."""

    def lender(self) -> PortRef[Lender]:
        """For the role that owns the objects."""
        return PortRef(self.name, BufferLoan.lender)

    def borrower(self) -> PortRef[Borrower]:
        """For the role that uses them."""
        return PortRef(self.name, BufferLoan.borrower)

    def memory(self) -> tuple[int, int]:
        return 0, 2

    def open(self, block: Block, services: ServiceDirectory | None = None) -> BufferLoan:
        return BufferLoan(self.name, block.notifiers)


class BufferLoan:
    """The objects that were lent and not used yet, and those that were returned."""

    def __init__(self, name: str, notifiers: Sequence[Notifier]) -> None:
        self._name, (self._given, self._returned) = name, notifiers
        self.given: deque[Any] = deque()
        self.returned: deque[Any] = deque()

    def lender(self) -> BufferLender:
        """The owner's end."""
        return BufferLender(self._name, self, self._given, self._returned)

    def borrower(self) -> BufferBorrower:
        """The user's end."""
        return BufferBorrower(self._name, self, self._given, self._returned)


class BufferLender(Port):
    """Lends objects and gets them back."""

    def __init__(self, name: str, loan: BufferLoan, given: Notifier, returned: Notifier) -> None:
        super().__init__(f"{name} back", returned)
        self._loan, self._given = loan, given

    def give(self, thing: Any) -> None:
        self._loan.given.append(thing)
        self._given.notify()

    def returned(self) -> list[Any]:
        """What came back since the last call."""
        return [self._loan.returned.popleft() for _ in range(len(self._loan.returned))]

    def explain(self) -> str:
        return f"{len(self._loan.given)} are still to be used"


class BufferBorrower(Port):
    """Takes objects and returns them."""

    def __init__(self, name: str, loan: BufferLoan, given: Notifier, returned: Notifier) -> None:
        super().__init__(name, given)
        self._loan, self._returned = loan, returned

    def take(self) -> Any:
        """The oldest object, or None."""
        return self._loan.given.popleft() if self._loan.given else None

    def give_back(self, thing: Any) -> None:
        self._loan.returned.append(thing)
        self._returned.notify()

    def explain(self) -> str:
        return "nothing was given"
