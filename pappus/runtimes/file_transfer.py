"""Files of a run for nodes that do not see its directory: what a role saves is sent to the driver's node, and what it
begins with is fetched from there. The registry, on the driver's node, writes below the same path as the role on its
own. Only the driver gives a checkpoint its name, after all of it has arrived.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pappus.data.recorder import SPEC
from pappus.roles.replay_server import FOLDER
from pappus.telemetry.checkpoint import run_directory

PIECE = 16 << 20


class FileTransfer:
    """The files of one process's roles. `ask` calls a method of the registry; `tables`: a role holds replay tables."""

    def __init__(self, ask: Callable[..., Any], marker: Path, roles: Sequence[str], tables: bool = False) -> None:
        self._ask, self._roles, self._tables = ask, roles, tables
        self.needed = not marker.exists()
        self._sent: set[Path] = set()

    def prepare(self, directory: Path) -> None:
        """Roles are about to write into a directory that the driver made on its own node."""
        if self.needed:
            directory.mkdir(parents=True, exist_ok=True)

    def send(self, directory: Path) -> None:
        """Send what the roles have written for a checkpoint. Other roles of this node may be writing, too."""
        if not self.needed:
            return
        for path in self._own(directory):
            self._send_file(path)
            path.unlink()
        if self._tables:
            tables = run_directory(directory) / FOLDER
            for path in [path for path in _files(tables) if path not in self._sent]:
                self._send_file(path)
                self._sent.add(path)
            self._ask("keep_only", str(tables), [path.name for path in tables.glob("*") if path.is_dir()])

    def fetch(self, checkpoint: Path) -> None:
        """Fetch what the roles begin with."""
        if not self.needed:
            return
        for text in self._ask("listing", str(checkpoint)):
            if Path(text).name.split(".")[0] in self._roles:
                self._fetch_file(Path(text))
        for path in self._own(checkpoint):
            if self._tables and path.suffix == ".json":
                for folder in set(re.findall(r"replay-\d+", path.read_text())):
                    for text in self._ask("listing", str(run_directory(checkpoint) / FOLDER / folder)):
                        self._fetch_file(Path(text))
                        self._sent.add(Path(text))

    def _own(self, directory: Path) -> list[Path]:
        return [path for path in _files(directory) if path.name.split(".")[0] in self._roles]

    def _send_file(self, path: Path) -> None:
        with path.open("rb") as file:
            first = True
            while (piece := file.read(PIECE)) or first:
                self._ask("write", str(path), piece, first)
                first = False

    def _fetch_file(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while piece := self._ask("read", str(path), file.tell(), PIECE):
                file.write(piece)


class PartTransfer:
    """Sends what the roles of one process record, while they record it, if their node does not see the folder. The
    part files that an earlier incarnation left on this node go along."""

    def __init__(self, ask: Callable[..., Any], folder: Path | None, roles: Sequence[str]) -> None:
        """`folder` is where the run's parts are; None where it records nothing."""
        self._ask, self._folder, self._roles = ask, folder, roles
        self._needed = folder is not None and not (folder / SPEC).exists()
        self._sent: dict[Path, int] = {}
        self._lock = threading.Lock()

    def send(self) -> None:
        """Send what was added since the last time."""
        if not self._needed:
            return
        with self._lock:
            for path in self._own():
                sent = self._sent.get(path, 0)
                with path.open("rb") as file:
                    file.seek(sent)
                    while piece := file.read(PIECE):
                        self._ask("write", str(path), piece, self._sent.get(path, 0) == 0)
                        self._sent[path] = self._sent.get(path, 0) + len(piece)

    def end(self) -> None:
        """Send the rest, and leave nothing here."""
        self.send()
        for path in self._own() if self._needed else ():
            path.unlink()

    def _own(self) -> list[Path]:
        assert self._folder is not None
        return [path for path in _files(self._folder) if path.name.split(".")[0] in self._roles]


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder.is_dir() else []
