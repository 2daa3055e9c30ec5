"""Eviction: which items are removed when all steps are in use, and the error when none may be.

A table *gives way* if its items may be removed before they were sampled: it then drops items as if it were full. A
table that has never held the `min_size` items that samples wait for would never open that way, and clients would wait
for ever. If only such tables could give way, there are too few steps, and the writer gets an error that says how many
it takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from pappus.errors import UserError
from pappus.replay.storage.chunks import Chunks
from pappus.replay.tables.live_table import LiveTable


def make_room(tables: Collection[LiveTable], chunks: Chunks, count: int, sampled: Collection[str]) -> None:
    """Evict items from the table with the most to spare, until `count` chunks are free or about to be.

    `sampled` are the tables that clients wait to sample from. Raises `UserError` if all would wait for ever.
    """
    while chunks.num_free + chunks.num_promised < count:
        closed = never_open(tables)
        if any(table.table.name in sampled for table in closed):
            raise UserError(f"a writer would wait for ever: {'; '.join(map(too_few_steps, closed))}")
        giving = [table for table in tables if table.size and table.gives_way]
        if not giving:
            return
        most = max(giving, key=lambda table: table.size - table.limiter.min_size)
        most.give_way(min(most.size, chunks.layout.chunk_length))


def never_open(tables: Collection[LiveTable]) -> list[LiveTable]:
    """All tables with items, if none of them ever had enough to be sampled: then sampling frees nothing."""
    filled = [table for table in tables if table.size]
    return [] if any(table.was_open for table in filled) else filled


def too_few_steps(table: LiveTable) -> str:
    """The error for too few steps: how many `min_size` items of the present size need."""
    rows, least = table.chunks.layout.rows, table.limiter.min_size
    each = table.steps_held / table.size
    needed = rows + math.ceil((least - table.size) * each)
    return (
        f"max_steps is too small for min_size={least} of table {table.table.name!r}: its {table.size} items take "
        f"{each:.1f} steps each, and there are {rows}; raise max_steps to {needed} or more, or make the table with "
        f"steps_per_item={math.ceil(each)}"
    )
