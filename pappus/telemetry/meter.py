"""How much goes through an edge. Whoever holds an end adds to it; the role that watches it reports the difference."""

from __future__ import annotations


class Meter:
    """Bytes that the ends of an edge which one process holds have handed over.

    Counted once for every receiver: what would cross a network if every role stood on a machine of its own. An unroll,
    a gradient, a request with its reply, the rows of a step and a batch out of replay are counted when they are handed
    over, weights whenever somebody reads them.
    """

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0
