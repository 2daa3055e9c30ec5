"""What a table is, before it holds anything: which items it draws, which it drops, and how fast it may be used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from pappus.errors import UserError, closest
from pappus.replay.tables import rate_limiters
from pappus.replay.tables.prioritized import Prioritized
from pappus.replay.tables.rate_limiters import RateLimiter
from pappus.replay.tables.selectors import Heap, InOrder, Selector, Uniform
from pappus.types import ArraySpec

Order: TypeAlias = Literal["uniform", "prioritized", "fifo", "lifo", "min_heap", "max_heap"]


@dataclass(frozen=True)
class Selection:
    """A rule by name; `alpha` is the exponent of `prioritized`."""

    order: Order
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            near = closest(self.order, list(get_args(Order)))
            raise UserError(f"no selector is called {self.order!r}{near}; use one of {', '.join(get_args(Order))}")
        if not 0 <= self.alpha < float("inf"):
            raise UserError(f"alpha={self.alpha} must be a number of at least 0; the papers use 0.6 to 0.9")

    def over(self, capacity: int) -> Selector:
        """The rule, ready for so many places."""
        match self.order:
            case "uniform":
                return Uniform(capacity)
            case "prioritized":
                return Prioritized(capacity, self.alpha)
            case "fifo" | "lifo":
                return InOrder(capacity, newest=self.order == "lifo")
            case "min_heap" | "max_heap":
                return Heap(highest=self.order == "max_heap")


UNIFORM, FIFO, LIFO = Selection("uniform"), Selection("fifo"), Selection("lifo")

MIN_HEAP, MAX_HEAP = Selection("min_heap"), Selection("max_heap")


def prioritized(alpha: float) -> Selection:
    """In proportion to priority^α."""
    return Selection("prioritized", alpha)


@dataclass(frozen=True)
class Table:
    """A named set of items over steps that may be shared with other tables."""

    name: str
    sampler: Selection
    remover: Selection
    """Who goes when an item comes and the table is full."""
    rate_limiter: RateLimiter
    max_size: int
    signature: Mapping[str, ArraySpec]
    """The columns that its items may have."""
    max_times_sampled: int = 0
    """An item goes when it was sampled so often; 0 keeps it."""
    lead: int = 0
    """Earlier steps of the episode that stay with an item, for whoever stacks frames: 3 for stacks of 4."""
    steps_per_item: float = 1.0
    """New steps that an item needs: 40 for sequences that begin every 40 steps. A service has room for as many."""

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("a table needs a name")
        if self.max_size < 1 or self.max_times_sampled < 0 or self.lead < 0:
            raise UserError(
                f"table {self.name!r}: max_size={self.max_size} must be at least 1, max_times_sampled="
                f"{self.max_times_sampled} and lead={self.lead} at least 0"
            )
        if not 0 < self.steps_per_item < math.inf:
            raise UserError(
                f"table {self.name!r}: steps_per_item={self.steps_per_item} must be a positive number; give the steps "
                "from the beginning of one item to that of the next"
            )
        if self.rate_limiter.min_size > self.max_size:
            raise UserError(
                f"table {self.name!r} never opens: it holds max_size={self.max_size} items, and samples wait for "
                f"{self.rate_limiter.min_size}; lower min_size or raise max_size"
            )

    @property
    def steps(self) -> int:
        """Steps that its items cover when it is full."""
        return math.ceil(self.max_size * self.steps_per_item)

    def fresh_limiter(self) -> RateLimiter:
        """Its limiter, with nothing counted."""
        return replace(self.rate_limiter, inserts=0, samples=0, deletes=0)

    def to_dict(self) -> dict[str, Any]:
        """In words and numbers, for files and wires; `table_from` reads it."""
        return {
            "name": self.name, "sampler": [self.sampler.order, self.sampler.alpha],
            "remover": [self.remover.order, self.remover.alpha],
            "rate_limiter": self.rate_limiter.to_list(),
            "max_size": self.max_size, "max_times_sampled": self.max_times_sampled, "lead": self.lead,
            "steps_per_item": self.steps_per_item,
            "signature": {name: [list(spec.shape), spec.dtype] for name, spec in self.signature.items()},
        }


def table_from(words: Mapping[str, Any]) -> Table:
    """What `Table.to_dict` wrote."""
    signature = {name: ArraySpec(tuple(shape), dtype) for name, (shape, dtype) in words["signature"].items()}
    return Table(
        words["name"], Selection(*words["sampler"]), Selection(*words["remover"]),
        rate_limiters.limiter_from(words["rate_limiter"]), words["max_size"], signature, words["max_times_sampled"],
        words["lead"], words.get("steps_per_item", 1.0),  # older checkpoints do not say
    )


def shared_signature(tables: Sequence[Table]) -> dict[str, ArraySpec]:
    """All columns of all tables; one name means one thing."""
    columns: dict[str, ArraySpec] = {}
    for table in tables:
        for name, spec in table.signature.items():
            if columns.setdefault(name, spec) != spec:
                raise UserError(
                    f"column {name!r} is {columns[name].dtype}{list(columns[name].shape)} in one table and "
                    f"{spec.dtype}{list(spec.shape)} in {table.name!r}; tables of one service share their steps"
                )
    return columns


def queue(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], lead: int = 0, steps_per_item: float = 1.0
) -> Table:
    """Every item once, the oldest first; whoever inserts waits while `max_size` items are there."""
    return Table(name, FIFO, FIFO, rate_limiters.queue(max_size), max_size, signature, 1, lead, steps_per_item)


def stack(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], lead: int = 0, steps_per_item: float = 1.0
) -> Table:
    """Every item once, the newest first; whoever inserts waits while `max_size` items are there."""
    return Table(name, LIFO, LIFO, rate_limiters.stack(max_size), max_size, signature, 1, lead, steps_per_item)


def uniform_replay(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], min_size: int = 1, lead: int = 0,
    steps_per_item: float = 1.0,
) -> Table:
    """Items drawn evenly, as often as one likes; the oldest go."""
    limiter = rate_limiters.min_size(min_size)
    return Table(name, UNIFORM, FIFO, limiter, max_size, signature, 0, lead, steps_per_item)


def prioritized_replay(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], alpha: float = 0.6, min_size: int = 1, lead: int = 0,
    steps_per_item: float = 1.0,
) -> Table:
    """Items drawn in proportion to priority^α, as often as one likes; the oldest go."""
    limiter = rate_limiters.min_size(min_size)
    return Table(name, prioritized(alpha), FIFO, limiter, max_size, signature, 0, lead, steps_per_item)
