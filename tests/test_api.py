"""Pappus from Python, as a user's script calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

import pappus
from pappus.errors import UserError
from pappus.execution.description import first_network
from tests.process_tools import Training

TINY: dict[str, Any] = {"runtime": "inline", "envs_per_actor": 4, "steps": 400, "evaluation.episodes": 2}
SCRIPT = """
import gymnasium as gym
import numpy as np
import pappus

class Coin(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        return np.array([self.side], np.float32), {}
    def step(self, action):
        return np.array([self.side], np.float32), float(action == self.side), True, False, {}

result = pappus.train("impala", Coin, steps=60_000, envs_per_actor=16, unroll_length=5, run_dir=RUN,
                      optimizer={"learning_rate": 1e-2})
print("RETURN", result.summary.eval_return, [result.policy.act(np.array([s], np.float32)) for s in (0, 1)])
"""


def test_a_script_with_its_own_env_and_no_main_guard_trains_in_processes(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.replace("RUN", repr(str(tmp_path / "run"))))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RETURN 1.0 [0, 1]" in done.stdout


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
def test_a_trained_policy_acts_on_the_envs_own_observations(env: str, tmp_path: Path) -> None:
    policy = pappus.train("impala", env, run_dir=tmp_path / "run", **TINY).policy
    one = gym.make(env)
    observation, info = one.reset(seed=1)
    if "action_mask" in info:
        observation = {"observation": observation, "action_mask": info["action_mask"]}
    assert one.action_space.contains(policy.act(observation))


def test_evaluation_plays_the_saved_policy(tmp_path: Path) -> None:
    result = pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **TINY)
    evaluation = pappus.evaluate(result.directory, episodes=5)
    assert len(evaluation.returns) == 5 and evaluation.mean == np.mean(evaluation.returns)
    assert pappus.evaluate(result.directory, episodes=5).returns == evaluation.returns, "same seed, same episodes"


def test_episodes_are_filmed(tmp_path: Path) -> None:
    result = pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **TINY)
    words = (str(result.directory), "--episodes", "2", "--video", str(tmp_path / "films"))
    # In a process of its own: ffmpeg is forked, and gRPC's threads of other tests forbid that here.
    filming = Training(tmp_path / "eval", *words, command="eval")
    assert filming.wait(60) == 0, filming.output()
    assert f"films           {tmp_path}/films/episode-0.mp4 … {tmp_path}/films/episode-1.mp4" in filming.output()
    assert [film.name for film in sorted((tmp_path / "films").iterdir())] == ["episode-0.mp4", "episode-1.mp4"]
    assert all(film.stat().st_size > 1000 for film in (tmp_path / "films").iterdir())


def test_the_run_directory_holds_what_was_promised(tmp_path: Path) -> None:
    import json

    directory = pappus.train("impala", "CartPole-v1", run_dir=tmp_path / "run", **TINY).directory
    summary = json.loads((directory / "summary.json").read_text())
    assert set(summary) >= {
        "system", "env", "seed", "steps", "updates", "wall_seconds", "train_seconds", "steps_per_second",
        "episodic_return", "eval_return", "solved_at_step", "exit_reason",
    }
    assert summary["exit_reason"] == "steps done" and summary["steps"] >= 400
    names = {path.name for path in directory.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "log.txt", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)


def test_an_unknown_setting_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown option --learning-rate"):
        pappus.train("impala", "CartPole-v1", learning_rate=1.0, run_dir=tmp_path / "run")


@pytest.mark.parametrize("env", ["dict_and_tuple", "masked"])
def test_nested_and_masked_observations_train(env: str, tmp_path: Path) -> None:
    from tests.envs import toy_envs

    factory = {"dict_and_tuple": toy_envs.Nested, "masked": toy_envs.Masked}[env]
    result = pappus.train("impala", factory, run_dir=tmp_path / "run", core="lstm", **TINY)
    assert result.summary.updates > 0


def test_a_recurrent_policy_remembers_between_calls_and_forgets_on_reset(tmp_path: Path) -> None:
    policy = pappus.train("impala", "Pendulum-v1", core="lstm", run_dir=tmp_path / "run", **TINY).policy
    observation = np.array([0.5, 0.1, 1.0], np.float32)
    first, second = policy.act(observation), policy.act(observation)
    assert not np.array_equal(first, second)
    policy.reset()
    assert np.array_equal(policy.act(observation), first)


def test_a_policy_that_looks_at_its_last_action_and_reward_is_shown_them(tmp_path: Path) -> None:
    policy = pappus.train(
        "r2d2", "CartPole-v1", steps=300, runtime="inline", run_dir=tmp_path / "run",
        **{"topology.replay.warm_up": 10, "evaluation.every_steps": 0, "evaluation.episodes": 1},
    ).policy
    shown = []
    choose = policy.policy.choose
    policy.policy.choose = lambda seen, *rest: (shown.append(seen), choose(seen, *rest))[1]  # type: ignore[method-assign]
    actions = [policy.act(np.array([x, 0, 0.1, 0], np.float32), reward) for x, reward in ((0.0, 0.0), (0.1, 1.0))]
    policy.reset()
    policy.act(np.zeros(4, np.float32), 1.0)
    assert [int(one["last_action"][0]) for one in shown] == [0, actions[0], 0]
    assert [float(one["last_reward"][0]) for one in shown] == [0.0, 1.0, 0.0]


class TooLarge:
    def build_network(self) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes")


def test_a_network_that_does_not_fit_into_memory_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"the network does not fit into memory; use smaller --network\.hidden-sizes"):
        first_network(cast(Any, TooLarge()))
