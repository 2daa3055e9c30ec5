"""Processes that start fast: one server imports torch once and forks a process for every request.

The server is started by `ForkServer`, which talks to it over one socket pair:

    imports   one packet `{"import": […]}`: modules that the processes will need
    request   packets `{"id": …, "descriptors": N}` with N descriptors in all, as many at a time as the system passes: a
              memory file that holds the payload, then the process's own
    answers   one packet each: `{"id": …, "pid": …}` when a process runs, `{"id": …, "status": …}` when it ended,
              `{"id": …, "failed": …}` when the system lets no process begin

No process is orphaned: when its socket closes, for whatever reason, the server kills all processes and exits; when the
server itself dies, the kernel kills the processes (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pappus.polling import allow_many_descriptors, readable
from pappus.runtimes.connections import PacketConnection
from pappus.telemetry.usage import descendants

MAX_DESCRIPTORS = 250
"""The kernel passes at most 253 descriptors with one packet."""
_PACKET = 1 << 16
_prestarted: ForkServer | None = None
_shared = False
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class ForkServer:
    """The client's side: requests processes."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"from pappus.runtimes.forkserver import serve; serve({theirs.fileno()})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would not survive a fork
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            start_new_session=True, env=environment,  # Ctrl-C in the terminal is for the main process alone
        )
        theirs.close()

    @classmethod
    def prestart(cls) -> None:
        """Begin the server's imports now, while the client does its own."""
        global _prestarted
        if _prestarted is None:
            _prestarted = cls()

    @classmethod
    def started(cls) -> ForkServer:
        """The server that was prestarted, or a new one."""
        global _prestarted
        server, _prestarted = _prestarted or cls(), None
        return server

    @classmethod
    @contextlib.contextmanager
    def shared(cls) -> Iterator[None]:
        """Runs in here, one after the other, have the same server: only the first one waits for its imports."""
        global _shared
        _shared = True
        try:
            yield
        finally:
            _shared = False
            cls.discard()

    @classmethod
    def discard(cls) -> None:
        """End the server that was prestarted: a run in one thread needs neither its core nor its memory."""
        global _prestarted
        if _shared:
            return
        server, _prestarted = _prestarted, None
        if server is not None:
            server._process.kill()
            server.close(1.0)

    def prepare(self, modules: Sequence[str]) -> None:
        """Have modules imported once, on pages that the processes share, and not by each process."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next answers say so
            self.socket.send(json.dumps({"import": list(modules)}).encode())

    def request(self, id: str, payload: bytes, descriptors: Sequence[int]) -> None:
        """Ask for a process that runs `role_process.main(payload, descriptors)`."""
        from pappus.transports.memory import anonymous_file  # numpy would delay the start of the server

        file = anonymous_file()
        try:
            with open(file, "wb", closefd=False) as out:
                out.write(payload)
            all_of_them = [file, *descriptors]
            packet = json.dumps({"id": id, "descriptors": len(all_of_them)}).encode()
            for start in range(0, len(all_of_them), MAX_DESCRIPTORS):
                socket.send_fds(self.socket, [packet], all_of_them[start : start + MAX_DESCRIPTORS])
        except (BrokenPipeError, ConnectionResetError):
            pass  # the next read of the answers finds the socket closed
        finally:
            os.close(file)

    def answers(self) -> list[dict[str, Any]]:
        """All answers that have arrived; `{"closed": True}` when the server is gone."""
        try:
            return PacketConnection(self.socket).receive()
        except ConnectionResetError:
            return [{"closed": True}]

    def release(self, idle: bool, timeout: float) -> None:
        """The run is over. Another one may have the server if it is `idle`: no process is left, and none to come."""
        global _prestarted
        if _shared and idle and _prestarted is None:
            _prestarted = self
        else:
            self.close(timeout)

    def close(self, timeout: float) -> None:
        """End the server and with it every process that is left."""
        self.socket.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(fd: int) -> NoReturn:
    """The server: import what every process needs, then fork on request until the socket closes."""
    from pappus.telemetry.processes import not_for_me, set_title

    allow_many_descriptors()
    not_for_me()  # a scheduler that ends a job signals all its processes, and a run without them cannot be saved
    import pappus.runtimes.role_process
    import pappus.topologies.impala
    import pappus.topologies.seed  # noqa: F401

    set_title("forkserver")
    _adopt_orphans()
    server = socket.socket(fileno=fd)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()  # objects of the server stay on pages that processes share
    children: dict[int, str] = {}
    try:
        while True:
            ready = readable([server.fileno(), wake_read], math.inf)
            if wake_read in ready:
                os.read(wake_read, 4096)
                _report_ended(server, children)
            if server.fileno() in ready and not _serve_request(server, children):
                break
    except (BrokenPipeError, ConnectionResetError):
        pass  # the main process is gone
    _end_all()
    os._exit(0)


def _adopt_orphans() -> None:
    """Processes of envs whose role was killed become children of the server: it ends them, and waits for them, so that
    what they computed is counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_all() -> None:
    """Kill all processes and wait for them; then their children, which become the server's."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            ended, _ = os.waitpid(-1, 0)
            while ended:
                ended, _ = os.waitpid(-1, os.WNOHANG)


def _report_ended(server: socket.socket, children: dict[int, str]) -> None:
    with contextlib.suppress(ChildProcessError):  # there is none
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            id = children.pop(pid, None)
            if id is not None:  # otherwise it was adopted
                server.send(json.dumps({"id": id, "status": os.waitstatus_to_exitcode(status)}).encode())


def _serve_request(server: socket.socket, children: dict[int, str]) -> bool:
    words, descriptors = _receive(server)
    while words and len(descriptors) < words.get("descriptors", 0):
        words, more = _receive(server)
        descriptors += more
    if not words:
        return False
    if "import" in words:
        _import(words["import"])
        return True
    id, server_pid = words["id"], os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        server.send(json.dumps({"id": id, "failed": error.strerror}).encode())
        return True
    if pid == 0:
        _become_role_process(server, server_pid, descriptors)
    for fd in descriptors:
        os.close(fd)
    children[pid] = id
    server.send(json.dumps({"id": id, "pid": pid}).encode())
    return True


def _receive(server: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One packet, empty when there will be no more, and the descriptors that came with it."""
    packet, descriptors, flags, _ = socket.recv_fds(server, _PACKET, MAX_DESCRIPTORS)
    if flags & socket.MSG_CTRUNC:
        raise RuntimeError(f"descriptors were lost: {descriptors[-1:]} is near the limit of open files (ulimit -n)")
    return json.loads(packet) if packet else {}, descriptors


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception):  # the process that needs it says what is wrong
            importlib.import_module(name)
    gc.freeze()


def _become_role_process(server: socket.socket, server_pid: int, descriptors: Sequence[int]) -> NoReturn:
    code = 1
    try:
        _die_with_parent(server_pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        payload_file, *rest = descriptors
        os.lseek(payload_file, 0, os.SEEK_SET)
        with open(payload_file, "rb") as file:
            payload = file.read()
        from pappus.runtimes import role_process

        code = role_process.main(payload, rest)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the call above
