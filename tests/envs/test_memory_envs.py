from __future__ import annotations

import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs import VectorEnv, make_env
from pappus.types import ArraySpec, DiscreteAction
from tests.contracts.env_contract import EnvContract

CARTPOLE, RECALL = "tests.envs.memory_envs:masked_cartpole", "tests.envs.memory_envs:delayed_recall"


class TestMaskedCartPole(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(CARTPOLE, num_envs, seed, EnvOptions())


class TestDelayedRecall(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(RECALL, num_envs, seed, EnvOptions(kwargs={"delay": 6, "cues": 5}))


def test_the_masked_cartpole_is_cartpole_without_velocities() -> None:
    masked, whole = (make_env(env, 3, 5, EnvOptions()) for env in (CARTPOLE, "CartPole-v1"))
    assert masked.spec.observation == ArraySpec((2,), "float32") and masked.spec.action == DiscreteAction(2)
    rng = np.random.default_rng(0)
    seen, full = masked.reset(), whole.reset()
    for _ in range(60):
        assert np.array_equal(seen.observation, full.observation[:, [0, 2]])
        assert all(np.array_equal(one, other) for one, other in zip(seen[1:5], full[1:5], strict=True))
        action = rng.integers(0, 2, 3)
        seen, full = masked.step(action), whole.step(action)


@pytest.mark.parametrize(("delay", "cues"), [(1, 2), (4, 3)])
@pytest.mark.parametrize("right", [True, False])
def test_recall_shows_the_cue_once_and_rewards_its_name_at_the_end(delay: int, cues: int, right: bool) -> None:
    env = make_env(RECALL, 4, 0, EnvOptions(kwargs={"delay": delay, "cues": cues}))
    timestep = env.reset()
    for _ in range(3):
        assert timestep.first.all() and not timestep.observation[:, -1].any()
        cue = timestep.observation[:, :cues].argmax(1)
        assert (timestep.observation.sum(1) == 1).all()
        for t in range(1, delay + 1):
            timestep = env.step(np.full(4, t % cues))
            assert not timestep.reward.any() and timestep.discount.all()
            assert not timestep.observation[:, :cues].any()
            assert (timestep.observation[:, -1] == (t == delay)).all()
        timestep = env.step(cue if right else (cue + 1) % cues)
        assert (timestep.reward == right).all() and not timestep.discount.any() and timestep.valid.all()
        assert timestep.episodes is not None and (timestep.episodes.lengths == delay + 1).all()
        assert not timestep.observation.any()
        timestep = env.step(cue)


def test_cues_are_drawn_evenly_and_anew_for_every_episode() -> None:
    env = make_env(RECALL, 500, 0, EnvOptions(kwargs={"delay": 1, "cues": 4}))
    first = env.reset().observation[:, :4]
    for _ in range(3):
        second = env.step(np.zeros(500, np.int64))
    again = second.observation[:, :4]
    assert second.first.all() and (again == first).all(1).mean() == pytest.approx(0.25, abs=0.08)
    assert first.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.08)
