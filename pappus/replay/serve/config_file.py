"""Tables from a YAML file, for a standalone service.

    max_steps: 1000000                  # maximum number of stored steps (default: what the tables' items need)
    compress: auto                      # or columns, such as [obs]; none by default
    tables:
      - name: replay
        sampler: {prioritized: 0.6}     # or uniform, fifo, lifo, min_heap, max_heap, or your own as module:name
        remover: fifo
        rate_limiter: {min_size: 1000}  # or {queue: 100}, {stack: 100},
                                        # or {samples_per_insert: 8, min_size: 1000, error_buffer: 800}
        max_size: 1000000
        max_times_sampled: 0            # an item is removed after this many samples; 0: never
        lead: 3                         # earlier steps that are kept with an item: 3 for stacks of 4 frames
        steps_per_item: 1               # new steps per item: 40 for sequences that begin every 40 steps
        signature:
          obs: {shape: [84, 84], dtype: uint8}
          action: {shape: [], dtype: int64, low: 0, high: 17}   # items with other values are refused
          reward: {shape: [], dtype: float32}   # only finite numbers, unless `finite: false` is added
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from pappus.errors import UserError, closest
from pappus.replay.service.service import CHUNK_LENGTH
from pappus.replay.storage.compression import Compress
from pappus.replay.tables import rate_limiters
from pappus.replay.tables.limits import Limits
from pappus.replay.tables.rate_limiters import RateLimiter
from pappus.replay.tables.table import Selection, Table, find_selector
from pappus.types import ArraySpec


class _Mapping(dict[Any, Any]):
    """A mapping of the file, which knows where it and its keys stand."""

    line = 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class _Loader(yaml.SafeLoader):
    """Keeps the lines of keys."""

    def mapping(self, node: yaml.MappingNode) -> Iterator[_Mapping]:
        """What PyYAML calls for a mapping: it is filled in a second step, as it may be referred to within itself."""
        made = _Mapping()
        made.line = node.start_mark.line + 1
        yield made
        made.update(self.construct_mapping(node))
        made.lines = {self.construct_object(key): key.start_mark.line + 1 for key, _ in node.value}


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.mapping)


class Place(NamedTuple):
    """Where something stands, as errors begin: `tables.yaml, line 7: table 1 (replay): sampler`."""

    file: str
    what: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" + (f": {self.what}" if self.what else "")

    def line_of(self, words: Mapping[Any, Any], key: Any) -> int:
        """The line of a key; that of its mapping where it is not in the file."""
        lines: dict[Any, int] = getattr(words, "lines", {})
        return lines.get(key, self.line)

    def at(self, words: Mapping[Any, Any], key: Any, called: str = "") -> Place:
        """The place of a key of a mapping."""
        called = called or str(key)
        return Place(self.file, f"{self.what}: {called}" if self.what else called, self.line_of(words, key))


class ServiceConfig(NamedTuple):
    """The content of the file."""

    tables: list[Table]
    max_steps: int | None
    chunk_length: int
    compress: Compress


def load_tables(path: str | Path) -> ServiceConfig:
    """Read a file, or raise a `UserError` that says what is wrong with it."""
    try:
        content = yaml.load(Path(path).read_text(), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    where = Place(str(path), "", 1)
    top = _fields(content, where, {"tables"}, {"max_steps", "chunk_length", "compress"})
    if not isinstance(top["tables"], list) or not top["tables"]:
        raise UserError(f"{where.at(top, 'tables')} must be a list of at least one table")
    first = where.line_of(top, "tables")
    lines = [getattr(words, "line", first) for words in top["tables"]]
    tables = [
        _table(words, Place(str(path), f"table {i + 1}", lines[i])) for i, words in enumerate(top["tables"])
    ]
    steps = top.get("max_steps")
    return ServiceConfig(
        tables, None if steps is None else _whole(steps, where.at(top, "max_steps")),
        _whole(top.get("chunk_length", CHUNK_LENGTH), where.at(top, "chunk_length")),
        _compress(top.get("compress", []), where.at(top, "compress")),
    )


def _compress(words: Any, where: Place) -> Compress:
    if words == "auto":
        return "auto"
    if not isinstance(words, list) or not all(isinstance(name, str) for name in words):
        raise UserError(f"{where}: {words!r} must be auto or a list of columns, such as [obs]")
    return words


def _table(words: Any, where: Place) -> Table:
    needed = {"name", "sampler", "remover", "rate_limiter", "max_size", "signature"}
    found = _fields(words, where, needed, {"max_times_sampled", "lead", "steps_per_item"})
    where = where._replace(what=f"{where.what} ({found['name']})")
    signature = found["signature"]
    if not isinstance(signature, Mapping) or not signature:
        raise UserError(f"{where.at(found, 'signature')} must name at least one column")
    places = {str(name): where.at(signature, name, f"column {name!r}") for name in signature}
    columns = {str(name): _fields_of(spec, places[str(name)]) for name, spec in signature.items()}
    specs = {name: _column(words, places[name]) for name, words in columns.items()}
    limits = {name: _limits(words, places[name]) for name, words in columns.items()}
    return _made(
        where,         str(found["name"]), _selection(found["sampler"], where.at(found, "sampler")),
        _selection(found["remover"], where.at(found, "remover")),
        _limiter(found["rate_limiter"], where.at(found, "rate_limiter")),
        _whole(found["max_size"], where.at(found, "max_size")),
        specs, _whole(found.get("max_times_sampled", 0), where.at(found, "max_times_sampled")),
        _whole(found.get("lead", 0), where.at(found, "lead")),
        _number(found.get("steps_per_item", 1.0), where.at(found, "steps_per_item")),
        {name: found for name, found in limits.items() if found is not None},
    )


def _made(where: Place, *arguments: Any) -> Table:
    """The table; what its own rules refuse is said with its place."""
    try:
        return Table(*arguments)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _selection(words: Any, where: Place) -> Selection:
    name, alpha = words, 1.0
    if isinstance(words, Mapping) and len(words) == 1:
        (name, alpha), = words.items()
    if not isinstance(name, str):
        raise UserError(f"{where}: {words!r} is not a selector; write uniform, fifo, {{prioritized: 0.6}} or the like")
    try:
        find_selector(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    try:
        return Selection(name, _number(alpha, where))
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(str(where)) else f"{where}: {error}") from None


def _limiter(words: Any, where: Place) -> RateLimiter:
    if isinstance(words, Mapping):
        keys = set(words)
        if keys == {"queue"} or keys == {"stack"}:
            return rate_limiters.queue(_whole(next(iter(words.values())), where))
        if keys == {"min_size"}:
            return rate_limiters.min_size(_whole(words["min_size"], where))
        if keys == {"samples_per_insert", "min_size", "error_buffer"}:
            return rate_limiters.sample_to_insert_ratio(
                _number(words["samples_per_insert"], where), _whole(words["min_size"], where),
                _number(words["error_buffer"], where),
            )
    raise UserError(
        f"{where}: {words!r} is no limiter; write {{min_size: N}}, {{queue: N}}, {{stack: N}} or "
        "{samples_per_insert: R, min_size: N, error_buffer: E}"
    )


def _fields_of(words: Any, where: Place) -> Mapping[str, Any]:
    return _fields(words, where, {"shape", "dtype"}, {"low", "high", "finite"})


def _limits(found: Mapping[str, Any], where: Place) -> Limits | None:
    """What values a column may hold: of real numbers those that are finite, unless the file says otherwise."""
    low, high = (_number(found.get(name, end), where.at(found, name)) for name, end in (("low", -inf), ("high", inf)))
    finite = found.get("finite", True)
    if not isinstance(finite, bool) or (not finite and (low, high) != (-inf, inf)):
        raise UserError(f"{where}: finite={finite!r} must be true or false, and true where there is a low or a high")
    real = np.dtype(found["dtype"]).kind == "f"
    return Limits(low, high) if (real and finite) or (low, high) != (-inf, inf) else None


def _column(found: Mapping[str, Any], where: Place) -> ArraySpec:
    shape = found["shape"]
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise UserError(f"{where}: shape={shape!r} must be a list of whole numbers, such as [84, 84]")
    try:
        dtype = np.dtype(found["dtype"])
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise UserError(f"{where}: dtype={found['dtype']!r} must be a number's, such as uint8, int64 or float32")
    return ArraySpec(tuple(shape), dtype.name)


def _fields(words: Any, where: Place, needed: set[str], optional: set[str]) -> Mapping[str, Any]:
    if not isinstance(words, Mapping):
        raise UserError(f"{where}: expected {', '.join(sorted(needed))}, not {words!r}")
    for key in words:
        if key not in needed | optional:
            hint = closest(str(key), sorted(needed | optional))
            raise UserError(f"{where._replace(line=where.line_of(words, key))}: unknown key {key!r}{hint}")
    if missing := sorted(needed - set(words)):
        raise UserError(f"{where}: {', '.join(missing)} must be given")
    return words


def _whole(value: Any, where: Place) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{where}: {value!r} must be a whole number")
    return value


def _number(value: Any, where: Place) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{where}: {value!r} must be a number")
    return float(value)
