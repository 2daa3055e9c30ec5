"""A part of the contract of `replay_contract.py`: what writers write and refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pappus.errors import PappusError, UserError
from pappus.replay.sampling.fields import Trajectory, col
from pappus.replay.tables import table as tables
from pappus.types import ArraySpec
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    STEP,
    Background,
    Way,
    add,
    chunks_become,
    drawn,
    numbers,
    only_items_hold_chunks,
    present,
    put,
    replay,
    step,
    waiting,
)
from tests.process_tools import eventually


class Writing:
    """How steps get in, and what writers refuse."""

    def test_a_writer_of_one_env_takes_steps_without_an_env_dimension(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 4, STEP))
        with client.writer() as writer:
            writer.append(step(3))
            writer.append(step(4))
            assert writer.steps == 2
            writer.create_item("t", 2.5, {"obs": writer.history["obs"][:], "action": writer.history["action"][0]})
        batch = client.sample("t", 1, Trajectory(obs=col("obs"), action=col("action")))
        assert batch.data["obs"].tolist() == [[[3, 3.5], [4, 4.5]]] and batch.data["action"].tolist() == [[3]]
        assert batch.info.priorities.tolist() == [2.5]

    def test_a_writer_of_many_envs_makes_an_item_of_each(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER), chunk_length=2)
        with client.writer(envs=3, history=4) as writer:
            for i in range(7):
                writer.append({"x": 100 * np.arange(3) + i})
                if len(writer.history) >= 3:
                    writer.create_item("t", np.array([1.0, 2.0, 3.0]), {"x": writer.history["x"][-3:]})
        batch = client.sample("t", 15)
        for n, row in enumerate(batch.data["x"]):
            assert row.tolist() == [100 * (n % 3) + n // 3 + i for i in range(3)]
        assert batch.info.priorities.tolist() == [1.0, 2.0, 3.0] * 5

    def test_one_env_in_a_vector_keeps_its_dimension(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 4, NUMBER))
        with client.writer(envs=1) as writer:
            writer.append({"x": np.array([5])})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1]})
            with pytest.raises(UserError, match=r"takes values of shape \(1,\), not \(\)"):
                writer.append({"x": 6})
        assert drawn(client, "t") == [5]

    def test_a_mask_chooses_the_envs_that_make_an_item(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer(envs=4) as writer:
            writer.append({"x": np.arange(4)})
            one = {"x": writer.history["x"][-1:]}
            writer.create_item("t", np.array([9.0, 8.0, 7.0, 6.0]), one, where=np.array([True, False, False, True]))
            writer.create_item("t", 1.0, one, where=np.zeros(4, bool))
            writer.create_item("t", 5.0, one, where=np.array([False, True, False, False]))
        batch = client.sample("t", 3)
        assert numbers(batch) == [0, 3, 1] and batch.info.priorities.tolist() == [9.0, 6.0, 5.0]
        assert client.info("t")["inserts"] == 3

    def test_items_have_starts_and_lengths_of_their_own(self, make: Way) -> None:
        columns = {"x": ArraySpec((), "int64"), "y": ArraySpec((), "int64")}
        client, _ = make(tables.queue("t", 16, columns), chunk_length=2)
        with client.writer(envs=3) as writer:
            for i in range(6):
                writer.append({"x": 10 * np.arange(3) + i, "y": -(10 * np.arange(3) + i)})
            writer.create_items(
                "t", np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 0, 1]),
                {"x": np.array([0, 1, 3, 5]), "y": np.array([1, 1, 2, 4])},
                {"x": np.array([6, 1, 2, 1]), "y": np.array([2, 4, 1, 2])},
            )
        batch = client.sample("t", 4)
        expected_x = [[20, 21, 22, 23, 24, 25], [1], [3, 4], [15]]
        expected_y = [[-21, -22], [-1, -2, -3, -4], [-2], [-14, -15]]
        for name, expected in (("x", expected_x), ("y", expected_y)):
            width = max(map(len, expected))
            assert batch.data[name].tolist() == [row + [0] * (width - len(row)) for row in expected]

    def test_an_item_further_back_than_the_history_is_refused(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER), max_steps=64, chunk_length=2)
        with client.writer(history=4) as writer:
            for i in range(20):
                writer.append({"x": i})
            with pytest.raises(UserError, match="give the writer a longer history"):
                writer.create_items(
                    "t", np.ones(1), np.zeros(1, np.int64), {"x": np.array([10])}, {"x": np.array([10])}
                )
            with pytest.raises(UserError, match="is not within the"):
                writer.create_items(
                    "t", np.ones(1), np.zeros(1, np.int64), {"x": np.array([19])}, {"x": np.array([2])}
                )
            writer.create_item("t", 1.0, {"x": writer.history["x"][-4:]})
        assert client.sample("t", 1).data["x"].tolist() == [[16, 17, 18, 19]]

    @pytest.mark.parametrize("chunk_length", [1, 2, 5])
    def test_all_that_the_history_shows_can_become_an_item(self, make: Way, chunk_length: int) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER, lead=3), max_steps=256, chunk_length=chunk_length)
        with client.writer(history=4) as writer:
            for i in range(30):
                writer.append({"x": i})
                assert len(writer.history) >= min(4, i + 1)
                writer.create_item("t", 1.0, {"x": writer.history["x"][:]})
        assert client.info("t")["inserts"] == 30

    def test_a_step_may_leave_out_a_column_that_no_item_has(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, STEP))
        with client.writer() as writer:
            for i in range(4):
                writer.append({name: value for name, value in step(i).items() if name != "reward" or i != 1})
            with pytest.raises(UserError, match="column 'reward' was left out of step 1"):
                writer.create_item("t", 1.0, {"reward": writer.history["reward"][:]})
            writer.create_item("t", 1.0, {
                "reward": writer.history["reward"][2:], "action": writer.history["action"][:],
            })
        batch = client.sample("t", 1, Trajectory(reward=col("reward"), action=col("action")))
        assert batch.data["reward"].tolist() == [[0.5, 0.75]] and batch.data["action"].tolist() == [[0, 1, 2, 3]]

    def test_a_column_that_an_item_left_out_cannot_be_shown(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            writer.append(step(1))
            writer.create_item("t", 1.0, {"action": writer.history["action"][-1:]})
        assert client.sample("t", 1, Trajectory(action=col("action"))).data["action"].tolist() == [[1]]
        with pytest.raises(UserError, match="was left out when the items were made"):
            client.sample("t", 1)

    def test_an_unknown_column_suggests_the_closest_name(self, make: Way) -> None:
        client, service = make(replay(signature=STEP))
        with client.writer() as writer:
            with pytest.raises(UserError, match=r"no column 'rewrad'.*did you mean 'reward'"):
                writer.append({"rewrad": 1.0})
            writer.append(step(0))
            with pytest.raises(UserError, match="did you mean 'reward'"):
                writer.history["rewrad"]
            with pytest.raises(UserError, match="did you mean 'reward'"):
                writer.create_items(
                    "t", np.ones(1), np.zeros(1, np.int64), {"rewrad": np.array([0])}, {"rewrad": np.array([1])}
                )
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in STEP})
        with pytest.raises(UserError, match="there is no column 'rewrad'"):
            client.sample("t", 1, Trajectory(r=col("rewrad")))
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    def test_a_value_of_the_wrong_shape_is_refused(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            for wrong in (
                {"obs": np.zeros(3, np.float32)}, {"obs": 1.0}, {"action": [1, 2]},
                {"obs": np.zeros((1, 2), np.float32)},
            ):
                with pytest.raises(UserError, match="takes values of shape"):
                    writer.append({**step(0), **wrong})
                assert len(writer.history) == 0

    def test_an_array_of_the_wrong_dtype_is_refused(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            for wrong in (
                {"action": np.array(1.5)}, {"action": np.array(1 + 1j)}, {"obs": np.array(["a", "b"])},
                {"obs": np.array([None, None])},
            ):
                with pytest.raises(UserError, match="does not fit; convert it first"):
                    writer.append({**step(0), **wrong})
            writer.append({**step(0), "obs": np.array([1.0, 2.0], np.float64), "action": np.array(3, np.int8)})
            assert len(writer.history) == 1

    def test_a_number_that_a_column_cannot_hold_is_refused(self, make: Way) -> None:
        columns = {"b": ArraySpec((), "uint8"), "i": ArraySpec((), "int64")}
        client, _ = make(replay(signature=columns))
        with client.writer() as writer:
            for column, value in (("b", 300), ("b", -1), ("b", 1.5), ("i", 1.5), ("i", np.nan)):
                with pytest.raises(UserError):
                    writer.append({"b": 1, "i": 1, column: value})
            assert len(writer.history) == 0

    @pytest.mark.parametrize("wrong", [None, "seven", [], object()], ids=["None", "text", "empty", "object"])
    def test_a_refused_step_leaves_a_writer_unchanged(self, make: Way, wrong: Any) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER), chunk_length=2)
        with client.writer() as writer:
            for i in range(4):
                with pytest.raises(UserError):
                    writer.append({"x": wrong})
                add(writer, "t", 10 + i)
        assert drawn(client, "t", 4) == [10, 11, 12, 13]

    def test_a_refused_mask_of_first_steps_leaves_a_writer_unchanged(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER), chunk_length=2)
        with client.writer(envs=2) as writer:
            with pytest.raises(PappusError):
                writer.append({"x": np.array([1, 2])}, first=np.array([True, False, True]))
            writer.append({"x": np.array([3, 4])}, first=np.array([True, True]))
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
        assert drawn(client, "t", 2) == [3, 4]

    def test_nested_steps_have_columns_with_slashes(self, make: Way) -> None:
        columns = {"obs/left": ArraySpec((), "int64"), "obs/deep/right": ArraySpec((2,), "float32")}
        client, _ = make(tables.queue("t", 4, columns))
        with client.writer() as writer:
            writer.append({"obs": {"left": 1, "deep": {"right": [2.0, 3.0]}}})
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
            with pytest.raises(UserError, match="no column 'obs/lefd'"):
                writer.append({"obs": {"lefd": 1}})
        data = client.sample("t", 1).data
        assert data["obs/left"].tolist() == [[1]] and data["obs/deep/right"].tolist() == [[[2.0, 3.0]]]

    def test_a_closed_writer_takes_neither_steps_nor_items(self, make: Way) -> None:
        client, _ = make(replay())
        writer = client.writer()
        add(writer, "t", 1)
        part = {"x": writer.history["x"][-1:]}
        writer.close()
        writer.close()
        with pytest.raises(UserError, match="closed"):
            writer.append({"x": 2})
        with pytest.raises(UserError, match="closed"):
            writer.create_item("t", 1.0, part)
        assert present(client, "t") == {1}

    def test_the_history_begins_with_the_episode(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer() as writer:
            assert len(writer.history) == 0
            for i in range(3):
                writer.append({"x": i})
            assert len(writer.history) == len(writer.history["x"]) == 3
            writer.end_episode()
            assert len(writer.history) == 0
            with pytest.raises(UserError, match=r"x\[-1\] is not among the 0 steps"):
                writer.history["x"][-1]
            writer.append({"x": 10})
            with pytest.raises(UserError, match="holds none; widen it"):
                writer.history["x"][-3:-1]
            writer.create_item("t", 1.0, {"x": writer.history["x"][-3:]})
            writer.append({"x": 20}, first=True)
            assert len(writer.history) == 1
            writer.create_item("t", 1.0, {"x": writer.history["x"][0]})
        assert drawn(client, "t", 2) == [10, 20]

    def test_an_item_that_began_before_its_env_s_episode_is_refused(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer(envs=2) as writer:
            writer.append({"x": np.array([0, 10])}, first=np.array([True, True]))
            writer.append({"x": np.array([1, 11])}, first=np.array([False, True]))
            with pytest.raises(UserError, match="item of env 1 begins 1 steps before its episode"):
                writer.create_item("t", 1.0, {"x": writer.history["x"][-2:]})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-2:]}, where=np.array([True, False]))
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]}, where=np.array([False, True]))
        batch = client.sample("t", 2)
        assert batch.data["x"].tolist() == [[0, 1], [11, 0]]

    def test_items_keep_the_names_of_their_columns(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            writer.append(step(1))
            with pytest.raises(UserError, match="column 'obs' is given a slice of 'reward'"):
                writer.create_item("t", 1.0, {"obs": writer.history["reward"][-1:]})
            with pytest.raises(UserError, match="at least one slice"):
                writer.create_item("t", 1.0, {})

    @pytest.mark.parametrize(
        "change",
        [
            {"priorities": np.ones(2)}, {"priorities": np.ones(4)}, {"envs": np.array([0, 1])},
            {"envs": np.array([0, 1, 2])}, {"envs": np.array([0, 1, -3])},
            {"starts": {"x": np.array([0, 0])}}, {"lengths": {"x": np.array([1, 1, 1, 1])}},
            {"lengths": {"x": np.array([1, -1, 1])}}, {"lengths": {"x": np.array([1, 0, 1])}},
            {"starts": {"x": np.array([0, -1, 0])}}, {"lengths": {}}, {"starts": {}, "lengths": {}},
        ],
        ids=lambda change: " ".join(f"{name}={value}" for name, value in change.items()),
    )
    def test_records_that_do_not_fit_together_are_refused_and_leave_nothing_behind(
        self, make: Way, change: dict[str, Any]
    ) -> None:
        client, service = make(replay())
        good: dict[str, Any] = {
            "priorities": np.ones(3), "envs": np.array([0, 1, 0]), "starts": {"x": np.zeros(3, int)},
            "lengths": {"x": np.ones(3, int)},
        }
        with pytest.raises(UserError), client.writer(envs=2) as writer:
            writer.append({"x": np.array([1, 2])})
            writer.create_items("t", **{**good, **change})
            writer.flush()
        assert client.info("t")["inserts"] == 0
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    def test_priorities_and_masks_have_one_entry_for_every_env(self, make: Way) -> None:
        client, _ = make(replay())
        with client.writer(envs=2) as writer:
            writer.append({"x": np.array([1, 2])})
            one = {"x": writer.history["x"][-1:]}
            with pytest.raises(UserError):
                writer.create_item("t", np.ones(3), one)
            with pytest.raises(UserError):
                writer.create_item("t", 1.0, one, where=np.array([False, False, True]))
        assert client.info("t")["inserts"] == 0

    @pytest.mark.parametrize("wrong", [{"envs": 0}, {"history": 0}, {"max_pending": 0}], ids=str)
    def test_a_writer_of_nothing_is_refused(self, make: Way, wrong: dict[str, int]) -> None:
        client, _ = make(replay())
        with pytest.raises(UserError, match="must be at least 1"):
            client.writer(**wrong)

    def test_max_pending_items_are_inserted_together(self, make: Way) -> None:
        client, _ = make(replay())
        with client.writer(max_pending=3) as writer:
            add(writer, "t", 0)
            add(writer, "t", 1)
            assert client.info("t")["inserts"] == 0
            add(writer, "t", 2)
            eventually(lambda: client.info("t")["inserts"] == 3, SECONDS)
            add(writer, "t", 3)
            assert writer.flush() and client.info("t")["inserts"] == 4
            add(writer, "t", 4)
        assert client.info("t")["inserts"] == 5

    def test_items_that_wait_keep_their_steps(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER), chunk_length=2)
        put(client, "t", range(40), together=64, history=2)
        assert drawn(client, "t", 40) == list(range(40))

    def test_a_flush_that_a_limiter_holds_up_ends_in_time_and_can_be_repeated(self, make: Way) -> None:
        client, service = make(tables.queue("t", 1, NUMBER))
        put(client, "t", [0])
        writer = client.writer(max_pending=8)
        add(writer, "t", 1)
        assert Background(lambda: writer.flush(0.05)).result(2.0) is False
        again = Background(writer.flush)
        waiting(service, "t", "waits to insert")
        assert drawn(make.client(service), "t") == [0]
        assert again.result() is True
        assert drawn(client, "t") == [1]
        assert writer.flush(0.0) is True
        writer.close()

    def test_an_error_in_a_with_leaves_no_partial_item_and_frees_the_steps(self, make: Way) -> None:
        client, service = make(replay(size=8), max_steps=64, chunk_length=2)
        put(client, "t", [7])
        with pytest.raises(ZeroDivisionError), client.writer(max_pending=100) as writer:
            for i in range(9):
                writer.append({"x": i})
                writer.create_item("t", 1.0, {"x": writer.history["x"][-min(i + 1, 3):]})
            raise ZeroDivisionError
        chunks_become(client, 1)
        assert only_items_hold_chunks(service)
        assert client.info("t")["inserts"] == 1 and present(client, "t") == {7}
        with pytest.raises(UserError, match="closed"):
            writer.append({"x": 1})

    def test_items_that_were_in_before_an_error_stay(self, make: Way) -> None:
        client, service = make(replay(size=8), max_steps=64, chunk_length=2)
        with pytest.raises(ZeroDivisionError), client.writer() as writer:
            for i in range(5):
                add(writer, "t", i)
            writer.flush()
            raise ZeroDivisionError
        eventually(lambda: only_items_hold_chunks(service), SECONDS)
        assert present(client, "t") == {0, 1, 2, 3, 4}

    def test_an_item_that_is_refused_does_not_disturb_those_after_it(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer() as writer:
            add(writer, "t", 0)
            with pytest.raises(UserError, match="priority=nan"):
                add(writer, "t", 1, priority=np.nan)
                writer.flush()
            add(writer, "t", 2)
            assert writer.flush()
        assert drawn(client, "t", 2) == [0, 2]

    def test_the_refusal_of_an_item_is_not_taken_for_the_answer_to_something_else(self, make: Way) -> None:
        """It may come with any later call, which then has not been done; the calls after that are."""
        client, service = make(tables.queue("t", 1, NUMBER), max_steps=16, chunk_length=1)
        writer = client.writer(history=4)
        refusals = 0
        for call in (lambda: add(writer, "t", 0, np.nan), lambda: writer.append({"x": 1}), writer.flush):
            try:
                call()
            except UserError as error:
                refusals += 1
                assert "priority=nan" in str(error)
        assert refusals == 1
        add(writer, "t", 2)
        assert writer.flush() and client.info("t")["size"] == 1
        held_up = Background(lambda: (add(writer, "t", 3), writer.flush(0.1))[1])
        waiting(service, "t", "waits to insert")
        assert not held_up.done or held_up.result() is False
        assert drawn(make.client(service), "t") == [2]
        held_up.result()
        assert writer.flush() and drawn(client, "t") == [3]
        writer.close()
