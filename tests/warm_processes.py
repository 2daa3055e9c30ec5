"""Processes that need not import torch: tests fork them from a template that imported everything once.

    pytest ──▶ template (multiprocessing's fork server) ──fork──▶ pappus.cli.main(words) ──fork──▶ its fork server
                                                        ──fork──▶ the fork server of a run in pytest's own process

Importing costs two CPU seconds in each new interpreter, more than most of these runs do afterwards. Apart from that,
the processes are those of a user: they have the same code, titles, parents, signals and files. `python -m pappus`
itself is tested in `test_cli.py`, `test_processes.py` and `test_population.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, Protocol

from setproctitle import getproctitle

from pappus.runtimes import forkserver
from pappus.runtimes.forkserver import ForkServer

ROOT = Path(__file__).parent.parent
_template = multiprocessing.get_context("forkserver")
_template.set_forkserver_preload(["pappus.api", "pappus.remote", "pappus.cli", "pappus.commands.train", __name__])


class Command(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int) -> None: ...
    def kill(self) -> None: ...


class Descriptor:
    """A descriptor that goes along to a forked process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.number),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class Forked:
    """A process that was forked from the template, with this process's environment, priority, folder and output (or
    another)."""

    def __init__(self, target: Callable[..., NoReturn], *arguments: Any, output: Sequence[int] = (1, 2)) -> None:
        priority = os.getpriority(os.PRIO_PROCESS, 0)
        arguments = (dict(os.environ), [Descriptor(number) for number in output], priority, target, *arguments)
        self._process = _template.Process(target=_begin, args=arguments, daemon=True)  # pytest does not wait for it
        threads = os.environ.get("OPENBLAS_NUM_THREADS")
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the template: its threads would not survive a fork
        try:
            self._process.start()
        finally:
            del os.environ["OPENBLAS_NUM_THREADS"]
            os.environ |= {} if threads is None else {"OPENBLAS_NUM_THREADS": threads}
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; a signal's number, negative, if that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _begin(
    environment: dict[str, str], output: list[Descriptor], priority: int, target: Callable[..., NoReturn],
    *arguments: Any,
) -> NoReturn:
    getproctitle()  # finds the title's place beside the environment, before that changes
    if priority != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, priority)
    os.environ.clear()
    os.environ.update(environment)
    for number, descriptor in enumerate(output, 1):
        os.dup2(descriptor.number, number)
        os.close(descriptor.number)
    target(*arguments)


class Child:
    """A process that this one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; whoever ends a fork server closes its socket first, and it leaves at once."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def start(log: Path, *words: str) -> Forked:
    """A `pappus` command that writes all it says to a file."""
    with log.open("w") as file:
        return Forked(_command, ROOT, list(words), output=(file.fileno(), file.fileno()))


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A `pappus` command that was given in a folder, when it has ended."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as error:
        code = Forked(_command, folder, line.split(), output=(output.fileno(), error.fileno())).wait(120)
        texts = [file.seek(0) or file.read() for file in (output, error)]
        return subprocess.CompletedProcess(line, code, *texts)


def start_interpreter(log: Path, *words: str) -> subprocess.Popen[bytes]:
    """The same in an interpreter of its own, as a shell would."""
    with log.open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "pappus", *words], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
        )


def _command(folder: Path, words: Sequence[str]) -> NoReturn:
    from pappus.cli import main

    os.chdir(folder)
    ForkServer.__init__ = _fork_a_server  # type: ignore[method-assign]
    sys.exit(main(words))


def _fork_a_server(self: ForkServer) -> None:
    """`ForkServer()` where everything is imported: this process is forked, as long as it has no threads."""
    self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        _serve(Descriptor(theirs.fileno()))
    theirs.close()
    self._process = Child(pid)  # type: ignore[assignment]


def fork_servers_from_the_template(self: ForkServer) -> None:
    """`ForkServer()` for a process with threads, such as pytest's own."""
    self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    self._process = Forked(_serve, Descriptor(theirs.fileno()))  # type: ignore[assignment]
    theirs.close()


def _keep_priority() -> None:
    """Linux shares cores among sessions first: without this a new one would have the usual priority."""
    priority, group = os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup")
    if priority != 0 and group.exists():
        group.write_text(str(priority))


def _serve(theirs: Descriptor) -> NoReturn:
    """The server's life, with the descriptors that `ForkServer` would leave it."""
    try:
        os.setsid()
        _keep_priority()
        os.closerange(3, theirs.number)
        os.closerange(theirs.number + 1, 1 << 16)
        forkserver.serve(theirs.number)
    finally:
        os._exit(1)
