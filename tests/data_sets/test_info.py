"""`pappus data info`: every statistic against the literal one, and everything that is odd is named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pappus.cli import main
from pappus.data.episode import Episode
from pappus.data.report import as_values, report
from pappus.data.statistics import AtBounds, ChoiceCounts, Coverage, Moments, entropy
from pappus.data.summary import summarize
from pappus.types import ContinuousAction, DiscreteAction
from tests.data_sets.kinds import FORMATS, KINDS, episodes_of, written


def test_moments_of_blocks_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(5, 3, (100, 4))
    moments = Moments(4)
    for block in (rows[:1], rows[1:40], rows[40:]):
        moments.add(block)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0))
    np.testing.assert_allclose(moments.std, rows.std(axis=0))
    np.testing.assert_array_equal(moments.low, rows.min(axis=0))


def test_moments_of_pixels_are_those_of_numbers() -> None:
    pixels = np.random.default_rng(0).integers(3, 200, (500, 1)).astype(np.uint8)
    one, other = Moments(1), Moments(1)
    for block in (pixels[:100], pixels[100:]):
        one.add(block)
        other.add(block.astype(np.int64))
    for name in ("mean", "std", "low", "high"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name))


def test_shares_and_entropy_of_choices() -> None:
    counts = ChoiceCounts((2, 3))
    counts.add(np.array([[0, 2], [1, 2], [1, 1], [1, 2]]))
    assert [shares.tolist() for shares in counts.shares()] == [[0.25, 0.75], [0, 0.25, 0.75]]
    wanted = -2 * (0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert counts.entropy() == pytest.approx(wanted)


def test_actions_at_a_bound_are_counted_per_entry() -> None:
    at = AtBounds(np.array([-1.0, 0.0]), np.array([1.0, np.inf]))
    at.add(np.array([[-1.0, 0.0], [1.0, 5.0], [0.5, 0.0], [0.0, 1.0]]))
    assert at.share.tolist() == [0.5, 0.5]


def test_coverage_counts_cells_that_are_visited_evenly() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = Coverage(DiscreteAction(2)), Coverage(DiscreteAction(2))
    states = rng.normal(size=(5000, 6))
    narrow.add(np.repeat(states[:1], 5000, axis=0), np.zeros((5000, 1)))
    wide.add(states, rng.integers(0, 2, (5000, 1)))
    assert narrow.effective() == pytest.approx(1) and narrow.visited == 1
    assert 100 < wide.effective() < wide.visited <= 2048
    real = Coverage(ContinuousAction((2,)))
    real.add(states, rng.normal(size=(5000, 2)))
    assert real.effective() > 100


def test_entropy_of_counts() -> None:
    assert entropy(np.array([5, 5, 0])) == pytest.approx(np.log(2))
    assert entropy(np.zeros(3, np.int64)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_summary_without_problems(kind: str, tmp_path: Path) -> None:
    found = summarize(written(tmp_path, kind))
    episodes = episodes_of(*KINDS[kind])
    assert not found.problems
    assert found.lengths == [3, 1, 7] and found.ends == ["terminated", "truncated", "cut off"]
    np.testing.assert_allclose(found.returns, [episode.reward.sum() for episode in episodes], rtol=1e-5)
    said = np.concatenate([episode.behaviour["log_prob"] for episode in episodes])
    assert found.behaviour_entropy == pytest.approx(-said.mean(), rel=1e-5)
    assert "no problems found" in report(found)
    json.dumps(as_values(found))


def test_observations_of_a_vector_are_described_entry_by_entry(tmp_path: Path) -> None:
    found = summarize(written(tmp_path))
    rows = np.concatenate([episode.observation for episode in episodes_of(*KINDS["vector"])])
    values = as_values(found)["observations"]["observation"]
    np.testing.assert_allclose(values["mean"], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(values["std"], rows.std(axis=0), rtol=1e-5)
    assert "observation[2]" in report(found)


@pytest.mark.parametrize("data_format", FORMATS)
def test_nan_is_found_with_episode_step_and_key_and_the_exit_code_is_1(
    data_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = episodes_of(*KINDS["dict"])
    episodes[2].observation["inner"]["a"][4, 1] = np.nan
    episodes[0].reward[2] = np.inf
    written(tmp_path, "dict", data_format, episodes)  # type: ignore[arg-type]
    assert main(["data", "info", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "episode 2 has nan in observations/inner/a[1] at step 4" in shown
    assert "episode 0 has inf in rewards at step 2" in shown
    assert "no problems found" not in shown


def test_a_file_that_cannot_be_opened_is_one_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path)
    file = tmp_path / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:-500])
    assert main(["data", "info", str(tmp_path)]) == 1
    problem, *others = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert "is shorter than it says" in problem and not others


def vectors(lengths: list[int], terminated: bool, truncated: bool) -> list[Episode]:
    episodes = episodes_of(*KINDS["vector"], lengths=tuple(lengths))
    return [episode._replace(terminated=terminated, truncated=truncated) for episode in episodes]


def warnings(directory: Path, episodes: list[Episode], limit: int | None = None) -> str:
    dataset = written(directory, "vector", "hdf5", episodes)
    if limit is not None:
        dataset.metadata["env_spec"] = json.dumps({"id": "Mine-v0", "max_episode_steps": limit})
    found = summarize(dataset)
    assert not found.problems
    return "\n".join(found.warnings)


def test_impossible_time_limits_are_odd(tmp_path: Path) -> None:
    assert "no truncated episode has the 9 steps" in warnings(tmp_path / "a", vectors([5, 5, 3], False, True), 9)
    assert "2 episodes terminate exactly at the env's limit of 5" in warnings(
        tmp_path / "b", vectors([5, 5, 3], True, False), 5
    )
    assert "2 episodes are longer" in warnings(tmp_path / "c", vectors([5, 5, 3], True, False), 4)
    assert "33 % of the episodes terminate after exactly 6 steps" in warnings(
        tmp_path / "d", vectors([6] * 4 + [1, 2, 3, 4] * 2, True, False)
    )
    assert "limit" not in warnings(tmp_path / "e", vectors([5, 5, 3], False, True), 5)


def test_constant_columns_zero_rewards_copies_and_untried_actions_are_odd(tmp_path: Path) -> None:
    first, second, _ = vectors([4, 6, 2], True, False)
    for episode in (first, second):
        episode.observation[:, 1] = 0.5
        episode.action[:] = 2
        episode.reward[:] = 0
    said = warnings(tmp_path, [first, second, first])
    assert "observations[1] never changes: it says nothing" in said
    assert "all rewards are 0" in said
    assert "1 episode repeats an earlier one: episode 2 is the same as 0" in said
    assert "actions 0, 1 never taken" in said


def test_a_column_whose_rows_change_their_shape_is_odd(tmp_path: Path) -> None:
    one, *others = vectors([4, 6, 2], True, False)
    one = one._replace(behaviour={**one.behaviour, "q": np.zeros((4, 2), np.float32)})
    others = [other._replace(behaviour={"q": np.zeros((other.length, 3), np.float32)}) for other in others]
    assert "infos/q has rows of another shape in episode 1 than before" in warnings(tmp_path, [one, *others])


def test_the_json_is_one_object_with_every_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "bounds")
    assert main(["data", "info", str(tmp_path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["episodes"] == 3 and values["ends"]["cut off"] == 1
    assert len(values["actions_at_bounds"]) == 2 and values["length"]["max"] == 7


def test_sets_below_a_folder_are_listed_and_a_broken_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "mine" / "good-v0")
    written(tmp_path / "bad-v0")
    (tmp_path / "bad-v0" / "data" / "metadata.json").write_text("{")
    assert main(["data", "list", str(tmp_path)]) == 0
    bad, good, problem = capsys.readouterr().out.splitlines()[1:]
    assert bad.startswith("bad-v0") and "unreadable" in bad.split() and len(bad) < 80, "its problem widens no column"
    assert good.startswith("mine/good-v0") and "11" in good.split()
    assert problem.startswith("problem: ") and "bad-v0" in problem and "is no JSON" in problem


@pytest.mark.parametrize(("words", "sentence"), [
    (["info", "a" * 300], "is no data set: File name too long"),
    (["list", __file__], "is no folder; name one that holds data sets"),
])
def test_what_no_folder_can_be_called_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words]) == 2
    assert sentence in capsys.readouterr().err
