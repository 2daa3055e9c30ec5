"""Ray's worker processes, forked from a template that imported everything once.

    raylet ──starts──▶ this file ──asks──▶ template ──fork──▶ template of the node ──fork──▶ worker

Importing Ray, torch and Pappus costs up to three CPU seconds in each new interpreter, more than most roles of the tests
do afterwards. Apart from that, the processes are those of a user. `test_ray_processes.py` has a Ray that starts them
itself.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

ADDRESS = "PAPPUS_TEST_RAY_TEMPLATE"
"""The environment variable that says where the template listens."""
READ_AT_IMPORT = ("RAY_RAYLET_PID", "RAY_JOB_ID")
"""Variables whose values Ray keeps from its import on: workers that differ in them need templates that differ."""
PACKET = 1 << 17
"""Bytes that arguments and environment may take."""


@contextmanager
def worker_path() -> Iterator[str]:
    """The `worker_path` of Ray's nodes; it works as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        os.environ[ADDRESS] = f"{folder}/template"
        listener.bind(os.environ[ADDRESS])
        listener.listen(64)
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OPENBLAS_NUM_THREADS": "1",  # its threads would not survive a fork
        }
        code = f"from {__name__} import serve; serve({listener.fileno()}, {os.getpid()})"
        with subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, env=environment
        ) as template:
            try:
                yield __file__
            finally:
                template.kill()
                del os.environ[ADDRESS]


def ask() -> None:
    """What the raylet starts: it asks the template for a worker, which tells the raylet its own id, and ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
        template.connect(os.environ[ADDRESS])
        socket.send_fds(template, [json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])


def serve(descriptor: int, parent: int) -> NoReturn:
    """The template: import all but Ray, then pass each request on to the template of its node."""
    import gymnasium  # noqa: F401

    import pappus.api
    import pappus.transports.grpc_mirrors  # noqa: F401
    from pappus.runtimes.forkserver import _die_with_parent

    _die_with_parent(parent)
    listener, nodes = socket.socket(fileno=descriptor), dict[tuple[str, ...], socket.socket]()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asker, _ = listener.accept()
        with asker:
            packet, output, _, _ = socket.recv_fds(asker, PACKET, 3)
        environment = json.loads(packet)[2]
        node = tuple(environment.get(name, "") for name in READ_AT_IMPORT)
        if node not in nodes:
            nodes[node], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                for other in (listener, *nodes.values()):
                    other.close()
                serve_node(theirs, environment)
            theirs.close()
        socket.send_fds(nodes[node], [packet], output)
        for number in output:
            os.close(number)


def serve_node(requests: socket.socket, environment: dict[str, str]) -> NoReturn:
    """The template of a node: import Ray in its environment, then fork a worker for each request until the last one."""
    os.environ.clear()
    os.environ.update(environment)
    import ray._private.workers.default_worker  # noqa: F401

    import pappus.runtimes.ray_cluster  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "threads would not survive a fork"
    gc.freeze()  # objects of the template stay on pages that workers share
    while True:
        packet, output, _, _ = socket.recv_fds(requests, PACKET, 3)
        if not packet:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            become_worker(output, *json.loads(packet))
        for number in output:
            os.close(number)


def become_worker(output: list[int], arguments: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Run Ray's own code."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(output):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv[:] = arguments
        runpy.run_module("ray._private.workers.default_worker", run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)


if __name__ == "__main__":
    ask()
