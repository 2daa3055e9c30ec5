"""Storage of steps: each step once, column by column, in chunks that items share.

A *row* is one step. A *chunk* is `length` consecutive rows of one stream (one env of one writer), and knows the chunk
that continues it. An item is a window of rows of a stream, so it crosses chunks without a copy:

    chunk 3: t0 t1 t2 t3  ──following──▶  chunk 7: t4 t5 t6 t7
                   └───── an item ──────────────┘
             └── another one ──┘

The lead belongs to the item (its steps are kept as long as the item), but only operations that look back see it, such
as a stack of frames. A column that an item leaves out has length 0.

    base                        first                                  base + span
     │◀────────── lead ──────────▶│◀──────────── the item's steps ──────────▶│
     └ older steps of the episode └ column c: start[c] … start[c] + length[c] (counted from `first`)

Chunks are reference-counted. Holders are: every item over it, the writer that may still refer to it, a sampled batch
that is being read, and a checkpoint that is being written. A chunk without holders is free at once.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pappus.errors import UserError, closest
from pappus.types import Array, ArraySpec


class Kernels(NamedTuple):
    """The inner loops of replay: two over chunks and two over the nodes of a sum tree (`SumTree`).

    `length` is that of a chunk; `following[chunk]` is the chunk that continues it. `nodes[i]` is always computed from
    its children, `nodes[2·i]` and `nodes[2·i + 1]`, and never adjusted by differences, so rounding errors do not
    accumulate: the same leaves give the same tree, bit by bit, in any order of updates.
    """

    locate: Callable[[Array, int, Array, Array, Array], None]
    """(following, length, bases `[n]`, positions `[n, m]`, rows `[n, m]`): the rows of positions counted from bases."""
    add: Callable[[Array, Array, int], None]
    """(counts, places, by): add `by` to the count of each place, once per occurrence."""
    update: Callable[[Array, Array, Array], None]
    """(nodes, places, weights): set leaves and all sums above them; the last one counts if a place occurs twice."""
    find: Callable[[Array, Array, Array], None]
    """(nodes, targets, places): for each target in [0, root), the leaf at which the running sum passes it."""


@cache
def fastest() -> Kernels:
    """The compiled loops if numba is installed, otherwise the NumPy versions."""
    return compiled(LOOPS) if importlib.util.find_spec("numba") is not None else NUMPY


@cache
def compiled(loops: Kernels) -> Kernels:
    """The loops as machine code."""
    return Kernels(*map(compiled_loop, loops))


def compiled_loop(loop: Any) -> Any:
    """A loop as machine code. It is cached on disk, so only the first call ever waits for the compiler."""
    import numba

    return numba.njit(cache=True, nogil=True)(loop)


def _locate_with_numpy(following: Array, length: int, bases: Array, positions: Array, rows: Array) -> None:
    chunk = bases // length
    reached = (bases % length)[:, None] + positions
    hops, within = np.divmod(reached, length)
    rows[:] = within + (chunk * length)[:, None]
    for hop in range(1, int(hops.max(initial=0)) + 1):
        chunk = following[chunk]
        np.copyto(rows, within + (chunk * length)[:, None], where=hops == hop)


def _add_with_numpy(counts: Array, places: Array, by: int) -> None:
    np.add.at(counts, places, by)


def _update_with_numpy(nodes: Array, places: Array, weights: Array) -> None:
    size = len(nodes) // 2
    nodes[size + places] = weights
    parents = np.unique((size + places) >> 1)
    while len(parents) and parents[0] >= 1:
        nodes[parents] = nodes[2 * parents] + nodes[2 * parents + 1]
        parents = np.unique(parents >> 1)


def _find_with_numpy(nodes: Array, targets: Array, places: Array) -> None:
    size = len(nodes) // 2
    at, rest = np.ones(len(targets), np.int64), targets.copy()
    for _ in range(size.bit_length() - 1):
        left = nodes[2 * at]
        # Rounding may leave a rest as large as the node's own sum: an empty side is never entered.
        right = ((rest >= left) & (nodes[2 * at + 1] > 0)) | (left <= 0)
        rest = np.where(right, rest - left, rest)
        at = 2 * at + right
    places[:] = at - size


def _locate(following: Array, length: int, bases: Array, positions: Array, rows: Array) -> None:
    for i in range(len(bases)):
        first, offset = bases[i] // length, bases[i] % length
        for j in range(positions.shape[1]):
            chunk, within = first, offset + positions[i, j]
            while within >= length:
                chunk = following[chunk]
                within -= length
            rows[i, j] = chunk * length + within


def _add(counts: Array, places: Array, by: int) -> None:
    for i in range(len(places)):
        counts[places[i]] += by


def _update(nodes: Array, places: Array, weights: Array) -> None:
    size = len(nodes) // 2
    for i in range(len(places)):
        node = size + places[i]
        nodes[node] = weights[i]
        node >>= 1
        while node >= 1:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            node >>= 1


def _find(nodes: Array, targets: Array, places: Array) -> None:
    size = len(nodes) // 2
    for i in range(len(targets)):
        rest = targets[i]
        node = 1
        while node < size:
            left = nodes[2 * node]
            if (rest >= left and nodes[2 * node + 1] > 0) or left <= 0:
                rest -= left
                node = 2 * node + 1
            else:
                node = 2 * node
        places[i] = node - size


NUMPY = Kernels(_locate_with_numpy, _add_with_numpy, _update_with_numpy, _find_with_numpy)
LOOPS = Kernels(_locate, _add, _update, _find)


Signature: TypeAlias = Mapping[str, ArraySpec]
"""The columns of a step by name."""
PAGE = 4096


class Windows(NamedTuple):
    """The rows of n items."""

    base: Array
    """int64 `[n]`: first row of the window, lead included."""
    lead: Array
    """int32 `[n]`: rows before the item's own."""
    span: Array
    """int32 `[n]`: rows of the window, lead included."""
    start: Array
    """int32 `[n, columns]`: first row of a column, counted from the end of the lead."""
    length: Array
    """int32 `[n, columns]`: rows of a column."""

    @property
    def num_items(self) -> int:
        return len(self.base)

    def pick(self, which: Array | slice) -> Windows:
        if isinstance(which, slice):
            return Windows(*(field[which] for field in self))
        return Windows(*(field.take(which, axis=0) for field in self))

    def put(self, places: Array, windows: Windows) -> None:
        for into, field in zip(self, windows, strict=True):
            into[places] = field

    @staticmethod
    def joined(parts: Sequence[Windows]) -> Windows:
        return Windows(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))

    @staticmethod
    def empty(count: int, columns: int) -> Windows:
        return Windows(
            np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.int32),
            np.zeros((count, columns), np.int32), np.zeros((count, columns), np.int32),
        )


class Drawn(NamedTuple):
    """n sampled items of one table."""

    keys: Array
    """int64 `[n]`: keys of the items; a key is never used twice."""
    probabilities: Array
    """float64 `[n]`: probability of each draw at the time."""
    priorities: Array
    """float64 `[n]`."""
    times_sampled: Array
    """int32 `[n]`: including this time."""
    ages: Array
    """int64 `[n]`: items inserted into the table since then."""
    table_size: int
    """Items in the table at the time."""
    mass: float
    """Total weight of all items of the table (`Selector.total`)."""
    windows: Windows

    def records(self) -> dict[str, Array]:
        """The arrays with one entry per item, by name; those of the windows are not among them."""
        return {name: getattr(self, name) for name in RECORDS}

    def pick(self, items: slice) -> Drawn:
        picked: dict[str, Any] = {name: array[items] for name, array in self.records().items()}
        return self._replace(**picked, windows=self.windows.pick(items))

    @staticmethod
    def joined(parts: Sequence[Drawn]) -> Drawn:
        if len(parts) == 1:
            return parts[0]
        records: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in RECORDS}
        return parts[-1]._replace(**records, windows=Windows.joined([part.windows for part in parts]))


RECORDS = ("keys", "probabilities", "priorities", "times_sampled", "ages")


class Layout(NamedTuple):
    """What a process must know to read the chunks of another process."""

    signature: dict[str, ArraySpec]
    chunk_length: int
    num_chunks: int

    @property
    def rows(self) -> int:
        return self.chunk_length * self.num_chunks

    @property
    def step_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.signature.values())

    @property
    def nbytes(self) -> int:
        return self.header_bytes + sum(_paged(self.rows * spec.nbytes) for spec in self.signature.values())

    @property
    def header_bytes(self) -> int:
        """Two numbers for every chunk."""
        return _paged(self.num_chunks * 16)


class Columns:
    """Arrays over the memory of chunks: `columns[name][row]` is a value of a step."""

    def __init__(self, layout: Layout, memory: Array, kernels: Kernels | None = None) -> None:
        self.layout, self._kernels = layout, kernels
        self.following, self.uses = memory[: layout.num_chunks * 16].view(np.int64).reshape(2, layout.num_chunks)
        """The chunk that continues each chunk (-1: none), and how often each chunk was taken: the rows of a chunk stay
        the same until it is taken anew."""
        self.columns: dict[str, Array] = {}
        offset = layout.header_bytes
        for name, spec in layout.signature.items():
            nbytes = layout.rows * spec.nbytes
            self.columns[name] = memory[offset : offset + nbytes].view(spec.dtype).reshape(layout.rows, *spec.shape)
            offset += _paged(nbytes)

    @cached_property
    def kernels(self) -> Kernels:
        """Loaded on first use: who only writes needs no compiler, which takes 25 MiB and a fifth of a second."""
        return self._kernels or fastest()

    def locate(self, bases: Array, positions: Array) -> Array:
        """Rows of `positions` (`[n, …]`, counted from each item's base row `[n]`) across chunks."""
        flat = np.ascontiguousarray(positions, np.int64).reshape(len(bases), math.prod(positions.shape[1:]))
        rows = np.empty(flat.shape, np.int64)
        self.kernels.locate(self.following, self.layout.chunk_length, bases, flat, rows)
        return rows.reshape(positions.shape)

    def rows_of(self, column: str, windows: Windows, positions: Array) -> Array:
        """The rows of positions `[n, …]`, counted from each window's base."""
        return self.locate(windows.base, positions)

    def uncopied(self, column: str, rows: Array) -> Array | None:
        """None: rows of chunks are shared, so a batch needs a copy (see `RowCopies`)."""
        return None

    def spanned(self, bases: Array, spans: Array) -> Array:
        """The chunks of windows of `spans` rows from `bases` on, once for each window that touches them."""
        length = self.layout.chunk_length
        chunk = bases // length
        left = spans - (length - bases % length)
        found = [chunk]
        while len(left) and (more := left > 0).any():
            chunk, left = self.following[chunk[more]], left[more] - length
            found.append(chunk)
        return np.concatenate(found)


class Chunks(Columns):
    """Chunks with reference counts. Not thread-safe: the service holds a lock."""

    def __init__(self, layout: Layout, memory: Array | None = None, kernels: Kernels | None = None) -> None:
        super().__init__(layout, np.zeros(layout.nbytes, np.uint8) if memory is None else memory, kernels)
        self.holders = np.zeros(layout.num_chunks, np.int32)
        self.by_items = np.zeros(layout.num_chunks, np.int32)
        self.by_writers = np.zeros(layout.num_chunks, np.int32)
        """How many of the holders are items and writers. Others release soon: batches, checkpoints, compression."""
        self._free = np.arange(layout.num_chunks)[::-1].copy()
        self.num_free = layout.num_chunks
        self.on_free: Callable[[Array], None] = lambda freed: None
        """Called with chunks whose count fell to 0."""

    def take(self, count: int) -> Array | None:
        """Take `count` free chunks, each held once and continued by none; None if there are fewer."""
        if count > self.num_free:
            return None
        self.num_free -= count
        taken = self._free[self.num_free : self.num_free + count][::-1].copy()
        self.holders[taken] = self.by_writers[taken] = 1
        self.following[taken] = -1
        self.uses[taken] += 1
        return taken

    def take_again(self, chunks: Array, free: Array) -> None:
        """Take the chunks that were taken before a checkpoint, and leave those `free` that were, in that order."""
        self.num_free = len(free)
        self._free[: len(free)] = free
        self.holders[chunks] = self.by_writers[chunks] = 1
        self.uses[chunks] += 1

    @property
    def free(self) -> Array:
        """Chunks that nobody holds; the last is taken first."""
        return self._free[: self.num_free]

    def hold(self, chunks: Array, among: Array | None = None) -> None:
        """Increment the counts of chunks, once per occurrence; `among` is the count of one kind of holder."""
        self.kernels.add(self.holders, chunks, 1)
        if among is not None:
            self.kernels.add(among, chunks, 1)

    def release(self, chunks: Array, among: Array | None = None) -> None:
        """Decrement the counts of chunks; those that reach 0 are free."""
        if among is not None:
            self.kernels.add(among, chunks, -1)
        self.kernels.add(self.holders, chunks, -1)
        unheld = chunks[self.holders[chunks] == 0]
        if len(unheld):
            freed = np.unique(unheld)
            self._free[self.num_free : self.num_free + len(freed)] = freed
            self.num_free += len(freed)
            self.on_free(freed)

    def forget_rows(self) -> None:
        """Drop the rows and keep the counts. The memory is freed with its last view."""
        self.following, self.uses, self.columns = self.following.copy(), self.uses.copy(), {}
        self.on_free = lambda freed: None

    @property
    def num_promised(self) -> int:
        """Chunks that will be free as soon as batches were read, a checkpoint was written and compression is done."""
        return int(np.count_nonzero((self.holders > 0) & (self.by_items == 0) & (self.by_writers == 0)))

    @property
    def num_held(self) -> int:
        return self.layout.num_chunks - self.num_free


def refuse_unknown(kind: str, name: str, known: Collection[str]) -> None:
    """Raise `UserError` for a table or a column that does not exist."""
    if name not in known:
        raise UserError(f"there is no {kind} {name!r}{closest(name, list(known))}; there are {', '.join(known)}")


def plan(signature: Signature, max_steps: int, chunk_length: int) -> Layout:
    """A layout for `max_steps` steps, plus 2 % (at least 16 chunks) for chunks that are only partly in use."""
    if not signature:
        raise UserError("a signature without columns stores nothing; give e.g. {'obs': ArraySpec((4,), 'float32')}")
    if max_steps < 1 or chunk_length < 1:
        raise UserError(f"max_steps={max_steps} and chunk_length={chunk_length} must be at least 1")
    needed = -(-max_steps // chunk_length)
    return Layout(dict(signature), chunk_length, needed + max(16, needed // 50))


def _paged(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
