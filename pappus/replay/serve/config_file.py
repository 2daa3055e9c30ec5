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

from collections.abc import Mapping
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


class ServiceConfig(NamedTuple):
    """The content of the file."""

    tables: list[Table]
    max_steps: int | None
    chunk_length: int
    compress: Compress


def load_tables(path: str | Path) -> ServiceConfig:
    """Read a file, or raise a `UserError` that says what is wrong with it."""
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    top = _fields(content, str(path), {"tables"}, {"max_steps", "chunk_length", "compress"})
    if not isinstance(top["tables"], list) or not top["tables"]:
        raise UserError(f"{path}: tables must be a list of at least one table")
    tables = [_table(words, f"{path}: table {index + 1}") for index, words in enumerate(top["tables"])]
    steps = top.get("max_steps")
    return ServiceConfig(
        tables, None if steps is None else _whole(steps, f"{path}: max_steps"),
        _whole(top.get("chunk_length", CHUNK_LENGTH), f"{path}: chunk_length"),
        _compress(top.get("compress", []), f"{path}: compress"),
    )


def _compress(words: Any, where: str) -> Compress:
    if words == "auto":
        return "auto"
    if not isinstance(words, list) or not all(isinstance(name, str) for name in words):
        raise UserError(f"{where}: {words!r} must be auto or a list of columns, such as [obs]")
    return words


def _table(words: Any, where: str) -> Table:
    needed = {"name", "sampler", "remover", "rate_limiter", "max_size", "signature"}
    found = _fields(words, where, needed, {"max_times_sampled", "lead", "steps_per_item"})
    where = f"{where} ({found['name']})"
    if not isinstance(found["signature"], Mapping) or not found["signature"]:
        raise UserError(f"{where}: signature must name at least one column")
    columns = {str(name): _fields_of(spec, f"{where}: column {name!r}") for name, spec in found["signature"].items()}
    return Table(
        str(found["name"]), _selection(found["sampler"], f"{where}: sampler"),
        _selection(found["remover"], f"{where}: remover"), _limiter(found["rate_limiter"], f"{where}: rate_limiter"),
        _whole(found["max_size"], f"{where}: max_size"),
        {name: _column(words, f"{where}: column {name!r}") for name, words in columns.items()},
        _whole(found.get("max_times_sampled", 0), f"{where}: max_times_sampled"),
        _whole(found.get("lead", 0), f"{where}: lead"),
        _number(found.get("steps_per_item", 1.0), f"{where}: steps_per_item"),
        {
            name: limits for name, words in columns.items()
            if (limits := _limits(words, f"{where}: column {name!r}")) is not None
        },
    )


def _selection(words: Any, where: str) -> Selection:
    name, alpha = words, 1.0
    if isinstance(words, Mapping) and len(words) == 1:
        (name, alpha), = words.items()
    if not isinstance(name, str):
        raise UserError(f"{where}: {words!r} is not a selector; write uniform, fifo, {{prioritized: 0.6}} or the like")
    try:
        find_selector(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return Selection(name, _number(alpha, where))


def _limiter(words: Any, where: str) -> RateLimiter:
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


def _fields_of(words: Any, where: str) -> dict[str, Any]:
    return _fields(words, where, {"shape", "dtype"}, {"low", "high", "finite"})


def _limits(found: dict[str, Any], where: str) -> Limits | None:
    """What values a column may hold: of real numbers those that are finite, unless the file says otherwise."""
    low, high = (_number(found.get(name, end), f"{where}: {name}") for name, end in (("low", -inf), ("high", inf)))
    finite = found.get("finite", True)
    if not isinstance(finite, bool) or (not finite and (low, high) != (-inf, inf)):
        raise UserError(f"{where}: finite={finite!r} must be true or false, and true where there is a low or a high")
    real = np.dtype(found["dtype"]).kind == "f"
    return Limits(low, high) if (real and finite) or (low, high) != (-inf, inf) else None


def _column(found: dict[str, Any], where: str) -> ArraySpec:
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


def _fields(words: Any, where: str, needed: set[str], optional: set[str]) -> dict[str, Any]:
    if not isinstance(words, Mapping):
        raise UserError(f"{where}: expected {', '.join(sorted(needed))}, not {words!r}")
    for key in words:
        if key not in needed | optional:
            raise UserError(f"{where}: unknown key {key!r}{closest(str(key), sorted(needed | optional))}")
    if missing := sorted(needed - set(words)):
        raise UserError(f"{where}: {', '.join(missing)} must be given")
    return dict(words)


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{where}: {value!r} must be a whole number")
    return value


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{where}: {value!r} must be a number")
    return float(value)
