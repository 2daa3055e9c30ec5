"""Several fields of the same items, under names: the shape of a sampled batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pappus.errors import UserError
from pappus.replay.field_evaluation import Context, Source
from pappus.replay.fields import Field, col
from pappus.replay.items import Windows
from pappus.replay.recycling import Recycler
from pappus.replay.step_selection import Rows, Values


class Trajectory:
    """Named fields: what `sample` returns as arrays under the same names."""

    def __init__(self, **fields: Field) -> None:
        if not fields:
            raise UserError("a trajectory without fields shows nothing; give such as obs=col('obs')")
        self.fields: Mapping[str, Field] = fields
        self.columns = frozenset[str]().union(*(field.columns for field in fields.values()))
        self.lead = max(field.lead for field in fields.values())
        self._recycler = Recycler()

    def evaluate(self, windows: Windows, source: Source, lead: int) -> dict[str, Values]:
        """All fields of a batch of items, of a table that keeps so many leading steps with each."""
        context = Context(windows, source, lead, self._recycler)
        values, copied = {}, []
        try:
            for name, field in self.fields.items():
                found = field.rows(context)
                if isinstance(found, Rows):
                    found = context.fetch_later(found)
                    copied.append(found)
                values[name] = found
        finally:
            context.complete()  # large ones are copied while the others are worked out
        for one in copied:
            one.clear()
        return values


def whole(columns: Mapping[str, Any]) -> Trajectory:
    """Every column as it is."""
    return Trajectory(**{name: col(name) for name in columns})
