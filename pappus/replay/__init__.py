"""Experience storage, on its own or in a run: tables over shared steps (docs/concepts/replay.md).

    service = Service([prioritized_replay("replay", 1_000_000, signature, lead=3)])
    client = Client.of(service)              # or connect("host:port")
    with client.writer(envs=64) as writer: …
    batch = client.sample("replay", 512, Trajectory(obs=col("obs").stack(4)[0], …))
"""

from pappus.replay.client import Batch, Client, Sampler
from pappus.replay.connecting import connect
from pappus.replay.fields import Field, col, concatenate
from pappus.replay.rate_limiters import min_size, sample_to_insert_ratio
from pappus.replay.service import Service
from pappus.replay.sharded import ShardedClient
from pappus.replay.tables import (
    FIFO,
    LIFO,
    MAX_HEAP,
    MIN_HEAP,
    UNIFORM,
    Table,
    prioritized,
    prioritized_replay,
    queue,
    stack,
    uniform_replay,
)
from pappus.replay.trajectories import Trajectory
from pappus.replay.trajectory_writer import TrajectoryWriter
from pappus.types import ArraySpec

__all__ = [
    "FIFO",
    "LIFO",
    "MAX_HEAP",
    "MIN_HEAP",
    "UNIFORM",
    "ArraySpec",
    "Batch",
    "Client",
    "Field",
    "Sampler",
    "Service",
    "ShardedClient",
    "Table",
    "Trajectory",
    "TrajectoryWriter",
    "col",
    "concatenate",
    "connect",
    "min_size",
    "prioritized",
    "prioritized_replay",
    "queue",
    "sample_to_insert_ratio",
    "stack",
    "uniform_replay",
]
