"""Several fields of the same items, under names: the shape of a sampled batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pappus.errors import UserError
from pappus.replay.choosing import Rows, Values
from pappus.replay.evaluating import Context, Source
from pappus.replay.fields import Field, col
from pappus.replay.items import Windows
from pappus.replay.recycling import Recycler


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
        try:
            found = {name: field.rows(context) for name, field in self.fields.items()}
            values = {name: context.fetch_later(one) if isinstance(one, Rows) else one for name, one in found.items()}
        finally:
            context.complete()  # large ones are copied all at once
        for name, one in found.items():
            if isinstance(one, Rows):
                values[name].clear()
        return values


def whole(columns: Mapping[str, Any]) -> Trajectory:
    """Every column as it is."""
    return Trajectory(**{name: col(name) for name in columns})
