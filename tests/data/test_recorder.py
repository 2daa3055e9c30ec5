"""What a role records reaches its part file: whole blocks, also after a crash, and after a resume from a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.config import NetworkConfig
from pappus.data import recorder as module
from pappus.data.cutting import Cutter, find_cuts
from pappus.data.episode import Episode
from pappus.data.parts import BLOCK, Part, PartHeader, append_block
from pappus.data.recorder import EpisodeRecorder, Recording
from pappus.errors import RecordingError
from pappus.types import ACTION_MASK, Array, ArraySpec, DiscreteAction, EnvSpec, Episodes, Timestep

ENVS = 3


class Stream:
    """Envs whose observations count steps; env i ends an episode every 4 + i steps, by turns in both ways."""

    def __init__(self, masked: bool = False) -> None:
        self.steps, self.inside, self.masked = 0, np.zeros(ENVS, np.int64), masked
        self.over = np.zeros(ENVS, np.bool_)

    def show(self, first: Array, valid: Array, discount: Array, episodes: Episodes | None = None) -> Timestep:
        counted = (np.arange(ENVS) * 1000 + self.steps).astype(np.float32)[:, None]
        mask = (np.arange(4) <= (self.steps + np.arange(ENVS))[:, None] % 4).astype(np.int8)
        observation: Any = {ACTION_MASK: mask, "a": counted, "z": counted} if self.masked else counted
        return Timestep(observation, first, counted[:, 0] * valid, discount, valid, episodes)

    def reset(self) -> Timestep:
        yes = np.ones(ENVS, np.bool_)
        return self.show(yes, ~yes, np.zeros(ENVS, np.float32))

    def step(self) -> Timestep:
        first, valid = self.over, ~self.over
        self.steps += 1
        self.inside = np.where(first, 0, self.inside + 1)
        self.over = valid & (self.inside >= 4 + np.arange(ENVS))
        terminated = self.over & (np.arange(ENVS) % 2 == 0)
        none = np.empty(0)
        episodes = Episodes(none, none, np.flatnonzero(self.over)) if self.over.any() else None
        return self.show(first, valid, (valid & ~terminated).astype(np.float32), episodes)


def record(recorder: EpisodeRecorder, stream: Stream, steps: int) -> None:
    for _ in range(steps):
        then = stream.step()
        action = np.full(ENVS, stream.steps)
        recorder.record(action, {"epsilon": np.full(ENVS, 0.5, np.float32), "greedy": action % 2 == 0}, then)


def episodes_of(path: Path, structure: Any = None) -> Iterator[Episode]:
    part = Part(path)
    return Cutter(part, structure or optree.tree_structure(0)).episodes(find_cuts(part.flags(), part.closed))


def only_part(directory: Path) -> Path:
    (path,) = (directory / "parts").glob("*.part")
    return path


@pytest.fixture(params=[2, 8, 1000], ids=lambda rows: f"blocks of {rows}")
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "FEWEST_ROWS", 1)
    monkeypatch.setattr(module, "MOST_ROWS", request.param)
    return int(request.param)


def test_episodes_are_cut_out_of_blocks_of_any_size(rows: int, tmp_path: Path) -> None:
    recording, stream = Recording(tmp_path), Stream()
    recorder = recording.recorder("actor-0", ENVS, np.array([7, 8, 9]))
    recorder.begin(stream.reset())
    record(recorder, stream, 23)
    recording.close()
    episodes = list(episodes_of(only_part(tmp_path)))
    for episode in episodes:
        env, start = divmod(int(episode.observation[0, 0]), 1000)
        assert episode.observation[:, 0].tolist() == [env * 1000 + start + t for t in range(episode.length + 1)]
        assert episode.action.tolist() == [start + 1 + t for t in range(episode.length)]
        assert episode.reward.tolist() == episode.observation[1:, 0].tolist()
        over = episode.length == 4 + env
        assert (episode.terminated, episode.truncated) == (over and env % 2 == 0, over and env % 2 == 1)
        assert episode.seed == (7 + env if start == 0 else None)
    assert sum(episode.length for episode in episodes) == 23 * ENVS - sum(23 // (5 + env) for env in range(ENVS))


@pytest.fixture
def three_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    """Five rows in each."""
    monkeypatch.setattr(module, "FEWEST_ROWS", 1)
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    recording, stream = Recording(tmp_path), Stream()
    recorder = recording.recorder("actor-0", ENVS)
    recorder.begin(stream.reset())
    record(recorder, stream, 14)
    recording.close()
    part = Part(only_part(tmp_path))
    assert part.rows == 15 and part.closed and not part.damage
    return part


def ends_of(part: Part) -> list[int]:
    """Where its blocks end in the file."""
    assert part.header is not None
    return [block.offset + block.rows * part.header.row_bytes for block in part.blocks]


def test_a_part_that_is_torn_anywhere_holds_the_blocks_before(three_blocks: Part, tmp_path: Path) -> None:
    whole, ends = three_blocks.path.read_bytes(), ends_of(three_blocks)
    torn = tmp_path / "torn.part"
    for size in range(0, len(whole), 7):
        torn.write_bytes(whole[:size])
        found = Part(torn)
        assert found.rows == 5 * sum(end <= size for end in ends) and not found.closed and not found.damage
    torn.write_bytes(whole[: ends[0] - 1] + b"?" + whole[ends[0] :])
    assert Part(torn).rows == 0, "a block that was changed is not trusted, nor what follows"


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_part_of_which_a_byte_was_changed_says_so_and_holds_the_blocks_before(
    closed: bool, three_blocks: Part, tmp_path: Path
) -> None:
    whole, ends = three_blocks.path.read_bytes(), ends_of(three_blocks)
    times = {place for block in three_blocks.blocks for place in range(block.offset - 12, block.offset - 4)}
    changed, tail = tmp_path / "changed.part", three_blocks.blocks[-1].offset - BLOCK.size
    for place in sorted(set(range(tail)) - times):  # another time is no loss
        bad = whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :]
        changed.write_bytes(bad if closed else bad[: -BLOCK.size])
        found = Part(changed)
        assert found.damage and found.rows == 5 * sum(end <= place for end in ends), place
    changed.write_bytes(whole + b"more")
    assert "come after its end" in Part(changed).damage


def test_going_on_from_a_checkpoint_equals_never_having_stopped(rows: int, tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        recording, stream = Recording(tmp_path / name), Stream()
        recorder = recording.recorder("actor-0", ENVS)
        recorder.begin(stream.reset())
        record(recorder, stream, 10)
        if name == "killed":
            saved, later = recorder.save(), Stream()
            later.steps, later.inside, later.over = stream.steps, stream.inside, stream.over
            record(recorder, stream, 5)
            recorder.flush()  # and dies here
            recording = Recording(tmp_path / name)
            recorder, stream = recording.recorder("actor-0", ENVS), later
            recorder.load(saved)
            assert recorder.begun
        record(recorder, stream, 13)
        recording.close()
    whole, killed = ([str(one) for one in episodes_of(only_part(tmp_path / name))] for name in ("whole", "killed"))
    assert whole == killed


def test_the_mask_of_the_observation_before_an_action_counts_for_its_log_probability(rows: int, tmp_path: Path) -> None:
    algorithm = DQN(DQNConfig(), EnvSpec(ArraySpec((1,), "float32"), DiscreteAction(4)), NetworkConfig())
    recording, stream = Recording(tmp_path, algorithm.behaviour_log_prob, 4), Stream(masked=True)
    recorder = recording.recorder("actor-0", ENVS)
    start = stream.reset()
    recorder.begin(start)
    record(recorder, stream, 20)
    recording.close()
    found = list(episodes_of(only_part(tmp_path), optree.tree_structure(start.observation)))
    assert found
    for episode in found:
        allowed = episode.observation[ACTION_MASK][:-1].sum(-1)
        greedy = episode.action % 2 == 0
        np.testing.assert_allclose(episode.behaviour["log_prob"], np.log(0.5 * greedy + 0.5 / allowed), rtol=1e-6)


def test_envs_that_left_lose_the_episodes_that_went_on(tmp_path: Path) -> None:
    recording, stream = Recording(tmp_path), Stream()
    recorder = recording.recorder("inference", ENVS)
    recorder.begin(stream.reset())
    record(recorder, stream, 5)
    recording.abandon(recorder)
    recording.close()
    assert [(one.length, one.terminated, one.truncated) for one in episodes_of(only_part(tmp_path))] == [
        (4, True, False), (5, False, True),
    ]


def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    recording, stream = Recording(tmp_path), Stream()
    recorder = recording.recorder("actor-0", ENVS)
    record(recorder, stream, 3)
    recorder._path = Path("/dev/full")
    with pytest.raises(RecordingError, match="cannot be written: No space left"):
        recorder.flush()


def test_half_a_block_is_taken_back_and_later_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, header = tmp_path / "a.part", PartHeader(1, (), ArraySpec((), "int64"), {})
    columns = [np.zeros((2, 1), np.uint8), np.ones((2, 1), np.float32), np.arange(2)[:, None]]
    append_block(path, header, columns)

    class Full(io.BufferedWriter):
        def writelines(self, views: Any) -> None:
            self.write(b"half")
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode: Full(io.FileIO(self, "a")))
        with pytest.raises(OSError, match="No space"):
            append_block(path, header, columns)
    append_block(path, header, columns)
    assert Part(path).rows == 4
