"""`pappus replay serve`: a standalone replay service."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from pappus.config import WireConfig
from pappus.errors import INCOMPLETE, PappusError, UserError
from pappus.replay.clients.connect import near_socket
from pappus.replay.serve.config_file import load_tables
from pappus.replay.service.checkpoint import load, remove_drafts
from pappus.replay.service.retention import newest_first, newest_own, remove_own, write_own
from pappus.replay.service.service import Service
from pappus.replay.storage.memory import projected
from pappus.replay.wire.sockets import SharedMemory, SocketServer
from pappus.telemetry.processes import set_title
from pappus.transports.addresses import check_free, check_wire, with_port

REPORT_SECONDS = 10.0
KEPT = 2
"""Checkpoints that are kept: the newest, and the one before it in case the newest is damaged."""


class StandAlone:
    """Serves the tables of a file over gRPC, and to processes of this machine through shared memory."""

    def __init__(self, config: str, wire: WireConfig, checkpoints: str, every: float) -> None:
        check_wire(wire, "--")
        check_free(wire.listen)
        if every and not checkpoints:
            raise UserError("--every needs --checkpoints, a folder to write them to")
        if every < 0:
            raise UserError(f"every={every:g} must be a number of seconds, or 0 for never")
        found = load_tables(config)
        memory = SharedMemory()
        self._service = Service(found.tables, found.max_steps, found.chunk_length, 0, found.compress, memory.allocate)
        _say(f"{projected(self._service.layout)} at most")
        self._folder, self._every = Path(checkpoints) if checkpoints else None, every
        if self._folder is not None:
            remove_drafts(self._folder)
        self._restore()
        from pappus.replay.wire.grpc_wire import GrpcServer

        self._server = GrpcServer(self._service, wire, checkpoints)
        self.address = self._server.address
        path = near_socket(self.address)
        self._near = SocketServer(self._service, memory, path) if path else None
        self._stopped = threading.Event()
        self._reported: dict[str, str] = {}
        self._failing = False
        """Whether the last checkpoint could not be written."""

    def run(self) -> int:
        """Serve until SIGINT or SIGTERM; returns the exit code, `INCOMPLETE` if the last checkpoint was not written."""
        set_title("replay")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        _say(f"listening on {self.address}; Ctrl-C ends it")
        saved = reported = time.monotonic()
        while not self._stopped.wait(0.2):
            now = time.monotonic()
            if now - reported >= REPORT_SECONDS:
                self._report()
                reported = now
            if self._every and now - saved >= self._every:
                self._save()
                saved = time.monotonic()
        self.close()
        return INCOMPLETE if self._failing else 0

    def close(self) -> None:
        """End all sessions, and write a last checkpoint with everything that was confirmed to clients."""
        self._server.close()
        if self._near is not None:
            self._near.close()
        if self._folder is not None:
            self._save()
        self._service.close()

    def _restore(self) -> None:
        """Restore the newest checkpoint that is not damaged."""
        problems = []
        for folder in newest_first(self._folder) if self._folder is not None else ():
            try:
                load(self._service, folder)
            except PappusError as error:
                problems.append(str(error))
                continue
            sizes = ", ".join(f"{name} {self._service.info(name)['size']:,} items" for name in self._service.tables)
            _say(f"restored from {folder}: {sizes}")
            return
        if problems:
            raise UserError(f"no checkpoint can be used: {problems[0]}; move them away to begin with empty tables")

    def _save(self) -> None:
        assert self._folder is not None
        began = time.monotonic()
        try:
            written = write_own(self._service, self._folder)
        except (PappusError, OSError) as error:
            if not self._failing:  # told once, though it is tried again every time
                _say(f"{error}; the server continues without it")
            self._failing = True
            return
        self._failing = False
        _say(f"wrote {written} in {time.monotonic() - began:.1f} s")
        remove_own(self._folder, newest_own(self._folder, KEPT))

    def _report(self) -> None:
        """Print each table whose state has changed since the last report."""
        for name in self._service.tables:
            info = self._service.info(name)
            text = (
                f"{info['size']:,} of {info['max_size']:,} items, {info['inserts']:,} inserted, "
                f"{info['samples']:,} sampled; {self._service.explain(name)}"
            )
            if info["refused"]:
                text += f"; {info['refused']:,} refused for their values"
            if self._reported.get(name) != text:
                self._reported[name] = text
                _say(f"{name}: {text}")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped.set()


def main(words: list[str], parser: argparse.ArgumentParser) -> int:
    """The command line."""
    parser.add_argument("--config", required=True, help="YAML file that defines the tables (docs/concepts/replay.md)")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="ADDRESS", help="HOST:PORT or unix:PATH")
    parser.add_argument("--checkpoints", default="", metavar="DIR", help="restore the newest; write one at the end")
    parser.add_argument("--every", type=float, default=0.0, metavar="SECONDS", help="also write in this interval")
    parser.add_argument("--token-file", default="", help="file with the token that clients must present")
    parser.add_argument("--certificate", default="", help="TLS: the server's certificate chain (PEM)")
    parser.add_argument("--key", default="", help="TLS: its private key (PEM)")
    parser.add_argument("--client-authority", default="", help="mutual TLS: CA of the clients' certificates (PEM)")
    parser.add_argument("--insecure", action="store_true", help="allow other machines without a token or TLS")
    given = parser.parse_args(words)
    wire = WireConfig(
        with_port(given.listen), given.token_file, given.certificate, given.key, given.client_authority, given.insecure
    )
    return StandAlone(given.config, wire, given.checkpoints, given.every).run()


def _say(text: str) -> None:
    print(f"pappus replay: {text}", file=sys.stderr, flush=True)
