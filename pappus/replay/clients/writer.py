"""Writes the stream of one env, or of many in parallel, and creates items over its steps.

    with client.writer() as writer:
        for step in episode:
            writer.append({"obs": obs, "action": action, "reward": reward})
            if len(writer.history) >= 4:
                writer.create_item("replay", priority=1.0, trajectory={"obs": writer.history["obs"][-4:]})
        writer.end_episode()

With `envs=N` every value has a leading dimension of N, and so have priorities. Steps are written to their final place;
an item is a few numbers that refer to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pappus.errors import UserError
from pappus.replay.clients.session import Session
from pappus.replay.storage.chunks import Windows, refuse_unknown
from pappus.types import Array


class Slice(NamedTuple):
    """Steps of a column, numbered from the creation of the writer on."""

    column: str
    start: int
    stop: int


class ColumnHistory:
    """One column of the history, indexed like a list whose last entry is the newest step."""

    def __init__(self, column: str, begin: int, end: int) -> None:
        self._column, self._begin, self._end = column, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, key: int | slice) -> Slice:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1 or stop <= start:
                raise UserError(f"{self._column}[{key.start}:{key.stop}] of {len(self)} steps holds none; widen it")
            return Slice(self._column, self._begin + start, self._begin + stop)
        if not -len(self) <= key < len(self):
            raise UserError(f"{self._column}[{key}] is not among the {len(self)} steps of this episode's history")
        start = self._begin + key % len(self)
        return Slice(self._column, start, start + 1)


class History:
    """The steps that items can refer to: those of this episode, or with several envs all that are kept."""

    def __init__(self, columns: tuple[str, ...], begin: int, end: int) -> None:
        self._columns, self._begin, self._end = columns, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, column: str) -> ColumnHistory:
        refuse_unknown("column", column, self._columns)
        return ColumnHistory(column, self._begin, self._end)


class TrajectoryWriter:
    """Writes the steps of `envs` parallel streams, and creates items over the last `history` of them.

    Items are inserted at once, or `max_pending` together. Memory is bounded: a writer holds `history` steps and one or
    two chunks per env, and waits when no chunks are free.
    """

    def __init__(self, session: Session, envs: int | None, history: int, max_pending: int) -> None:
        if (envs is not None and envs < 1) or history < 1 or max_pending < 1:
            raise UserError(f"envs={envs}, history={history} and max_pending={max_pending} must be at least 1")
        self._session = session
        self._envs, self._single = envs or 1, envs is None
        self._names = tuple(session.layout.signature)
        self._columns = session.columns
        self._length = session.layout.chunk_length
        self._history = history
        self._keep = history + max(table.lead for table in session.tables.values())
        self._blocks: deque[Array] = deque()
        """The chunks of all envs `[N]`, one array for every `chunk_length` kept steps."""
        self._oldest = 0
        """The oldest kept step."""
        self.steps = 0
        """Steps of each env so far."""
        self._published = 0
        self._episode = np.zeros(self._envs, np.int64)
        """The first step of each env's episode."""
        self._absent: dict[str, list[int]] = {name: [] for name in self._names}
        self._pending: dict[str, list[tuple[Array, Windows]]] = {}
        self._num_pending, self._max_pending = 0, max_pending
        self._all = np.arange(self._envs)
        self._open = True

    @property
    def history(self) -> History:
        """The steps that items can refer to."""
        begin = max(self._oldest, self.steps - self._history)
        if self._single:
            begin = max(begin, int(self._episode[0]))
        return History(self._names, begin, self.steps)

    def append(self, step: Mapping[str, Any], first: Array | bool | None = None) -> None:
        """Write one step of every env; `first` marks those that begin an episode. Items cannot use omitted columns."""
        self._refuse_closed()
        values = flat(step)
        for name in values.keys() - self._columns.keys():
            refuse_unknown("column", name, self._names)
        prepared = {name: self._fitting(name, value) for name, value in values.items()}
        begins = None if first is None else self._mask(first, "first")
        if self.steps % self._length == 0:
            self._open_block()
        rows = self._blocks[-1] * self._length + self.steps % self._length
        for name in self._names:
            if name in prepared:
                self._columns[name][rows] = prepared[name]
            else:
                self._absent[name].append(self.steps)
        if begins is not None:
            self._episode[begins] = self.steps
        self.steps += 1

    def create_item(
        self, table: str, priority: float | Array, trajectory: Mapping[str, Slice], where: Array | None = None
    ) -> None:
        """Create an item for every env (or for those in the mask `where`) over slices of the history."""
        if not trajectory:
            raise UserError(f"an item for table {table!r} needs at least one slice of the history")
        envs = self._all if where is None else np.flatnonzero(self._mask(where, "where"))
        if np.shape(priority) not in ((), (self._envs,)):
            raise UserError(f"priority of shape {np.shape(priority)} is neither one nor one for each of {self._envs}")
        priorities = np.broadcast_to(np.asarray(priority, np.float64), self._envs)[envs]
        starts, lengths = {}, {}
        for name, part in trajectory.items():
            if part.column != name:
                raise UserError(f"column {name!r} is given a slice of {part.column!r}; items keep the names of columns")
            starts[name], lengths[name] = np.full(len(envs), part.start), np.full(len(envs), part.stop - part.start)
        self.create_items(table, priorities, envs, starts, lengths)

    def create_items(
        self, table: str, priorities: Array, envs: Array, starts: Mapping[str, Array], lengths: Mapping[str, Array]
    ) -> None:
        """Create items over steps `starts` … `starts + lengths` of `envs`, all `[n]`; steps count like `steps`."""
        self._refuse_closed()
        refuse_unknown("table", table, self._session.tables)
        priorities, envs = np.asarray(priorities, np.float64), np.asarray(envs)
        self._refuse_misfits(priorities, envs, starts, lengths)
        if not len(envs):
            return
        windows = self._windows(self._session.tables[table].lead, envs, starts, lengths)
        self._pending.setdefault(table, []).append((priorities, windows))
        self._num_pending += len(envs)
        if self._num_pending >= self._max_pending:
            self._send()

    def end_episode(self) -> None:
        """Begin an episode with the next step, in every env."""
        self._episode[:] = self.steps

    def flush(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` until all items are in their tables; returns whether they are."""
        self._refuse_closed()
        self._send()
        return self._session.flush(seconds)

    def info(self, table: str) -> dict[str, Any]:
        """Sizes and counts of a table."""
        return self._session.info(table)

    def close(self) -> None:
        """Flush, and release the history."""
        try:
            if self._open:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without waiting for unconfirmed items."""
        if self._open:
            self._open = False
            self._session.close()

    def save(self) -> dict[str, Any]:
        """What a writer of the same envs needs to continue, where the service is in this thread. Rows that are not
        written yet are cleared: they hold what an earlier use of their chunks left."""
        assert not self._pending, "items are handed over at once"
        for row in range(self.steps % self._length or self._length, self._length) if self._blocks else ():
            for column in self._columns.values():
                column[self._blocks[-1] * self._length + row] = 0
        return {
            "session": self._session.save(), "blocks": [chunks.copy() for chunks in self._blocks],
            "oldest": self._oldest, "steps": self.steps, "published": self._published,
            "episode": self._episode.copy(), "absent": {name: list(steps) for name, steps in self._absent.items()},
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned, with the steps that the service still holds for it."""
        self._blocks = deque(saved["blocks"])
        self._session.load(saved["session"], np.concatenate([np.zeros(0, np.int64), *self._blocks]))
        self._oldest, self.steps, self._published = saved["oldest"], saved["steps"], saved["published"]
        self._episode[:], self._absent = saved["episode"], saved["absent"]

    def fileno(self) -> int:
        """A descriptor that becomes readable when something is confirmed; -1 if there is none."""
        return self._session.fileno()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _windows(
        self, lead: int, envs: Array, starts: Mapping[str, Array], lengths: Mapping[str, Array]
    ) -> Windows:
        """The windows of items, after a check that they lie within the history."""
        windows = Windows.empty(len(envs), len(self._names))
        first = np.min(list(starts.values()), axis=0)
        stop = np.max([starts[name] + lengths[name] for name in starts], axis=0)
        for name in starts.keys() - self._columns.keys():
            refuse_unknown("column", name, self._names)
        for name in starts:
            index = self._names.index(name)
            windows.start[:, index], windows.length[:, index] = starts[name] - first, lengths[name]
            for step in self._absent[name]:
                if ((starts[name] <= step) & (step < starts[name] + lengths[name])).any():
                    raise UserError(f"column {name!r} was left out of step {step}, which an item refers to; append it")
        episode = self._episode[envs]
        if (first < episode).any():
            wrong = int(np.argmax(first < episode))
            raise UserError(
                f"an item of env {envs[wrong]} begins {int(episode[wrong] - first[wrong])} steps before its episode; "
                "leave such envs out with `where`, or give create_items their own starts"
            )
        base = np.maximum(first - lead, episode)
        if (base < self._oldest).any() or (stop > self.steps).any() or (stop <= first).any():
            raise UserError(
                f"an item over steps {int(first.min())} … {int(stop.max())} (and {lead} before) is not within the "
                f"{self.steps - self._oldest} steps that are kept; give the writer a longer history"
            )
        blocks = np.stack(self._blocks)
        which = (base - self._oldest) // self._length
        windows.base[:] = blocks[which, envs] * self._length + base % self._length
        windows.lead[:], windows.span[:] = first - base, stop - base
        return windows

    def _refuse_closed(self) -> None:
        if not self._open:
            raise UserError("this writer is closed; make another one")

    def _mask(self, given: Array | bool, name: str) -> Array:
        flags = np.asarray(given)
        if flags.shape not in ((), (self._envs,)) or flags.dtype.kind not in "bui":
            raise UserError(f"{name} must be one flag, or one for each of {self._envs} envs, not {given!r:.60}")
        return flags.astype(bool) if flags.shape else np.full(self._envs, bool(flags))

    def _refuse_misfits(
        self, priorities: Array, envs: Array, starts: Mapping[str, Array], lengths: Mapping[str, Array]
    ) -> None:
        """Raise `UserError` unless all records have one legal entry per item."""
        shape = (len(envs),) if envs.ndim == 1 else (-1,)
        if not starts or starts.keys() != lengths.keys():
            raise UserError(f"starts of {sorted(starts)} and lengths of {sorted(lengths)} must name the same columns")
        arrays = {"priorities": priorities, "envs": envs}
        arrays |= {f"starts[{name!r}]": np.asarray(value) for name, value in starts.items()}
        arrays |= {f"lengths[{name!r}]": np.asarray(value) for name, value in lengths.items()}
        for name, array in arrays.items():
            if array.shape != shape or (name != "priorities" and array.dtype.kind not in "iu" and array.size):
                raise UserError(f"{name} must have one number for each of {len(np.atleast_1d(envs))} items")
        if len(envs) and not (envs.min() >= 0 and envs.max() < self._envs):
            raise UserError(f"envs {envs.min()} … {envs.max()} lie outside 0 … {self._envs - 1}")
        for name in starts:
            if (np.asarray(lengths[name]) < 1).any() or (np.asarray(starts[name]) < 0).any():
                raise UserError(f"a slice of column {name!r} is empty, or begins before the first step")

    def _open_block(self) -> None:
        """Take chunks for the next steps; chunks that are too old are released first, so that they can be reused."""
        self._publish()
        while self._blocks and self._oldest + self._length <= self.steps - self._keep and len(self._blocks) > 1:
            if self._num_pending:
                self._send()
            self._session.give_back(self._blocks.popleft())
            self._oldest += self._length
            self._absent = {name: [s for s in steps if s >= self._oldest] for name, steps in self._absent.items()}
        chunks = self._session.take_chunks(self._envs, None)
        if self._blocks:
            self._session.link(self._blocks[-1], chunks)
        self._blocks.append(chunks)

    def _publish(self) -> None:
        """Announce the rows that were written since the last time, block by block."""
        while self._published < self.steps:
            block = (self._published - self._oldest) // self._length
            begin = self._published % self._length
            end = min(self._length, begin + self.steps - self._published)
            self._session.publish(self._blocks[block], begin, end)
            self._published += end - begin

    def _send(self) -> None:
        self._publish()
        while self._pending:
            table, parts = next(iter(self._pending.items()))
            del self._pending[table]
            self._num_pending -= sum(len(part[0]) for part in parts)
            priorities = np.concatenate([part[0] for part in parts])
            self._session.insert(table, priorities, Windows.joined([part[1] for part in parts]))

    def _fitting(self, name: str, value: Any) -> Array:
        """A value in the shape and dtype of its column, or `UserError`."""
        spec = self._session.layout.signature[name]
        try:
            array = np.asarray(value)
        except ValueError:
            raise UserError(f"column {name!r} takes an array of {spec.dtype}, not {value!r:.60}") from None
        wanted = spec.shape if self._single else (self._envs, *spec.shape)
        if array.dtype.kind not in "biuf":
            raise UserError(f"column {name!r} is {spec.dtype}, and {value!r:.60} does not fit; convert it first")
        if array.shape != wanted:
            raise UserError(f"column {name!r} takes values of shape {wanted}, not {array.shape}")
        if array.dtype == spec.dtype:
            return array
        with np.errstate(invalid="ignore", over="ignore"):
            converted = array.astype(spec.dtype)
        if converted.dtype.kind != "f" and not np.array_equal(converted, array):  # floats may lose precision
            raise UserError(f"column {name!r} is {spec.dtype}, and {array!r:.60} does not fit; convert it first")
        return converted


def flat(step: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one: `{"obs": {"left": …}}` becomes the column `obs/left`."""
    found: dict[str, Any] = {}
    for name, value in step.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}/"))
        else:
            found[prefix + name] = value
    return found
