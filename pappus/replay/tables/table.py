"""The description of a table: which items it draws, which it removes, and how fast it may be used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from pappus.errors import UserError, closest
from pappus.imports import imported_callable
from pappus.replay.storage.chunks import refuse_unknown
from pappus.replay.tables import rate_limiters
from pappus.replay.tables.built_in_selectors import BUILT_IN
from pappus.replay.tables.limits import Limits
from pappus.replay.tables.rate_limiters import RateLimiter
from pappus.replay.tables.selectors import Selector, SelectorFactory
from pappus.types import ArraySpec

GROUP = "pappus.replay_selectors"
"""Entry points of this group are selectors by name."""


def find_selector(name: str) -> SelectorFactory:
    """The selector of a name: a built-in one, an installed entry point, or `module:name`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed and ":" not in name:
        names = [*BUILT_IN, *installed]
        near = closest(name, names)
        raise UserError(f"no selector is called {name!r}{near}; use {', '.join(names)}, or your own as module:name")
    factory: SelectorFactory = imported_callable(name, "selector ", installed.get(name), ("capacity", "alpha"))
    return factory


@dataclass(frozen=True)
class Selection:
    """A selector by name (`find_selector`). `alpha` is the exponent of priorities, for selectors that use them.

    The name is looked up only when a table is created: a description may come from another machine.
    """

    name: str
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise UserError(f"alpha={self.alpha} must be a number of at least 0; the papers use 0.6 to 0.9")

    def over(self, capacity: int) -> Selector:
        selector = find_selector(self.name)(capacity, self.alpha)
        members = (name for name in vars(Selector) if not name.startswith("_"))
        if missing := [name for name in members if not hasattr(selector, name)]:
            raise UserError(
                f"selector {self.name!r} has no {', '.join(missing)}; derive it from pappus.replay.RandomSelector, or "
                "write all members of pappus.replay.Selector"
            )
        return selector


IGNORES_PRIORITIES = ("uniform", "fifo", "lifo")
"""Selectors that do not look at priorities."""
UNIFORM, FIFO, LIFO = Selection("uniform"), Selection("fifo"), Selection("lifo")
MIN_HEAP, MAX_HEAP = Selection("min_heap"), Selection("max_heap")


def prioritized(alpha: float) -> Selection:
    """Draws in proportion to priority^α."""
    return Selection("prioritized", alpha)


@dataclass(frozen=True)
class Table:
    """A named set of items. Tables of one service may share their steps.

    `sampler` and `remover` are a `Selection`, or the name of a selector.
    """

    name: str
    sampler: Selection | str
    remover: Selection | str
    """Chooses the item that is removed when another is inserted into a full table."""
    rate_limiter: RateLimiter
    max_size: int
    signature: Mapping[str, ArraySpec]
    """The columns that its items may have."""
    max_times_sampled: int = 0
    """An item is removed after this many samples; 0: never."""
    lead: int = 0
    """Earlier steps of the episode that are kept with an item, for frame stacking: 3 for stacks of 4."""
    steps_per_item: float = 1.0
    """New steps per item: 40 for sequences that begin every 40 steps. It determines a service's default size."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Values that clients of other processes may insert, by column; columns that are not here may hold anything."""

    def __post_init__(self) -> None:
        for which in ("sampler", "remover"):
            object.__setattr__(self, which, _selection(getattr(self, which)))
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
        for column, limits in self.limits.items():
            refuse_unknown("column", column, self.signature)
            limits.check(column, self.signature[column])
        if self.rate_limiter.min_size > self.max_size:
            raise UserError(
                f"table {self.name!r} never opens: it holds max_size={self.max_size} items, and samples wait for "
                f"{self.rate_limiter.min_size}; lower min_size or raise max_size"
            )

    @property
    def uses_priorities(self) -> bool:
        """Whether priorities decide about anything; they are kept all the same."""
        return any(_selection(one).name not in IGNORES_PRIORITIES for one in (self.sampler, self.remover))

    @property
    def steps(self) -> int:
        """Steps that the items of a full table cover."""
        return math.ceil(self.max_size * self.steps_per_item)

    def selectors(self) -> tuple[Selector, Selector]:
        """A new sampler and a new remover."""
        return _selection(self.sampler).over(self.max_size), _selection(self.remover).over(self.max_size)

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data for files and messages; `table_from` reads it."""
        sampler, remover = _selection(self.sampler), _selection(self.remover)
        return {
            "name": self.name, "sampler": [sampler.name, sampler.alpha], "remover": [remover.name, remover.alpha],
            "rate_limiter": self.rate_limiter.to_list(),
            "max_size": self.max_size, "max_times_sampled": self.max_times_sampled, "lead": self.lead,
            "steps_per_item": self.steps_per_item,
            "signature": {name: [list(spec.shape), spec.dtype] for name, spec in self.signature.items()},
        }


def _selection(given: Selection | str) -> Selection:
    return Selection(given) if isinstance(given, str) else given


def table_from(words: Mapping[str, Any]) -> Table:
    signature = {name: ArraySpec(tuple(shape), dtype) for name, (shape, dtype) in words["signature"].items()}
    return Table(
        words["name"], Selection(*words["sampler"]), Selection(*words["remover"]),
        rate_limiters.limiter_from(words["rate_limiter"]), words["max_size"], signature, words["max_times_sampled"],
        words["lead"], words.get("steps_per_item", 1.0),  # older checkpoints do not say
    )


def shared_signature(tables: Sequence[Table]) -> dict[str, ArraySpec]:
    """The columns of all tables. A column must be the same in every table that has it."""
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
    """Every item once, oldest first; inserts wait while the table holds `max_size` items."""
    return Table(name, FIFO, FIFO, rate_limiters.queue(max_size), max_size, signature, 1, lead, steps_per_item)


def stack(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], lead: int = 0, steps_per_item: float = 1.0
) -> Table:
    """Every item once, newest first; inserts wait while the table holds `max_size` items."""
    return Table(name, LIFO, LIFO, rate_limiters.stack(max_size), max_size, signature, 1, lead, steps_per_item)


def uniform_replay(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], min_size: int = 1, lead: int = 0,
    steps_per_item: float = 1.0,
) -> Table:
    """Uniform draws without a limit; the oldest items are removed."""
    limiter = rate_limiters.min_size(min_size)
    return Table(name, UNIFORM, FIFO, limiter, max_size, signature, 0, lead, steps_per_item)


def prioritized_replay(
    name: str, max_size: int, signature: Mapping[str, ArraySpec], alpha: float = 0.6, min_size: int = 1, lead: int = 0,
    steps_per_item: float = 1.0,
) -> Table:
    """Draws in proportion to priority^α without a limit; the oldest items are removed."""
    limiter = rate_limiters.min_size(min_size)
    return Table(name, prioritized(alpha), FIFO, limiter, max_size, signature, 0, lead, steps_per_item)
