"""A table that readers fill from a data set: its size, and when it accepts samples.

    fits          as many items as the data has; opens when all of them are in, and is never changed again
    does not fit  as many items as the memory holds; readers stream episodes through it, first in, first out
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import optree

from pappus.config import ReplayConfig
from pappus.core import ItemSink, ItemSource
from pappus.data.checks import check_steps
from pappus.data.dataset import open_dataset
from pappus.data.episode import Episode
from pappus.data.facts import Facts, best_episodes, episode_facts
from pappus.data.identity import identity_of
from pappus.data.reading import for_ever, once, shown
from pappus.edges.edge import PortRef
from pappus.edges.replay import ReplayEdge
from pappus.errors import UserError
from pappus.experience import Experience
from pappus.kinds import READER, REPLAY
from pappus.recording.direct import ReplaySpec, layout_for
from pappus.recording.logged import Logged, items_of
from pappus.replay.service.service import CHUNK_LENGTH
from pappus.replay.storage.memory import total_memory
from pappus.replay.tables.rate_limiters import min_size
from pappus.roles.data_reader import DataReader
from pappus.roles.replay_server import DataTableServer, ReplayHost
from pappus.topologies.program import Program, Run, derive_seed, off_policy
from pappus.transports.private_folder import private_socket
from pappus.types import Array

LANES, LANES_SHARE = 256, 0.25
"""Episodes that a reader plays side by side at most: as many as their share of the memory allows."""
ITEM_BYTES, COLUMN_BYTES = 128, 8
"""What an item takes beside its rows: of itself, and for every column."""
ROW_BYTES = 32
"""What a row takes beside its observation, about."""
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
MEMORY_SHARE = 0.5
"""The share of this machine's memory, or of its container's, that a table may take where nothing is said."""


@dataclass(frozen=True)
class DataTable:
    """A table of data: what its edge is made of, and what its readers do."""

    spec: ReplaySpec
    episodes: Array
    """The numbers of the episodes that are read."""
    items: int
    """Items of all episodes; 0 if they are streamed."""
    readers: int
    lanes: int
    """Episodes that one reader plays side by side."""
    identity: dict[str, Any]
    """What tells these episodes from others."""


def data_table(
    run: Run, config: ReplayConfig, memory: str, best: float, readers: int, prefetch: int, batch_size: int,
    index: int = 0,
) -> DataTable:
    """The table number `index` of a run, for its data."""
    dataset, experience = open_dataset(run.config.data), off_policy(run.algorithm).experience
    all_facts, episodes = episode_facts(dataset), best_episodes(dataset, best)
    check_steps(dataset, int(all_facts.lengths.sum()))
    facts = Facts(*(column[episodes] for column in all_facts))
    items, rows = _size(facts, experience)
    layout, limit = layout_for(run.env_spec, Logged(experience), run.state_spec), memory_limit(memory)
    row_bytes = sum(column.nbytes for column in layout.signature.values())
    lane_rows = 2 * CHUNK_LENGTH * (2 + math.ceil((layout.history + layout.lead) / CHUNK_LENGTH))
    readers = min(readers, len(episodes))
    lane_bytes = row_bytes * (lane_rows + rows / len(episodes))  # what is no item yet, and an episode to play
    lanes = min(LANES, math.ceil(len(episodes) / readers), int(LANES_SHARE * limit / readers / lane_bytes) or 1)
    each = row_bytes * rows / items + ITEM_BYTES + COLUMN_BYTES * len(layout.signature)
    most = config.capacity or _room(limit, readers * lanes, lane_bytes, each, min(items, batch_size))
    capacity, fits = min(items, most), items <= most
    readers = 1 if fits else readers  # one that came back would push out what others have read
    warm_up = min(config.warm_up or max(1, capacity // 2), capacity)
    table = layout.table(dataclasses.replace(config, capacity=capacity, warm_up=warm_up), batch_size)
    if fits:
        table = dataclasses.replace(table, rate_limiter=min_size(items))
    spec = ReplaySpec(
        layout, table, math.ceil(capacity * rows / items) + readers * lanes * lane_rows, batch_size,
        config.importance_exponent, derive_seed(run.config.seed, "replay", index)[0], prefetch,
        private_socket(f"{run.directory} data {index}"),
    )
    return DataTable(spec, episodes, items if fits else 0, readers, lanes, identity_of(facts, items))


def _room(limit: int, lanes: int, lane_bytes: float, item_bytes: float, batch: int) -> int:
    """Items that so many bytes hold beside the lanes; `UserError` if they are no batch."""
    room = int((limit - lanes * lane_bytes) / item_bytes)
    if room < batch:
        least = lanes * lane_bytes + batch * item_bytes / (1 - LANES_SHARE)
        raise UserError(
            f"topology.memory: {limit:,} bytes hold no batch of {batch} items beside the episodes that are being read; "
            f"give at least {math.ceil(least / UNITS['KiB'])}KiB, or a smaller --batch-size"
        )
    return room


def _size(facts: Facts, experience: Experience) -> tuple[int, int]:
    """Items and rows of episodes."""
    items = items_of(experience, facts.lengths, facts.terminated)
    return int(items.sum()), int(facts.lengths.sum() + len(facts.lengths))


def build_reader(name: str, incarnation: int, run: Run, table: DataTable, index: int, sink: ItemSink) -> DataReader:
    """Reader `index` of a table. What is streamed is shuffled anew in every incarnation."""
    dataset, config = open_dataset(run.config.data), run.config
    seed = derive_seed(config.seed, "reader", incarnation)[0]

    def open_episodes() -> Iterator[Episode]:
        if table.items:
            episodes = once(dataset, table.episodes[index :: table.readers])
        else:
            episodes = for_ever(dataset, table.episodes, seed, index, table.readers)
        clip = config.env.startswith("ALE/") and config.env_options.atari.clip_rewards
        return shown(episodes, config.env_options.last_inputs, clip)

    return DataReader(name, run.env_spec, open_episodes, table.lanes, sink, table.items)


def build_table_server(
    name: str, incarnation: int, host: ReplayHost, table: DataTable, index: int = 0
) -> DataTableServer:
    return DataTableServer(name, host, table.items, table.identity)


def add_data(program: Program, run: Run, config: ReplayConfig, prefetch: int) -> PortRef[ItemSource] | None:
    """A second table, beside that of actors, for the part of every batch that comes from `--data`; None without data.
    It is drawn from as the first one is."""
    size = run.config.batch_from_data
    if not size:
        return None
    config = dataclasses.replace(config, capacity=0, warm_up=0)
    table = data_table(run, config, "", 1.0, 1, prefetch, size, index=1)
    replay = program.connect(ReplayEdge("data", table.spec))
    program.add(READER, build_reader, index=0, run=run, table=table, sink=replay.sink(table.lanes))
    program.add(REPLAY, build_table_server, index=1, durable=True, host=replay.host(), table=table)
    return replay.source()


@lru_cache(maxsize=8)
def about_fits(data: str, memory: str, capacity: int) -> bool:
    """Whether data is likely to fit, before anything is known of the network: it decides about the runtime only."""
    dataset = open_dataset(data)
    row_bytes = sum(leaf.nbytes for leaf in optree.tree_leaves(dataset.spec.observation)) + ROW_BYTES
    needed = (dataset.num_steps + dataset.num_episodes) * row_bytes + dataset.num_steps * 2 * ITEM_BYTES
    return needed <= memory_limit(memory) and not 0 < capacity < dataset.num_steps


def memory_limit(text: str) -> int:
    """Bytes of `4GiB`; without a text a share of the machine's memory."""
    if not text:
        return int(MEMORY_SHARE * total_memory())
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2] not in UNITS:
        raise UserError(f"topology.memory={text!r} is no amount of memory; write for example 4GiB or 500MB")
    return int(float(found[1]) * UNITS[found[2]])
