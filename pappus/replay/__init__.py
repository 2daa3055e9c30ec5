"""Experience storage, on its own or in a run: tables over shared steps (docs/concepts/replay.md).

    service = Service([prioritized_replay("replay", 1_000_000, signature, lead=3)])
    client = Client.of(service)              # or connect("host:port")
    with client.writer(envs=64) as writer: …
    batch = client.sample("replay", 512, Trajectory(obs=col("obs").stack(4)[0], …))
"""

from pappus.replay.clients.client import Client
from pappus.replay.clients.connect import connect
from pappus.replay.clients.sampler import Sampler
from pappus.replay.clients.sharded import ShardedClient
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Batch, Field, Trajectory, col, concatenate
from pappus.replay.service.service import Service
from pappus.replay.tables.limits import Limits
from pappus.replay.tables.rate_limiters import min_size, sample_to_insert_ratio
from pappus.replay.tables.selectors import RandomSelector, Selector
from pappus.replay.tables.table import (
    FIFO,
    LIFO,
    MAX_HEAP,
    MIN_HEAP,
    UNIFORM,
    Selection,
    Table,
    find_selector,
    prioritized,
    prioritized_replay,
    queue,
    stack,
    uniform_replay,
)
from pappus.types import ArraySpec

__all__ = [
    "FIFO", "LIFO", "MAX_HEAP", "MIN_HEAP", "UNIFORM", "ArraySpec", "Batch", "Client", "Field", "Limits",
    "RandomSelector", "Sampler", "Selection", "Selector", "Service", "ShardedClient", "Table", "Trajectory",
    "TrajectoryWriter", "col", "concatenate", "connect", "find_selector", "min_size", "prioritized",
    "prioritized_replay", "queue", "sample_to_insert_ratio", "stack", "uniform_replay",
]
