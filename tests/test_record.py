"""`--record DIR`: what a run recorded is what its learner saw, and what is wrong is said before training begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from pappus.algorithms.a2c import A2C
from pappus.algorithms.ppo import PPO
from pappus.algorithms.pqn import PQN
from pappus.algorithms.vtrace import VTrace
from pappus.data.dataset import Dataset, open_dataset
from pappus.errors import UserError
from pappus.play import Playing, play
from pappus.recording.direct import RecordingSink
from pappus.systems import SYSTEMS, find_system
from pappus.types import Array, Timestep, leaves_of

TINY: dict[str, Any] = {
    "runtime": "inline", "actors": 1, "envs_per_actor": 4, "batch_size": 8, "steps": 400, "network.hidden_sizes": (8,),
    "evaluation.episodes": 1, "topology.replay.warm_up": 5, "topology.replay.samples_per_insert": 1.0,
}
UNROLLS: dict[str, Any] = {
    "runtime": "inline", "actors": 2, "envs_per_actor": 4, "unroll_length": 8, "steps": 400,
    "network.hidden_sizes": (8,), "evaluation.episodes": 1,
}
ONLINE = [name for name, system in SYSTEMS.items() if system.topology.name != "offline"]
CONTINUOUS = ("ddpg", "td3", "d4pg", "fast-td3", "sac", "crossq")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Every step that a learner got, in a batch of unrolls or through the sink of its replay."""
    steps: Counter[bytes] = Counter()

    def tapped(original: Any) -> Any:
        def learn(self: Any, network: Any, batch: Any, *rest: Any) -> Any:
            count_unroll(steps, batch)
            return original(self, network, batch, *rest)

        return learn

    for kind, name in ((VTrace, "loss"), (A2C, "loss"), (PPO, "prepare"), (PQN, "prepare")):
        monkeypatch.setattr(kind, name, tapped(getattr(kind, name)))
    original = RecordingSink.record

    def record(self: Any, seen: Timestep, state: Any, action: Array, behaviour: Any, then: Timestep) -> int:
        flags = (seen.first, then.reward, then.discount)
        for env in np.flatnonzero(then.valid):
            steps[key(leaves_of(seen.observation), leaves_of(then.observation), action, *flags, env)] += 1
        return original(self, seen, state, action, behaviour, then)

    monkeypatch.setattr(RecordingSink, "record", record)
    return steps


def count_unroll(steps: Counter[bytes], batch: Any) -> None:
    leaves = [leaf.numpy() for leaf in leaves_of(batch.observation)]
    columns = [leaf.numpy() for leaf in (batch.action, batch.first[:-1], batch.reward, batch.discount)]
    for t, env in zip(*np.nonzero(batch.valid.numpy()), strict=True):
        now, then = ([leaf[i] for leaf in leaves] for i in (t, t + 1))
        steps[key(now, then, *(column[t] for column in columns), env)] += 1


def key(now: Any, then: Any, action: Array, first: Array, reward: Array, discount: Array, env: Any) -> bytes:
    """All bits of one env's step."""
    parts = [*(leaf[env] for leaf in now), *(leaf[env] for leaf in then), action[env]]
    numbers = np.float32(reward[env]), np.float32(discount[env])
    return b"|".join(np.asarray(part).tobytes() for part in (*parts, bool(first[env]), *numbers))


def recorded_steps(dataset: Dataset) -> Iterator[bytes]:
    for episode in dataset.read(range(dataset.num_episodes)):
        leaves, ends = leaves_of(episode.observation), np.arange(episode.length) == episode.length - 1
        discount = 1 - (ends & episode.terminated).astype(np.float32)
        for t in range(episode.length):
            now, then = ([leaf[i : i + 1] for leaf in leaves] for i in (t, t + 1))
            columns = episode.action[t : t + 1], np.array([t == 0]), episode.reward[t : t + 1], discount[t : t + 1]
            yield key(now, then, *columns, 0)


BESIDE = {"topology.inference_in": "learner"}
"""The path of a GPU, here on a CPU."""


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in ONLINE), ("seed-vtrace", BESIDE), ("pqn@seed", BESIDE)]
)
def test_what_is_recorded_is_what_the_learner_saw(
    name: str, settings: dict[str, Any], seen: Counter[bytes], tmp_path: Path
) -> None:
    system = find_system(name)
    replay = system.algorithm.learns_from_replay
    env = "Pendulum-v1" if system.algorithm.name in CONTINUOUS else "CartPole-v1"
    sizes = TINY if replay else UNROLLS
    result = pappus.train(name, env, sizes | settings, run_dir=tmp_path / "run", record=tmp_path / "data")
    dataset = open_dataset(tmp_path / "data")
    recorded = Counter(recorded_steps(dataset))
    assert result.summary.updates > 0 and not seen - recorded
    unseen = (recorded - seen).total()
    assert unseen == 0 if replay else unseen <= 2 * 4 * 8 * 2, "steps of unrolls that no batch took"
    log_prob = np.concatenate([one.behaviour["log_prob"] for one in dataset.read(range(dataset.num_episodes))])
    assert np.isfinite(log_prob).all()


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "appo", *CONTINUOUS])
def test_what_is_learned_from_is_what_the_env_did_within_its_bounds(name: str, tmp_path: Path) -> None:
    settings = {"record": str(tmp_path / "data"), "steps": 120}
    replay = find_system(name).algorithm.learns_from_replay
    pappus.train(name, "tests.envs.toy_envs:Weak", (TINY if replay else UNROLLS) | settings, run_dir=tmp_path / "run")
    dataset = open_dataset(tmp_path / "data")
    episodes = list(dataset.read(range(dataset.num_episodes)))
    said, done = (np.concatenate(x) for x in zip(*((e.action, e.observation[1:]) for e in episodes), strict=True))
    low, high = np.array([-0.4, 1]), np.array([0.4, 3])
    np.testing.assert_allclose(done, (low + high) / 2 + said.clip(-1, 1) * (high - low) / 2, rtol=1e-6, atol=1e-6)
    assert len(said) > 100 and said.std(0).min() > 0.05 and (not replay or np.abs(said).max() <= 1)
    assert all(not e.terminated for e in episodes), "time limits are no ends"


def test_a_resumed_run_goes_on_with_its_data_set(tmp_path: Path) -> None:
    settings = {**UNROLLS, "optimizer.anneal": False}
    pappus.train("impala", "CartPole-v1", settings, run_dir=tmp_path / "whole", record=tmp_path / "all")
    pappus.train("impala", "CartPole-v1", settings | {"steps": 200}, run_dir=tmp_path / "run", record=tmp_path / "data")
    first = open_dataset(tmp_path / "data").num_episodes
    pappus.resume(tmp_path / "run", steps=400)
    found, expected = (Counter(recorded_steps(open_dataset(tmp_path / name))) for name in ("data", "all"))
    assert open_dataset(tmp_path / "data").num_episodes > first
    assert not found - expected and found.total() > 0.7 * expected.total(), "without the rest of what was cut off"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("acrobot", "its env is Acrobot-v1, and that of this run CartPole-v1; give another folder"),
        ("file/inside", "cannot be written: Not a directory"),
        ("acrobot/data", "is the inner folder of a data set; give the one above it"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_anything_begins(place: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    play(Playing("random", tmp_path / "acrobot", "Acrobot-v1", episodes=1))
    with pytest.raises(UserError, match=words):
        pappus.train("a2c", "CartPole-v1", UNROLLS, run_dir=tmp_path / "run", record=tmp_path / place)
    assert not (tmp_path / "run").exists()
