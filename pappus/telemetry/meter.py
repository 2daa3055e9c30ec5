"""How many bytes go through an edge. Its ends add to a meter, and a role reports the difference."""

from __future__ import annotations


class Meter:
    """Bytes that passed through the ends of an edge in one process.

    Counted once for every receiver: what would cross a network if every role were on a machine of its own. An unroll, a
    gradient, a request with its reply, the rows of a step and a replay batch are counted when they are sent, weights
    when they are read.
    """

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0
