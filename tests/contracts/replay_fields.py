"""A part of the contract of `replay_contract.py`: what fields compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pappus.errors import UserError
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Field, Trajectory, col, concatenate
from pappus.replay.tables import table as tables
from pappus.types import Array, ArraySpec
from tests.contracts.replay_tools import (
    NUMBER,
    REDUCTIONS,
    SECONDS,
    STEP,
    Way,
    replay,
    step,
)


class Ragged:
    """Items of different lengths, known both to a table and to a plain list: `obs` has one step more than the others.

    Every item is over the last steps of an episode so far, with the three steps before it as lead where the episode
    has them.
    """

    LEAD = 3

    def __init__(self, make: Way, lengths: Sequence[int] = (3, 1, 4, 2), chunk_length: int = 2) -> None:
        table = tables.queue("t", 64, STEP, lead=self.LEAD)
        self.client, _ = make(table, max_steps=512, chunk_length=chunk_length)
        self.items: list[dict[str, list[Array]]] = []
        """By column, the item's own steps."""
        self.before: list[dict[str, list[Array]]] = []
        """By column, up to three steps of the episode before them."""
        with self.client.writer(history=16) as writer:
            for episode, length in enumerate(lengths):
                for skipped in range(length + 4):
                    writer.append(step(50 * episode + skipped))
                    if skipped + 1 > length and skipped % 2 == 0:
                        self._make_item(writer, episode, skipped, length)
                writer.end_episode()
        self.count = len(self.items)

    def _make_item(self, writer: TrajectoryWriter, episode: int, newest: int, length: int) -> None:
        history, first = writer.history, newest - length
        writer.create_item("t", 1.0, {
            name: history[name][-length - 1:] if name == "obs" else history[name][-length - 1:-1] for name in STEP
        })
        record = {
            name: [np.asarray(step(50 * episode + i)[name], STEP[name].dtype) for i in range(newest + 1)]
            for name in STEP
        }
        self.items.append({name: v[first:] if name == "obs" else v[first:newest] for name, v in record.items()})
        self.before.append({name: v[max(0, first - self.LEAD):first] for name, v in record.items()})

    def sample(self, **fields: Field) -> dict[str, Array]:
        """All items, from the oldest to the newest."""
        return self.client.sample("t", self.count, Trajectory(**fields), timeout=SECONDS).data

    def column(self, name: str) -> list[list[Array]]:
        return [item[name] for item in self.items]

    def padded(self, rows: Sequence[Sequence[Any]], value: float = 0, length: int | None = None) -> Array:
        """Lists of different lengths as one array."""
        width = max(map(len, rows)) if length is None else length
        shape = np.shape(next(row for row in rows if len(row))[0])
        return np.array([[row[t] if t < len(row) else np.full(shape, value) for t in range(width)] for row in rows])


class Fields:
    """What a batch looks like, against plain loops over the steps that were written."""

    def test_columns_are_sampled_as_written_with_zeros_beyond_an_item_s_end(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(**{name: col(name) for name in STEP})
        for name in STEP:
            assert (data[name] == ragged.padded(ragged.column(name))).all() and data[name].dtype == STEP[name].dtype

    def test_without_a_trajectory_all_columns_are_returned(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.client.sample("t", ragged.count, timeout=SECONDS).data
        for name in STEP:
            assert (data[name] == ragged.padded(ragged.column(name))).all()

    @pytest.mark.parametrize("order", [[3, 1, 4, 2], [4, 3, 2, 1], [1, 2, 3, 4], [2, 2, 2, 2]], ids=str)
    def test_the_last_item_of_a_batch_may_be_the_shortest(self, make: Way, order: list[int]) -> None:
        ragged = Ragged(make, order)
        data = ragged.sample(reward=col("reward"), obs=col("obs"))
        assert (data["reward"] == ragged.padded(ragged.column("reward"))).all()
        assert (data["obs"] == ragged.padded(ragged.column("obs"))).all()

    def test_a_slice_is_each_item_s_own(self, make: Way) -> None:
        ragged = Ragged(make)
        keys = [
            slice(1, None), slice(None, -1), slice(-2, None), slice(0, 2), slice(1, 3), slice(-3, -1), slice(None, None)
        ]
        data = ragged.sample(**{f"{name} {key}": col(name)[key] for name in ("obs", "reward") for key in keys})
        for name, key in itertools.product(("obs", "reward"), keys):
            expected = ragged.padded([row[key] for row in ragged.column(name)])
            assert np.array_equal(data[f"{name} {key}"], expected), (name, key)

    def test_an_index_counts_from_each_item_s_own_ends(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(**{
            f"{name} {index}": col(name)[index] for name in ("obs", "action") for index in (0, 1, -1, -2)
        })
        for name, index in itertools.product(("obs", "action"), (0, 1, -1, -2)):
            nearest = [row[max(-len(row), min(index, len(row) - 1))] for row in ragged.column(name)]
            assert np.array_equal(data[f"{name} {index}"], np.array(nearest)), (name, index)

    def test_a_stack_repeats_an_episode_s_first_step_and_never_looks_over_it(self, make: Way) -> None:
        ragged = Ragged(make)

        def stacked(name: str, count: int) -> list[list[Array]]:
            found = []
            for own, before in zip(ragged.items, ragged.before, strict=True):
                row, lead = [*before[name], *own[name]], len(before[name])
                found.append([
                    np.stack([row[max(0, lead + t - back)] for back in reversed(range(count))])
                    for t in range(len(own[name]))
                ])
            return found

        data = ragged.sample(
            **{f"obs {count}": col("obs").stack(count) for count in (1, 2, 4)},
            **{f"first action {count}": col("action").stack(count)[0] for count in (1, 2, 4)},
        )
        for count in (1, 2, 4):
            assert np.array_equal(data[f"obs {count}"], ragged.padded(stacked("obs", count)))
            assert np.array_equal(data[f"first action {count}"], [row[0] for row in stacked("action", count)])

    def test_a_stack_of_a_slice_looks_back_over_the_item_s_own_steps(self, make: Way) -> None:
        ragged = Ragged(make, [4, 3])
        data = ragged.sample(late=col("action")[-1].stack(3), slices=col("action")[1:].stack(2))
        for n, row in enumerate(ragged.column("action")):
            whole = [*ragged.before[n]["action"], *row]
            assert data["late"][n].tolist() == [int(v) for v in whole[-3:]]
            pairs = [[int(row[t - 1]), int(row[t])] for t in range(1, len(row))]
            assert data["slices"][n, :len(pairs)].tolist() == pairs

    def test_stacks_of_many_envs_begin_where_each_env_s_episode_does(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER, lead=2), chunk_length=2)
        with client.writer(envs=2) as writer:
            for i in range(6):
                writer.append({"x": np.array([i, 10 + i])}, first=np.array([i == 4, i == 2]))
                writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
        found = client.sample("t", 12, Trajectory(x=col("x").stack(3)[0])).data["x"].reshape(6, 2, 3)
        assert found[:, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]
        assert found[:, 1].tolist() == [
            [10, 10, 10], [10, 10, 11], [12, 12, 12], [12, 12, 13], [12, 13, 14], [13, 14, 15]
        ]

    def test_a_stack_higher_than_the_table_s_lead_is_refused(self, make: Way) -> None:
        with pytest.raises(UserError, match="make the table with lead=4"):
            Ragged(make).sample(obs=col("obs").stack(5))
        with pytest.raises(UserError, match="stack belongs before any arithmetic"):
            Ragged(make).sample(obs=(col("obs") * 2).stack(2))

    def test_a_discounted_sum_stops_where_discounts_or_items_do(self, make: Way) -> None:
        ragged = Ragged(make)
        sums = [(0.9, None), (0.5, 1), (0.9, 2), (1.0, 3), (0.7, 50)]
        data = ragged.sample(**{f"{gamma} {n}": col("reward").discounted_sum(gamma, n) for gamma, n in sums})
        for gamma, n in sums:
            expected = []
            for item in ragged.items:
                rewards, discounts = [float(r) for r in item["reward"]], [float(d) for d in item["discount"]]
                returns = []
                for t in range(len(rewards)):
                    total, weight = 0.0, 1.0
                    for i in range(t, min(len(rewards), t + (n or len(rewards)))):
                        total += weight * rewards[i]
                        weight *= gamma * discounts[i]
                    returns.append(np.float32(total))
                expected.append(returns)
            found = data[f"{gamma} {n}"]
            assert np.allclose(found, ragged.padded(expected), rtol=1e-5) and found.dtype == np.float32, (gamma, n)

    def test_a_discounted_sum_of_a_slice_takes_the_discounts_of_the_same_steps(self, make: Way) -> None:
        ragged = Ragged(make, [4, 3])
        found = ragged.sample(ret=col("reward")[1:].discounted_sum(0.9)[0])["ret"]
        expected = []
        for item in ragged.items:
            total, weight = 0.0, 1.0
            for reward, discount in zip(item["reward"][1:], item["discount"][1:], strict=True):
                total, weight = total + weight * float(reward), weight * 0.9 * float(discount)
            expected.append(total)
        assert np.allclose(found, expected, rtol=1e-5)

    def test_a_discounted_sum_over_vectors_discounts_every_entry(self, make: Way) -> None:
        ragged = Ragged(make, [2, 2])
        found = ragged.sample(ret=col("obs")[:-1].discounted_sum(0.5)[0])["ret"]
        expected = [
            obs[0] + 0.5 * float(discount[0]) * obs[1]
            for obs, discount in zip(ragged.column("obs"), ragged.column("discount"), strict=True)
        ]
        assert np.allclose(found, expected, rtol=1e-5)

    def test_reductions_over_time_leave_out_what_is_beyond_an_item_s_end(self, make: Way) -> None:
        ragged, shifted = Ragged(make), col("reward") + -3.0
        data = ragged.sample(
            **{f"reward {name}": getattr(shifted, name)() for name in REDUCTIONS},
            **{f"obs {name}": getattr(col("obs"), name)() for name in REDUCTIONS},
            **{f"discount {name}": getattr(col("discount"), name)() for name in REDUCTIONS},
        )
        for name, reduce in REDUCTIONS.items():
            rewards = [[r - 3 for r in row] for row in ragged.column("reward")]
            for column, rows in (("reward", rewards), *((c, ragged.column(c)) for c in ("obs", "discount"))):
                expected = [reduce(row, axis=0) for row in rows]
                assert np.allclose(data[f"{column} {name}"], expected, rtol=1e-5), (column, name)

    def test_reductions_over_another_dimension_are_numpy_s(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(**{name: getattr(col("obs"), name)("d0") for name in REDUCTIONS})
        for name, reduce in REDUCTIONS.items():
            assert np.allclose(data[name], reduce(ragged.padded(ragged.column("obs")), axis=2)), name

    def test_a_cumulative_product_is_of_all_up_to_each(self, make: Way) -> None:
        ragged = Ragged(make)
        found = ragged.sample(p=(col("discount") * 0.9).cumulative_product())["p"]
        expected = [[np.prod([0.9 * float(d) for d in row[:t + 1]]) for t in range(len(row))]
                    for row in ragged.column("discount")]
        assert np.allclose(found, ragged.padded(expected), rtol=1e-5)

    def test_masks_and_padding_show_where_items_end(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            mask=col("reward").mask(), late=col("obs")[2:].mask(), padded=col("reward").pad(-7.0),
            wide=col("action").pad(-1, length=6), obs=col("obs")[1:].pad(5.0),
        )
        lengths = [len(row) for row in ragged.column("reward")]
        assert data["mask"].tolist() == [[t < n for t in range(max(lengths))] for n in lengths]
        assert data["late"].tolist() == [[t < n - 1 for t in range(max(lengths) - 1)] for n in lengths]
        assert (data["padded"] == ragged.padded(ragged.column("reward"), -7.0)).all()
        assert (data["wide"] == ragged.padded(ragged.column("action"), -1, 6)).all()
        assert (data["obs"] == ragged.padded([row[1:] for row in ragged.column("obs")], 5.0)).all()
        with pytest.raises(UserError, match=r"pad\(length=2\) is shorter than an item of 4 steps"):
            Ragged(make).sample(short=col("reward").pad(length=2))

    def test_arithmetic_is_done_number_by_number(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            twice=col("reward") * 2.0, both=col("reward") * col("discount"), plus=col("reward") + col("discount"),
            last=col("reward")[-1] + 1.0, whole=col("action") * 3, half=col("action") * 0.5,
        )
        reward, discount = ragged.column("reward"), ragged.column("discount")
        pairs = list(zip(reward, discount, strict=True))
        assert np.allclose(data["twice"], ragged.padded([[2 * r for r in row] for row in reward]))
        assert data["twice"].dtype == np.float32 and data["whole"].dtype == np.int64 and data["half"].dtype.kind == "f"
        assert np.allclose(data["both"], ragged.padded([[r * d for r, d in zip(*p, strict=True)] for p in pairs]))
        assert np.allclose(data["plus"], ragged.padded([[r + d for r, d in zip(*p, strict=True)] for p in pairs]))
        assert np.allclose(data["last"], [row[-1] + 1 for row in reward])
        assert (data["whole"] == ragged.padded([[3 * a for a in row] for row in ragged.column("action")])).all()

    def test_whatever_is_added_there_is_nothing_beyond_an_item_s_end(self, make: Way) -> None:
        ragged = Ragged(make)
        found = ragged.sample(plus=col("reward") + 1.0)["plus"]
        assert np.allclose(found, ragged.padded([[r + 1 for r in row] for row in ragged.column("reward")]))

    def test_what_was_computed_is_cut_where_each_item_is_cut(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(front=(col("obs") * 2.0)[:-1], back=(col("obs") * 2.0)[1:], end=(col("obs") * 2.0)[-1])
        obs = ragged.column("obs")
        assert (data["front"] == ragged.padded([[2 * o for o in row[:-1]] for row in obs])).all()
        assert (data["back"] == ragged.padded([[2 * o for o in row[1:]] for row in obs])).all()
        assert (data["end"] == np.array([2 * row[-1] for row in obs])).all()

    def test_what_was_computed_is_padded_like_a_column(self, make: Way) -> None:
        ragged = Ragged(make)
        found = ragged.sample(r=(col("reward") * 2.0).pad(-7.0))["r"]
        assert (found == ragged.padded([[2 * r for r in row] for row in ragged.column("reward")], -7.0)).all()

    def test_transposing_turns_dimensions_by_their_names(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            turned=col("obs").transpose("time", "d0", "batch"), stacked=col("action").stack(2).transpose(
                "time", "batch", "stack"), summed=col("reward").transpose("time", "batch").sum(),
        )
        assert (data["turned"] == ragged.padded(ragged.column("obs")).transpose(1, 2, 0)).all()
        assert data["stacked"].shape == (4, ragged.count, 2)
        assert np.allclose(data["summed"], [sum(row) for row in ragged.column("reward")])
        with pytest.raises(UserError, match="must name each of batch, time, d0 once"):
            Ragged(make).sample(turned=col("obs").transpose("time", "batch"))

    def test_concatenate_joins_fields_along_a_dimension(self, make: Way) -> None:
        ragged = Ragged(make, [3, 3])
        data = ragged.sample(
            time=concatenate(col("reward"), col("discount")[:2], over="time"),
            wide=concatenate(col("obs"), col("obs") * 2.0, over="d0"),
            mixed=concatenate(col("obs").stack(2)[0], col("obs").stack(3)[-1], over="stack"),
        )
        reward, discount = ragged.column("reward"), ragged.column("discount")
        assert (data["time"] == np.array([[*r, *d[:2]] for r, d in zip(reward, discount, strict=True)])).all()
        obs = ragged.padded(ragged.column("obs"))
        assert (data["wide"] == np.concatenate([obs, 2 * obs], axis=2)).all()
        assert data["mixed"].shape == (ragged.count, 5, 2)
        with pytest.raises(UserError, match="must have no padding"):
            Ragged(make).sample(wrong=concatenate(col("reward"), col("discount"), over="time"))

    def test_dtypes_change_only_when_asked(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            f=col("action").astype("float32"), a=col("action")[0], d=(col("discount") * 0.99).product()
        )
        assert data["f"].dtype == np.float32 and data["a"].dtype == np.int64 and data["d"].dtype == np.float32

    @pytest.mark.parametrize("lengths", [[3, 3], [3, 2]], ids=["alike", "ragged"])
    def test_sums_and_products_of_small_numbers_do_not_overflow(self, make: Way, lengths: list[int]) -> None:
        columns = {"b": ArraySpec((), "uint8"), "f": ArraySpec((), "bool")}
        client, _ = make(tables.queue("t", 8, columns))
        with client.writer() as writer:
            for length in lengths:
                for _ in range(length):
                    writer.append({"b": 200, "f": True})
                writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
                writer.end_episode()
        data = client.sample("t", 2, Trajectory(b=col("b").sum(), f=col("f").sum(), p=col("b").product())).data
        assert data["b"].tolist() == [200 * n for n in lengths] and data["f"].tolist() == lengths
        assert data["p"].tolist() == [200**n for n in lengths]

    def test_a_discounted_sum_of_whole_numbers_keeps_its_fraction(self, make: Way) -> None:
        columns = {"r": ArraySpec((), "int8"), "discount": ArraySpec((), "float32")}
        client, _ = make(tables.queue("t", 8, columns))
        with client.writer() as writer:
            writer.append({"r": 1, "discount": 1.0})
            writer.append({"r": 1, "discount": 1.0})
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
        found = client.sample("t", 1, Trajectory(ret=col("r").discounted_sum(0.5)[0])).data["ret"]
        assert found.tolist() == [1.5]

    def test_what_cannot_be_computed_is_refused_in_words(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP, lead=3))
        with client.writer() as writer:
            writer.append(step(1))
            writer.append(step(2))
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in STEP})
        reward, obs = col("reward"), col("obs")
        wrongs: list[Callable[[], Field]] = [
            lambda: reward[0][0], lambda: reward[::2], lambda: reward[0].mask(), lambda: reward[0].pad(1.0),
            lambda: reward.sum("d0"), lambda: obs.stack(0), lambda: reward.discounted_sum(0.9, n=0),
            lambda: obs + reward, lambda: obs[:, 0], lambda: concatenate(over="time"),
            lambda: concatenate(obs, reward, over="time"), lambda: obs.transpose("batch", "batch", "d0"),
        ]
        for wrong in wrongs:
            with pytest.raises(UserError):
                client.sample("t", 1, Trajectory(wrong=wrong()))

    def test_columns_of_different_lengths_do_not_add_up(self, make: Way) -> None:
        ragged = Ragged(make, [3, 2])
        with pytest.raises(UserError):
            ragged.sample(wrong=col("obs").sum("d0") + col("reward"))
        with pytest.raises(UserError, match="a trajectory without fields is empty"):
            Trajectory()

    def test_numbers_of_every_dtype_survive_a_round_trip(self, make: Way) -> None:
        kinds = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float64"]
        shapes = {"one": (), "table": (2, 3), "empty": (0,)}
        columns = {f"{kind} {name}": ArraySpec(shape, kind) for kind in kinds for name, shape in shapes.items()}
        client, _ = make(tables.queue("t", 8, columns))
        values = {name: np.resize([1, 0, 1], spec.shape).astype(spec.dtype) for name, spec in columns.items()}
        with client.writer() as writer:
            writer.append(values)
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
        data = client.sample("t", 1).data
        for name, value in values.items():
            assert data[name].dtype == value.dtype and np.array_equal(data[name], value[None, None]), name
