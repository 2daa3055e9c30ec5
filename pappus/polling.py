"""Waiting for descriptors, however many the process has open."""

from __future__ import annotations

import math
import resource
import select
from collections.abc import Sequence

FD_SETSIZE = 1024
MANY_DESCRIPTORS = 65_536
"""Enough for ten thousand processes; where the limit is higher, it stays."""


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Those that can be read, or whose other end is gone; empty when time is up. `select` takes no descriptor above
    1,023, and `poll` no time below a millisecond: many waits of actors are shorter."""
    if max(descriptors, default=0) < FD_SETSIZE:
        return select.select(descriptors, [], [], None if math.isinf(seconds) else seconds)[0]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if math.isinf(seconds) else 1000 * seconds)]


def allow_many_descriptors() -> None:
    """Raise this process's own limit as far as the system lets it: many systems begin with 1,024, about 335 actors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MANY_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
