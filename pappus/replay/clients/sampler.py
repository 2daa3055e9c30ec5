"""Samples batches through a session; a thread per session can fetch them ahead."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from pappus.errors import UserError
from pappus.replay.clients.session import Held, Session
from pappus.replay.sampling.fields import Batch, Trajectory, whole
from pappus.replay.service.service import Deadline
from pappus.replay.storage.chunks import refuse_unknown

CLOSE_SECONDS = 0.2
"""Interval at which a waiting call checks whether the sampler was closed."""
PATIENCE_SECONDS = 10.0
"""A longer wait is explained in the log."""

log = logging.getLogger("pappus.replay")


def sample_through(
    session: Session, table: str, count: int, trajectory: Trajectory | None, deadline: Deadline | None = None
) -> Batch:
    refuse_unknown("table", table, session.tables)
    fields = trajectory or whole(session.tables[table].signature)
    for name in fields.columns:
        refuse_unknown("column", name, session.layout.signature)
    if fields.lead > session.tables[table].lead:
        raise UserError(
            f"a stack looks {fields.lead} steps back, and table {table!r} keeps lead={session.tables[table].lead} with "
            f"its items; make the table with lead={fields.lead}"
        )
    held = _wait_for_items(session, table, count, fields, deadline or Deadline(None))
    try:
        return fields.evaluate(held.drawn, held.source, session.tables[table].lead)
    finally:
        session.done(held)


def _wait_for_items(session: Session, table: str, count: int, fields: Trajectory, deadline: Deadline) -> Held:
    while True:
        left = math.inf if deadline.left is None else deadline.left
        last = left <= PATIENCE_SECONDS
        held = session.sample(table, count, fields.columns, fields.lead, min(left, PATIENCE_SECONDS), last)
        if held is not None:
            return held
        if last:
            raise TimeoutError(f"nothing could be sampled in {deadline.seconds:g} s; {session.explain(table)}")
        log.warning("sampling has waited for %.0f s; %s", deadline.waited, session.explain(table))


class Sampler:
    """An endless iterator over batches that are fetched ahead. `close` it, or use it in a `with`."""

    def __init__(
        self, fetch: Sequence[Callable[[], Batch]], close: Sequence[Callable[[], None]], together: int = 1
    ) -> None:
        """Each call of `fetch` returns `together` batches as one."""
        if not fetch:
            raise UserError("prefetch=0 must be at least 1")
        self._together = together
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None
        self._close = close
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in fetch]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while not self._closed.is_set():
            if self._error is not None:
                raise self._error
            try:
                return self._ready.get(timeout=CLOSE_SECONDS)
            except queue.Empty:
                continue
        raise StopIteration

    def close(self) -> None:
        """Stop fetching. Batches that were fetched and not taken are lost."""
        self._closed.set()
        for close in self._close:
            close()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, fetch: Callable[[], Batch]) -> None:
        """The body of a thread: an error ends it, and is raised where the next batch is requested."""
        try:
            while not self._closed.is_set():
                for batch in fetch().parted(self._together):
                    self._offer(batch)
        except BaseException as error:
            self._error = error

    def _offer(self, batch: Batch) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(batch, timeout=CLOSE_SECONDS)
                return
            except queue.Full:
                continue
