"""Several services behave as one table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pappus.errors import UserError
from pappus.replay import ArraySpec, Client, Service, ShardedClient, Trajectory, col, prioritized_replay, uniform_replay
from pappus.replay.service.checkpoint import load
from pappus.replay.tables.table import Table

SIGNATURE = {"number": ArraySpec((), "int64")}
CHI_SQUARE_99_9 = {19: 43.82, 23: 49.73}
"""What a sum of squares over so many degrees of freedom exceeds once in a thousand times."""


def shards(*tables: Table) -> ShardedClient:
    services = [Service([table], seed=i) for i, table in enumerate(tables)]
    return ShardedClient([lambda service=service: Client.of(service) for service in services], seed=7)


def write(client: ShardedClient, numbers: range, priority: float) -> None:
    """Items on the next shard in turn."""
    with client.writer() as writer:
        for number in numbers:
            writer.append({"number": number})
            writer.create_item("replay", priority * (1 + number % 3), {"number": writer.history["number"][-1:]})


def test_prioritized_samples_of_unequal_shards_have_the_distribution_of_one_table() -> None:
    client = shards(*[prioritized_replay("replay", 100, SIGNATURE, alpha=1.0)] * 3)
    write(client, range(0, 4), priority=5.0)
    write(client, range(4, 20), priority=1.0)
    write(client, range(20, 24), priority=0.5)
    weights = np.array([(5.0 if n < 4 else 1.0 if n < 20 else 0.5) * (1 + n % 3) for n in range(24)])
    drawn = np.concatenate([
        client.sample("replay", 500, Trajectory(number=col("number")[0])).data["number"] for _ in range(40)
    ])
    expected = len(drawn) * weights / weights.sum()
    deviation = ((np.bincount(drawn, minlength=24) - expected) ** 2 / expected).sum()
    assert deviation < CHI_SQUARE_99_9[23]


def test_uniform_samples_are_spread_by_size() -> None:
    client = shards(*[uniform_replay("replay", 100, SIGNATURE)] * 2)
    write(client, range(0, 2), priority=1.0)
    write(client, range(2, 20), priority=1.0)
    drawn = np.concatenate([
        client.sample("replay", 500, Trajectory(number=col("number")[0])).data["number"] for _ in range(20)
    ])
    expected = len(drawn) / 20
    assert ((np.bincount(drawn, minlength=20) - expected) ** 2 / expected).sum() < CHI_SQUARE_99_9[19]


def test_probabilities_are_those_of_one_table_and_make_importance_weights() -> None:
    client = shards(*[prioritized_replay("replay", 100, SIGNATURE, alpha=1.0)] * 2)
    write(client, range(0, 3), priority=1.0)
    write(client, range(3, 6), priority=3.0)
    batch = client.sample("replay", 200, Trajectory(number=col("number")[0]))
    weights = np.array([(1.0 if n < 3 else 3.0) * (1 + n % 3) for n in range(6)])
    np.testing.assert_allclose(batch.info.probabilities, (weights / weights.sum())[batch.data["number"]])
    assert batch.info.table_size == 6
    np.testing.assert_allclose(batch.weights(1.0).max(), 1.0)


def test_keys_find_their_shard_again() -> None:
    client = shards(*[prioritized_replay("replay", 100, SIGNATURE, alpha=1.0)] * 3)
    for shard in range(3):
        write(client, range(10 * shard, 10 * shard + 5), priority=1.0)
    batch = client.sample("replay", 300, Trajectory(number=col("number")[0]))
    chosen = batch.data["number"] == 12
    keys = np.unique(batch.keys[chosen])
    assert len(keys) == 1
    everyone = np.unique(batch.keys)
    assert client.update_priorities("replay", everyone, np.where(everyone == keys[0], 1.0, 0.0)) == len(everyone)
    assert (client.sample("replay", 50, Trajectory(number=col("number")[0])).data["number"] == 12).all()
    assert client.delete("replay", keys) == 1
    assert client.info("replay")["size"] == 14


def test_fields_of_different_lengths_are_padded_to_the_longest_of_all_shards() -> None:
    client = shards(*[uniform_replay("replay", 100, SIGNATURE)] * 2)
    for length in (2, 5):
        with client.writer() as writer:
            for number in range(length):
                writer.append({"number": number + 1})
            writer.create_item("replay", 1.0, {"number": writer.history["number"][:]})
    batch = client.sample("replay", 64, Trajectory(number=col("number"), mask=col("number").mask()))
    assert batch.data["number"].shape == (64, 5)
    assert ((batch.data["number"] > 0) == batch.data["mask"]).all()
    assert set(batch.data["mask"].sum(1)) == {2, 5}


def test_a_timeout_explains_why_nothing_was_sampled() -> None:
    client = shards(*[uniform_replay("replay", 100, SIGNATURE, min_size=3)] * 2)
    write(client, range(2), priority=1.0)
    with pytest.raises(TimeoutError, match=r"shard 0.*1 more items"):
        client.sample("replay", 4, timeout=0.05)


def test_services_with_other_tables_are_refused() -> None:
    with pytest.raises(UserError, match="same tables"):
        shards(uniform_replay("replay", 100, SIGNATURE), uniform_replay("replay", 50, SIGNATURE))


def test_a_prefetching_sampler_ends_when_it_is_closed() -> None:
    client = shards(*[uniform_replay("replay", 100, SIGNATURE)] * 2)
    write(client, range(5), priority=1.0)
    with client.sampler("replay", 8, Trajectory(number=col("number")[0])) as sampler:
        assert all((next(sampler).data["number"] < 5).all() for _ in range(5))


def test_bounds_are_moved_and_checkpoints_written_on_every_shard(tmp_path: Path) -> None:
    client = shards(*[uniform_replay("replay", 100, SIGNATURE, min_size=30)] * 2)
    write(client, range(5), priority=1.0)
    write(client, range(5, 10), priority=1.0)
    client.move_bounds("replay", min_size=1)
    assert set(client.sample("replay", 200, timeout=1.0).data["number"][:, 0].tolist()) == set(range(10))
    saved = client.checkpoint(str(tmp_path / "saved"))
    assert [Path(path).name for path in saved] == ["saved-0", "saved-1"]
    again = Service([uniform_replay("replay", 100, SIGNATURE, min_size=30)])
    load(again, saved[1])
    assert again.info("replay")["size"] == 5


def test_keys_from_before_a_crash_are_not_used_for_other_items(tmp_path: Path) -> None:
    service = Service([uniform_replay("replay", 4, SIGNATURE)])
    client = ShardedClient([lambda: Client.of(service)])
    write(client, range(3), priority=1.0)
    path = client.checkpoint(str(tmp_path / "saved"))[0]
    write(client, range(3, 6), priority=1.0)
    lost = set(client.sample("replay", 200).keys.tolist())
    restored = Service([uniform_replay("replay", 4, SIGNATURE)])
    load(restored, path)
    again = ShardedClient([lambda: Client.of(restored)])
    kept = set(again.sample("replay", 200).keys.tolist())
    write(again, range(6, 10), priority=1.0)
    assert kept <= {0, 1, 2} and not lost & (set(again.sample("replay", 200).keys.tolist()) - kept)
