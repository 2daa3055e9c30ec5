"""Whether items that somebody wants to insert lie where they may."""

from __future__ import annotations

import numpy as np

from pappus.errors import UserError
from pappus.replay.chunks import Chunks
from pappus.replay.items import Windows
from pappus.replay.tables import Table
from pappus.replay.waiting import Session


def check_windows(chunks: Chunks, session: Session, table: Table, windows: Windows) -> None:
    """Raise `UserError` unless every window lies in chunks of the session's, and its slices in the window."""
    if not windows.num_items:
        return
    own = windows.span - windows.lead
    ends = (windows.start + windows.length).max(axis=1)
    if not (
        (windows.base >= 0).all() and (windows.base < chunks.layout.rows).all() and (windows.lead >= 0).all()
        and (windows.lead <= table.lead).all() and (windows.start >= 0).all() and (windows.length >= 0).all()
        and (ends <= own).all() and (own >= 1).all() and (windows.span <= chunks.layout.rows).all()
    ):
        raise UserError(f"an item for table {table.name!r} lies outside the steps that {session.name} wrote")
    foreign = [name for name in chunks.layout.signature if name not in table.signature]
    columns = list(chunks.layout.signature)
    for name in foreign:
        if windows.length[:, columns.index(name)].any():
            raise UserError(f"column {name!r} is not in the signature of table {table.name!r}; leave it out")
    for chunk in np.unique(chunks.spanned(windows.base, windows.span)).tolist():
        if chunk not in session.chunks:
            raise UserError(
                f"an item for table {table.name!r} needs steps that {session.name} holds no more; give the writer "
                "a longer history"
            )
