"""All-reduce through torch.distributed: gloo between CPUs, nccl between GPUs.

Member 0 listens on a loopback port and writes its number into the block; the others find it there.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pappus.edges.edge import Port
from pappus.errors import RunError
from pappus.polling import readable
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import Block, Notifier

HOST = "127.0.0.1"
START_SECONDS = 120.0
"""Members that have not found each other by then never will."""
SUM_SECONDS = 600.0
"""A sum that is not complete by then is an error: a member hangs. A dead one is noticed at once."""
GRACE_SECONDS = 10.0
"""Delay before a failed sum is an error: by then the supervisor knows which member died, and says so."""


class TorchAllReduce:
    """Members of one process group."""

    def __init__(self, name: str, members: int, backend: str, block: Block) -> None:
        self.name, self.members, self.backend = name, members, backend
        self.meter = Meter()
        self._port, self._notifiers = block.memory.view(np.int64)[:1], block.notifiers

    def member(self, index: int) -> TorchMember:
        """The end of the member of that number; returns when all have found each other."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # its sockets are for this machine only
        store = self._listen() if index == 0 else self._find(index)
        dist.init_process_group(
            self.backend, store=store, rank=index, world_size=self.members, timeout=timedelta(seconds=SUM_SECONDS)
        )
        return TorchMember(self, index, self._notifiers[index])

    def _listen(self) -> Any:
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        store = self._store(port, master_listen_fd=listener.detach(), is_master=True)
        self._port[0] = port
        for notifier in self._notifiers[1:]:
            notifier.notify()
        return store

    def _find(self, index: int) -> Any:
        notifier = self._notifiers[index]
        readable([notifier.fileno()], START_SECONDS)
        notifier.clear()
        if not self._port[0]:
            raise RunError(f"the first of {self.members} learners did not start within {START_SECONDS:.0f} s")
        return self._store(int(self._port[0]), is_master=False)

    def _store(self, port: int, **settings: Any) -> Any:
        make: Any = dist.TCPStore  # type: ignore[attr-defined]
        return make(
            HOST, port, self.members, timeout=timedelta(seconds=START_SECONDS), wait_for_workers=False, **settings
        )


class TorchMember(Port):
    """One learner's end of a process group."""

    def __init__(self, all_reduce: TorchAllReduce, index: int, notifier: Notifier) -> None:
        super().__init__(all_reduce.name, notifier)
        self.member, self.members = index, all_reduce.members
        self._on_device, self._meter = all_reduce.backend == "nccl", all_reduce.meter
        self._work: Any = None
        self._done, self._failure, self._failed_at = False, "", 0.0

    def bring(self, flat: torch.Tensor) -> None:
        """Start the sum, in place and in the background."""
        self._done = self._on_device  # later work of the same stream sees the sum
        self._work = dist.all_reduce(flat, async_op=True)
        if not self._on_device:
            self._work.get_future().add_done_callback(self._note)

    def _note(self, future: Any) -> None:
        self._done = True
        self._notifier.notify()

    def collect(self, flat: torch.Tensor) -> bool:
        if not self._done:
            return False
        if self._failure:
            if time.monotonic() - self._failed_at > GRACE_SECONDS:
                raise RunError(f"the gradients of {self.members} learners could not be added up: {self._failure}")
            return False
        try:
            self._work.wait()
        except RuntimeError as error:
            self._failure, self._failed_at = str(error).splitlines()[0], time.monotonic()
            return False
        self._meter.total += (self.members - 1) * flat.nbytes  # as if each member sent its own to all others
        return True

    def explain(self) -> str:
        return self._failure or f"not all of {self.members} have contributed"
