"""A file to which records are appended, and that waits for better times when the disk fails."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from pappus.telemetry.storage import FIRST_RETRY, LONGEST_RETRY, Storage

WAITING_BYTES = 8 << 20
"""What may wait in memory for each file: an hour of metrics and more. Beyond it the oldest records are lost."""


class PatientFile:
    """Appends whole records. Those that cannot be written wait in memory, up to `WAITING_BYTES`, and are tried again
    together with a later one, at first after a second, at last every minute. It never raises `OSError`."""

    def __init__(
        self, path: Path, storage: Storage, header: bytes = b"", name: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`header` is what a new file begins with; `name` is what users call it."""
        self._path, self._storage, self._header, self._name = path, storage, header, name or path.name
        self._clock = clock
        self._file: int | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = self._written = 0
        self._retry_at, self._delay = -float("inf"), FIRST_RETRY
        self._attempt()

    def append(self, record: bytes) -> None:
        """Write a record, or keep it for later."""
        self._waiting.append(record)
        self._bytes += len(record)
        if self._clock() >= self._retry_at:
            self._attempt()
        while self._bytes > WAITING_BYTES:
            self._bytes -= len(self._waiting.popleft())
            self._storage.lose(self._name)

    def settle(self) -> None:
        """Try a last time; what still waits then is lost."""
        if self._waiting:
            self._attempt()
            self._storage.lose(self._name, len(self._waiting))
            self._waiting.clear()
            self._bytes = 0

    def close(self) -> None:
        self.settle()
        self._close()

    def _attempt(self) -> None:
        try:
            self._open()
            waited = len(self._waiting)
            while self._waiting:
                self._write(self._waiting[0])
                self._bytes -= len(self._waiting.popleft())
                self._written += 1
        except OSError as error:
            self._retry_at, self._delay = self._clock() + self._delay, min(2 * self._delay, LONGEST_RETRY)
            reason = error.strerror or str(error)
            self._storage.failed(
                self._name, f"{str(self._path)!r} cannot be written: {reason}; the run goes on, and up to "
                f"{WAITING_BYTES >> 20} MiB of it wait in memory until there is room"
            )
        else:
            self._retry_at, self._delay = -float("inf"), FIRST_RETRY
            lost = f"{self._storage.lost[self._name]:,} are lost"
            text = f"{str(self._path)!r} is written again, with {waited:,} records that waited; {lost}"
            self._storage.works(self._name, text)

    def _open(self) -> None:
        """A removed file keeps its descriptor, which would take everything and keep nothing."""
        if self._file is not None and not self._is_there(self._file):
            self._close()
            self._storage.gone(self._name, self._written, str(self._path))
            self._written = 0
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if self._header and os.fstat(self._file).st_size == 0:
            self._write(self._header)

    def _is_there(self, file: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(file))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _write(self, record: bytes) -> None:
        """All of a record or nothing of it."""
        assert self._file is not None
        size, rest = os.fstat(self._file).st_size, memoryview(record)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
