"""Saves a whole service to disk and restores it, without stopping it.

A checkpoint is a folder that appears under its name only when it is complete:

    manifest.json         tables, counts, random states, and the size and CRC-32 of the files below
    tables.safetensors    the records of all items, oldest first
    chunks.bin            the chunks of all items, one after another: every column's rows, and again; where a service
                          is saved together with its writers, what these hold, too

Under the lock, only records are copied and chunks are held. The content of held chunks does not change, so they are
written while inserts and samples continue; each chunk is released as soon as it is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pappus.errors import PappusError, RunError, StorageError, UserError
from pappus.replay.service.service import Service
from pappus.replay.tables.live_table import LiveTable, in_order
from pappus.replay.tables.rate_limiters import limiter_from
from pappus.replay.tables.table import table_from
from pappus.telemetry.files import sync
from pappus.telemetry.state_digest import difference as nest_difference
from pappus.types import Array

FORMAT = "pappus replay 2"
DRAFT = re.compile(r"\..+\.(?P<process>[1-9]\d*)-(?P<thread>\d+)")
"""Name of a checkpoint that is not complete: .NAME.PROCESS-THREAD."""
BLOCK_BYTES = 8 << 20
"""Chunks are written and released in blocks of about this size, column by column."""


def save(service: Service, path: str | Path, own: bool = False, alone: bool = False) -> Path:
    """Write a checkpoint; the folder must not exist yet. `own`: whoever keeps the folder beside it named it, and may
    remove it. `alone`: all clients are in this thread and are saved with it, so what their writers hold is kept, too,
    and all chunks keep their numbers. `StorageError` if it cannot be written; the service is as it was."""
    folder = Path(path).absolute()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        if os.path.lexists(folder):
            raise UserError(f"checkpoint {str(folder)!r} exists already; give a new name")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        manifest, arrays, blocks = _snapshot(service, alone)
        beside = (other for other in folder.parent.iterdir() if other.is_dir())
        manifest |= {"sequence": 1 + max(map(sequence_of, beside), default=0), "own": own}
        try:
            manifest["files"] = {"chunks.bin": _write_chunks(service, draft / "chunks.bin", blocks)}
        finally:
            _let_go(service, *blocks)
        save_file(arrays, draft / "tables.safetensors")
        manifest["files"]["tables.safetensors"] = _checksum(draft / "tables.safetensors")
        if alone:
            manifest["sha256"] = _content_digest(manifest, draft / "tables.safetensors")
        (draft / "manifest.json").write_text(json.dumps({**manifest, "checksum": _seal(manifest)}, indent=1))
        for file in (*draft.iterdir(), draft):
            sync(file)
        os.rename(draft, folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"checkpoint {str(folder)!r} cannot be written: {error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def load(service: Service, path: str | Path, alone: bool = False) -> None:
    """Restore a checkpoint into a new service. A damaged or foreign checkpoint changes nothing. `alone`, as in `save`:
    what writers held waits for them (`Service.claim`) until `Service.unclaimed` leaves."""
    folder = Path(path)
    manifest = _read_manifest(folder)
    for name in ("tables.safetensors", "chunks.bin"):
        if _checksum(folder / name) != manifest["files"][name]:
            raise RunError(f"{str(folder / name)!r} is damaged: its size or checksum is not what was written")
    try:
        arrays = load_file(folder / "tables.safetensors")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{str(folder / 'tables.safetensors')!r} cannot be read: {error}") from None
    with service.standing_still() as live:
        if any(table.limiter.inserts for table in live.values()) or service.chunks.num_held:
            raise UserError("a checkpoint can only be loaded into a service that was not used yet")
        _compare(service, manifest, folder)
        for index, words in enumerate(manifest["tables"]):
            live[words["table"]["name"]].check(arrays[f"{index}/priorities"])
        _restore(service, live, manifest, arrays, folder, alone)


def sequence_of(folder: Path) -> int:
    """The number of a checkpoint among those beside it, from 1: later ones have higher numbers. 0 if it has none."""
    try:
        found = _read_manifest(folder).get("sequence")
    except PappusError:
        return 0
    return found if type(found) is int else 0


def digest_of(folder: Path) -> str:
    """A hash of all that a checkpoint of a service with its clients holds, whatever it is called."""
    return str(_read_manifest(folder)["sha256"])


def difference(one: Path, two: Path) -> str:
    """The first part in which two checkpoints of services with their clients differ; empty if in none."""
    manifests, arrays = [], []
    for folder in (one, two):
        manifests.append(_read_manifest(folder))
        arrays.append(load_file(folder / "tables.safetensors"))
    if found := nest_difference(*arrays) or nest_difference(*(manifest["tables"] for manifest in manifests)):
        return found
    return "rows" if manifests[0]["sha256"] != manifests[1]["sha256"] else ""


def is_own(folder: Path) -> bool:
    """Whether the keeper of the folder around it wrote a checkpoint under a name of its own."""
    try:
        return _read_manifest(folder).get("own") is True
    except PappusError:
        return False


def remove_drafts(folder: Path) -> None:
    """Remove the remains of killed saves, but no checkpoint that is being written."""
    for path in folder.iterdir() if folder.is_dir() else ():
        found = DRAFT.fullmatch(path.name)
        if found and not _is_written(int(found["process"]), int(found["thread"])):
            shutil.rmtree(path, ignore_errors=True)


def _is_written(process: int, thread: int) -> bool:
    if process == os.getpid():  # in a container a server may have the number that the last one had
        return thread in {running.ident for running in threading.enumerate()}
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _snapshot(service: Service, alone: bool) -> tuple[dict[str, Any], dict[str, Array], list[Array]]:
    """A consistent copy of all records, and the chunks with the rows, held, in blocks."""
    with service.standing_still() as live:
        states = [table.state() for table in live.values()]
        tables = [_describe(table) for table in live.values()]
        held = np.flatnonzero(service.chunks.holders)
        service.chunks.hold(held)
        following = service.chunks.following.copy()
        arrays: dict[str, Array] = {}
        if alone:
            arrays |= {"free": service.chunks.free.copy(), "written": np.flatnonzero(service.chunks.by_writers)}
    touched = []
    for index, state in enumerate(map(in_order, states)):
        touched.append(service.chunks.spanned(state["windows/base"], state["windows/span"]))
        arrays.update({f"{index}/{name}": array for name, array in state.items()})
    # Chunks of the oldest items first: writers need them next.
    touched.append(arrays.get("written", np.zeros(0, np.int64)))
    distinct, where = np.unique(np.concatenate(touched), return_index=True)
    chunks = distinct[np.argsort(where)]
    _let_go(service, np.setdiff1d(held, chunks))
    arrays["chunks"] = chunks
    arrays["following"] = np.where(np.isin(following[chunks], chunks), following[chunks], -1)
    layout = service.layout
    block_chunks = max(1, BLOCK_BYTES // max(1, layout.chunk_length * layout.step_bytes))
    manifest = {
        "format": FORMAT, "tables": tables, "chunk_length": layout.chunk_length, "num_chunks": len(chunks),
        "block_chunks": block_chunks,
        "signature": {name: [list(spec.shape), spec.dtype] for name, spec in layout.signature.items()},
    }
    return manifest, arrays, _blocks(chunks, block_chunks)


def _write_chunks(service: Service, path: Path, blocks: list[Array]) -> list[int]:
    """Write and release chunks, block by block; returns size and checksum."""
    size = crc = 0
    with path.open("wb") as file:
        while blocks:
            rows = _rows(service, blocks[0])
            for name in service.layout.signature:
                data = service.read(name, rows).reshape(-1).view(np.uint8).data
                file.write(data)
                size, crc = size + len(data), zlib.crc32(data, crc)
            _let_go(service, blocks.pop(0))
    return [size, crc]


def _let_go(service: Service, *blocks: Array) -> None:
    with service.standing_still():
        for block in blocks:
            service.chunks.release(block)


def _describe(table: LiveTable) -> dict[str, Any]:
    return {
        "table": table.table.to_dict(), "limiter": table.limiter.to_list(), "random": table.rng.bit_generator.state,
        "counts": [table.limiter.inserts, table.limiter.samples, table.limiter.deletes], "past": table.past,
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        found, seal = manifest["format"], manifest.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{str(folder)!r} is no checkpoint of a replay service: {error!r:.200}") from None
    if found != FORMAT:
        raise UserError(f"{str(folder)!r} is in the format {found!r:.60}, and this reads {FORMAT!r}")
    if seal != _seal(manifest):
        raise RunError(f"{str(folder / 'manifest.json')!r} is damaged: it is not what was written")
    return dict(manifest)


def _seal(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _compare(service: Service, manifest: dict[str, Any], folder: Path) -> None:
    """Raise `UserError` unless the checkpoint has the tables of the service, and fits."""
    layout = service.layout
    theirs = {words["table"]["name"]: table_from(words["table"]) for words in manifest["tables"]}
    for name in sorted(theirs.keys() | service.tables.keys()):
        if name not in theirs or name not in service.tables:
            raise UserError(f"checkpoint {str(folder)!r} and the service do not both have a table {name!r}")
        one, two = theirs[name], service.tables[name]
        if (one.max_size, one.to_dict()["signature"]) != (two.max_size, two.to_dict()["signature"]):
            raise UserError(f"table {name!r} has another max_size or signature in checkpoint {str(folder)!r}")
        if one.lead < two.lead:
            raise UserError(f"items of table {name!r} have lead={one.lead} in {str(folder)!r}, less than {two.lead}")
    if list(manifest["signature"]) != list(layout.signature) or manifest["chunk_length"] != layout.chunk_length:
        raise UserError(f"checkpoint {str(folder)!r} has other columns or another chunk_length; use the same tables")
    if manifest["num_chunks"] > layout.num_chunks:
        steps = manifest["num_chunks"] * layout.chunk_length
        raise UserError(f"checkpoint {str(folder)!r} holds {steps} steps, which do not fit; raise max_steps to that")


def _restore(
    service: Service, live: dict[str, LiveTable], manifest: dict[str, Any], arrays: dict[str, Array], folder: Path,
    alone: bool,
) -> None:
    """Take chunks, and adapt all records to their numbers."""
    old, chunks, length = arrays["chunks"], service.chunks, service.layout.chunk_length
    taken, written = _take(service, arrays) if alone else (chunks.take(len(old)), old[:0])
    assert taken is not None  # `_compare` saw that they fit
    renamed = np.full(int(old.max(initial=-1)) + 2, -1, np.int64)
    renamed[old] = taken
    follows = arrays["following"]
    known = (follows >= 0) & (follows < len(renamed))
    chunks.following[taken] = np.where(known, renamed[np.where(known, follows, -1)], -1)
    with (folder / "chunks.bin").open("rb") as file:
        _read_rows(service, file, taken, manifest["block_chunks"])
    for index, words in enumerate(manifest["tables"]):
        table = live[words["table"]["name"]]
        mine = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(f"{index}/")}
        base = mine["windows/base"]
        mine["windows/base"] = renamed[base // length] * length + base % length
        # Bounds that were moved come back, unless the table was given other ones since.
        given = table.table.rate_limiter.to_list()
        same = given == words["table"]["rate_limiter"]
        table.limiter = limiter_from(words["limiter"] if same else given, *words["counts"])
        then = table_from(words["table"])
        for order in ("sampler", "remover"):  # the same selector continues exactly, another one in the order of age
            if getattr(then, order) != getattr(table.table, order):
                mine[f"{order}_order"] = mine["keys"] % table.table.max_size
        table.restore(mine, alone)
        table.rng.bit_generator.state = words["random"]
        table.past = words.get("past", table.past)  # older checkpoints do not say
    service.unclaimed.chunks.update(dict.fromkeys(written.tolist()))
    chunks.release(np.setdiff1d(taken, written), chunks.by_writers)  # only their items hold them from now on


def _take(service: Service, arrays: dict[str, Array]) -> tuple[Array | None, Array]:
    """Take the same chunks again where the service has as many as it had, and other ones elsewhere; those taken, and
    which of them belong to writers."""
    old, free, chunks = arrays["chunks"], arrays.get("free"), service.chunks
    if free is None or len(old) + len(free) != service.layout.num_chunks:
        return chunks.take(len(old)), old[:0]
    chunks.take_again(old, free)
    return old, arrays["written"]


def _blocks(chunks: Array, count: int) -> list[Array]:
    return [chunks[i : i + count] for i in range(0, len(chunks), count)]


def _rows(service: Service, chunks: Array) -> Array:
    length = service.layout.chunk_length
    return (chunks[:, None] * length + np.arange(length)).reshape(-1)


def _read_rows(service: Service, file: BinaryIO, taken: Array, block_chunks: int) -> None:
    for block in _blocks(taken, block_chunks):
        rows = _rows(service, block)
        for name, spec in service.layout.signature.items():
            data = file.read(len(rows) * spec.nbytes)
            service.chunks.columns[name][rows] = np.frombuffer(data, spec.dtype).reshape(len(rows), *spec.shape)
        service.pack(block)


def _content_digest(manifest: dict[str, Any], tables: Path) -> str:
    """Of all but names. Rows, which may be many, count by their size and checksum, which are known already."""
    words = [manifest["tables"], manifest["files"]["chunks.bin"]]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode() + tables.read_bytes()).hexdigest()


def _checksum(path: Path) -> list[int]:
    size = crc = 0
    try:
        with path.open("rb") as file:
            while data := file.read(BLOCK_BYTES):
                size, crc = size + len(data), zlib.crc32(data, crc)
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read: {error}") from None
    return [size, crc]
