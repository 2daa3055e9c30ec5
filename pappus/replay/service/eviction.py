"""When all steps are taken: which items make room for new ones, and what to say when none may.

A table *gives way* if its items need not be sampled before they go: it drops some, as if it were full. One that never
yet held the `min_size` items that samples wait for would then never open, and whoever samples from it would wait for
ever. If nothing but such tables could make room, there are too few steps, and whoever writes is told how many it takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from pappus.errors import UserError
from pappus.replay.storage.chunks import Chunks
from pappus.replay.tables.live_table import LiveTable


def make_room(tables: Collection[LiveTable], chunks: Chunks, count: int, sampled: Collection[str]) -> None:
    """Remove items where most are to spare, until so many chunks are free, or will be in a moment.

    `sampled` are the tables for whose items somebody waits. `UserError` if nobody could ever go on.
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
    """All tables with items, if none of them ever had enough to be sampled: nothing that is sampled makes room then."""
    filled = [table for table in tables if table.size]
    return [] if any(table.was_open for table in filled) else filled


def too_few_steps(table: LiveTable) -> str:
    """How many steps would be enough for `min_size` items like those that are here."""
    rows, least = table.chunks.layout.rows, table.limiter.min_size
    each = table.steps_held / table.size
    needed = rows + math.ceil((least - table.size) * each)
    return (
        f"max_steps is too small for min_size={least} of table {table.table.name!r}: its {table.size} items take "
        f"{each:.1f} steps each, and there are {rows}; raise max_steps to {needed} or more, or make the table with "
        f"steps_per_item={math.ceil(each)}"
    )
