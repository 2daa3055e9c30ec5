"""`pappus data record`: whole episodes of a policy, and the probabilities of what it did."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import pappus
from pappus.cli import main
from pappus.config import EnvOptions
from pappus.data.dataset import Dataset, open_dataset
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.play import Playing, RandomPlayer, allowed_actions, play
from pappus.types import ACTION_MASK, Array, Timestep

TAXI = next(name for name in gym.registry if name.startswith("Taxi-"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("play") / "run"
    settings = {"network.hidden_sizes": (8,), "evaluation.episodes": 1, "runtime": "inline", "actors": 1}
    pappus.train("a2c", "CartPole-v1", settings, steps=300, run_dir=directory)
    return directory


def log_probs(dataset: Dataset) -> Array:
    return np.concatenate([one.behaviour["log_prob"] for one in dataset.read(range(dataset.num_episodes))])


@pytest.mark.parametrize("episodes", [3, 70])
def test_as_many_whole_episodes_as_were_asked_for(episodes: int, tmp_path: Path) -> None:
    said = play(Playing("random", tmp_path, "CartPole-v1", episodes))
    dataset = open_dataset(tmp_path)
    played = list(dataset.read(range(dataset.num_episodes)))
    assert len(played) == episodes and all(one.terminated for one in played)
    returns = [one.reward.sum() for one in played]
    assert said.startswith(f"recorded {episodes} episodes") and f"{np.mean(returns):.2f}" in said
    np.testing.assert_allclose(log_probs(dataset), np.log(0.5), rtol=1e-6)


def test_a_set_that_is_continued_gets_other_episodes(tmp_path: Path) -> None:
    for _ in range(3):
        play(Playing("random", tmp_path / "parts", "CartPole-v1", episodes=3))
    starts = [tuple(one.observation[0]) for one in open_dataset(tmp_path / "parts").read(range(9))]
    assert len(set(starts)) == 9, "no episode is there twice"
    play(Playing("random", tmp_path / "again", "CartPole-v1", episodes=3))
    assert [tuple(one.observation[0]) for one in open_dataset(tmp_path / "again").read(range(3))] == starts[:3]


def test_random_actions_are_allowed_ones(tmp_path: Path) -> None:
    env = make_env(TAXI, 50, 0, EnvOptions())
    timestep, player = env.reset(), RandomPlayer(env.spec.action, 0)
    for _ in range(20):
        action, behaviour = player.act(timestep)
        mask = timestep.observation[ACTION_MASK]
        assert mask[np.arange(50), action].all() and (allowed_actions(timestep, env.spec.action) == (mask > 0)).all()
        np.testing.assert_allclose(np.exp(behaviour["log_prob"]), 1 / mask.sum(1), rtol=1e-6)
        timestep = env.step(action)


def test_a_greedy_policy_explores_as_often_as_it_is_told(run: Path, tmp_path: Path) -> None:
    assert main(["data", "record", "--policy", str(run), "--epsilon", "0.4", "--out", str(tmp_path)]) == 0
    probability = np.exp(log_probs(open_dataset(tmp_path)))
    np.testing.assert_allclose(np.unique(probability), [0.2, 0.8], rtol=1e-6)
    assert np.mean(probability > 0.5) == pytest.approx(0.8, abs=0.1)


def test_a_stochastic_policy_is_sampled_from(run: Path, tmp_path: Path) -> None:
    play(Playing(str(run), tmp_path, episodes=5, sample=True))
    assert len(np.unique(log_probs(open_dataset(tmp_path)))) > 10


def test_who_interrupts_is_told_what_becomes_of_the_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: RandomPlayer, timestep: Timestep) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RandomPlayer, "act", interrupted)
    assert main(["data", "record", "--policy", "random", "--env", "CartPole-v1", "--out", str(tmp_path)]) == 130
    assert f"kept: pappus data info {tmp_path} makes a data set of them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": "random"}, "needs an env"), ({"policy": "x", "epsilon": 2.0}, "is no probability"),
        ({"policy": "x", "episodes": 0}, "episodes=0 must be at least 1"),
        ({"policy": "x", "sample": True, "epsilon": 0.1}, "greedy"),
        ({"policy": "nowhere"}, "is no run directory"),
    ],
)
def test_what_cannot_be_played_is_said(settings: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        play(Playing(out=tmp_path / "set", **settings))  # type: ignore[arg-type]
    assert not (tmp_path / "set").exists()
