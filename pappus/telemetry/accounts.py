"""What became of every env step of a run: `received = trained + stored + dropped + lost + in flight`.

Each role keeps a row of counts in memory that outlives its process; a step is counted where it happens:

    received   an actor has made it; with central inference: it has reached the inference server
    trained    a learner of unrolls has learnt from it
    stored     a replay table has confirmed the item that holds it
    dropped    its role has put it aside: the end of the run, a skipped batch, a client that left
    lost       the process that held it died, or the replay service to which it was on its way

What a process that died held is what its row lacks. When all roles have stopped as they should, nothing is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pappus.types import Array

RECEIVED, TRAINED, STORED, DROPPED, LOST, CLOSED = range(6)
WORDS = 8
"""Numbers of a row, one cache line."""


class Account:
    """The row of one role. Its words are written in place, without a lock: a role has one thread."""

    __slots__ = ("words",)

    def __init__(self, words: Array | None = None) -> None:
        row: Any = np.zeros(WORDS, np.int64) if words is None else words
        self.words = memoryview(row)

    def held(self, handed_on: int = 0) -> int:
        """Steps that were received and are neither put anywhere nor handed to another role."""
        return self.words[RECEIVED] - sum(self.words[TRAINED:CLOSED]) - handed_on

    def take_over(self, handed_on: int) -> None:
        """Continue a predecessor's row: what it held is lost with it."""
        self.words[LOST] += self.held(handed_on)
        self.words[CLOSED] = 0

    def close(self) -> None:
        """The role has stopped as it should, and counted what it put aside."""
        self.words[CLOSED] = 1


@dataclass(frozen=True)
class Balance:
    """The account of a run, or of one part of it."""

    received: int
    trained: int
    stored: int
    dropped: int
    lost: int
    in_flight: int
    """Steps that nobody has counted: those in the queue of a learner that died. None where all roles have stopped."""
    balanced: bool

    def to_dict(self) -> dict[str, Any]:
        """The block `accounts` of summary.json."""
        return asdict(self)


class Ledger:
    """The rows of all roles of a run, over one block of memory. `places` says which row is whose, of some roles."""

    def __init__(self, places: Mapping[str, int], memory: Array) -> None:
        self._places, self.memory = places, memory
        self._rows = memory.view(np.int64).reshape(-1, WORDS)

    @staticmethod
    def footprint(roles: int) -> int:
        """Bytes of the rows."""
        return 8 * WORDS * roles

    def account(self, role: str) -> Account:
        return Account(self._rows[self._places[role]])

    def carry_over(self) -> None:
        """Begin a part of a run with what was in flight when the state was saved that it begins with: it is received
        again, and counts nothing else of the part before."""
        totals = self._rows.sum(0)
        self._rows[:] = 0
        self._rows[0, RECEIVED] = totals[RECEIVED] - totals[TRAINED:CLOSED].sum()

    def balance(self) -> Balance:
        """The account when all processes have ended. A role that has not closed died, with what it held."""
        received, trained, stored, dropped, lost = (int(total) for total in self._rows.sum(0)[:CLOSED])
        missing = received - trained - stored - dropped - lost
        died = self._rows[self._rows[:, CLOSED] == 0]
        taker_died = bool((died[:, TRAINED] > died[:, RECEIVED]).any())
        if missing > 0 and len(died) and not taker_died:
            lost, missing = lost + missing, 0
        balanced = missing == 0 or (missing > 0 and taker_died)
        return Balance(received, trained, stored, dropped, lost, missing, balanced)
