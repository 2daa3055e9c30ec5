"""Files of a run for nodes that do not see its directory: what a role saves there is sent to the driver's node, and
what it begins with is fetched from it. Where all nodes see the directory nothing is sent.

One writer: whoever saves writes below the same path on its own node, and the registry, on the driver's node, writes
the same bytes there. Only the driver gives a checkpoint its name, after all of it has arrived.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PIECE = 16 << 20
CALL_SECONDS = 300.0
"""For one piece, or a listing."""
REPLAY = "replay"
"""The folder of tables within a run's directory."""


class Shipping:
    """One process's share of a run's files. `registry` is a Ray actor with `write`, `read` and `listing`."""

    def __init__(self, registry: Any, marker: Path) -> None:
        self._registry, self._root = registry, marker.parent
        self.needed = not marker.exists()
        self._sent: set[Path] = set()

    def send(self, directory: Path) -> None:
        """What this process has written for a checkpoint."""
        if not self.needed:
            return
        directory.mkdir(parents=True, exist_ok=True)
        tables = self._root / REPLAY
        for path in [*_files(directory), *(path for path in _files(tables) if path not in self._sent)]:
            self._send_file(path)
            self._sent.add(path)
        shutil.rmtree(directory, ignore_errors=True)

    def fetch(self, checkpoint: Path, names: Iterable[str]) -> None:
        """What the roles of these names begin with."""
        if not self.needed:
            return
        wanted = [f"{name}." for name in names if name]
        for text in self._ask("listing", str(checkpoint)):
            if Path(text).name.startswith(tuple(wanted)):
                self._fetch_file(Path(text))
        if f"{REPLAY}." in wanted:
            for text in self._ask("listing", str(self._root / REPLAY)):
                self._fetch_file(Path(text))
                self._sent.add(Path(text))

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

    def _ask(self, method: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self._registry, method).remote(*arguments), timeout=CALL_SECONDS)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder.is_dir() else []
