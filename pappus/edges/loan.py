"""Objects that one role lends to another in the same process, and gets back after use."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pappus.core import Borrower, Lender
from pappus.edges.edge import Edge, Port, PortRef
from pappus.transports.memory import Block, Notifier


@dataclass(frozen=True)
class LoanEdge(Edge):
    """From one role to another of the same process, and back."""

    def lender(self) -> PortRef[Lender]:
        return PortRef(self.name, BufferLoan.lender)

    def borrower(self) -> PortRef[Borrower]:
        return PortRef(self.name, BufferLoan.borrower)

    def memory(self) -> tuple[int, int]:
        return 0, 2

    def open(self, block: Block) -> BufferLoan:
        return BufferLoan(self.name, block.notifiers)


class BufferLoan:
    """The objects that were lent and not used yet, and those that were returned."""

    def __init__(self, name: str, notifiers: Sequence[Notifier]) -> None:
        self.name, (self.was_given, self.was_returned) = name, notifiers
        self.given: deque[Any] = deque()
        self.returned: deque[Any] = deque()

    def lender(self) -> BufferLender:
        return BufferLender(self)

    def borrower(self) -> BufferBorrower:
        return BufferBorrower(self)


class BufferLender(Port):
    """Lends objects and gets them back."""

    def __init__(self, loan: BufferLoan) -> None:
        super().__init__(f"{loan.name} back", loan.was_returned)
        self._loan = loan

    def give(self, thing: Any) -> None:
        self._loan.given.append(thing)
        self._loan.was_given.notify()

    def returned(self) -> list[Any]:
        return [self._loan.returned.popleft() for _ in range(len(self._loan.returned))]

    def explain(self) -> str:
        return f"{len(self._loan.given)} are still in use"


class BufferBorrower(Port):
    """Takes objects and returns them."""

    def __init__(self, loan: BufferLoan) -> None:
        super().__init__(loan.name, loan.was_given)
        self._loan = loan

    def take(self) -> Any:
        return self._loan.given.popleft() if self._loan.given else None

    def give_back(self, thing: Any) -> None:
        self._loan.returned.append(thing)
        self._loan.was_returned.notify()

    def explain(self) -> str:
        return "nothing was given"
