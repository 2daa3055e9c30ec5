"""Every adapter keeps the contract of a vector env."""

from __future__ import annotations

import gymnasium as gym

from pappus.config import AtariOptions, EnvOptions
from pappus.envs import VectorEnv, make_env
from tests.contracts.env_contract import EnvContract
from tests.envs import toy_envs

SHORT_GAME = AtariOptions(clip_rewards=False, max_frames=80)
LIVES = AtariOptions(clip_rewards=False, life_loss_ends_episode=True, sticky_actions=0.25)


class TestNativeCartPole(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("CartPole-v1", num_envs, seed, EnvOptions())


class TestTruncatedNativeCartPole(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("CartPole-v1", num_envs, seed, EnvOptions(kwargs={"max_episode_steps": 7}))


class TestCartPoleOneByOne(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("tests.envs.test_contract:cart_pole", num_envs, seed, EnvOptions())


class TestPendulum(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("Pendulum-v1", num_envs, seed, EnvOptions(kwargs={"max_episode_steps": 20}))


class TestAcrobot(EnvContract):
    ends = False

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("Acrobot-v1", num_envs, seed, EnvOptions())


class TestMountainCar(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("MountainCar-v0", num_envs, seed, EnvOptions(kwargs={"max_episode_steps": 20}))


class TestNestedObservations(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.Nested, num_envs, seed, EnvOptions())


class TestMaskInTheObservation(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.Masked, num_envs, seed, EnvOptions(kwargs={"by": "observation"}))


class TestMaskInTheInfo(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.Masked, num_envs, seed, EnvOptions(kwargs={"by": "info", "form": "flat"}))


class TestSameStepAutoreset(EnvContract):
    next_step, raw_rewards = False, False

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.same_step, num_envs, seed, EnvOptions())


class TestDisabledAutoreset(EnvContract):
    next_step, raw_rewards = False, False

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.masked_by_hand, num_envs, seed, EnvOptions())


class TestPong(EnvContract):
    snapshots, num_envs, steps = False, 2, 45

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("ALE/Pong-v5", num_envs, seed, EnvOptions(atari=SHORT_GAME))


class TestBreakoutWithLives(EnvContract):
    snapshots, num_envs, steps, lives = False, 2, 200, True

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("ALE/Breakout-v5", num_envs, seed, EnvOptions(atari=LIVES))


class TestEnvPoolCartPole(EnvContract):
    snapshots = False

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("CartPole-v1", num_envs, seed, EnvOptions(backend="envpool", threads=1))


class TestEnvPoolPong(EnvContract):
    snapshots, num_envs, steps = False, 2, 45

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("ALE/Pong-v5", num_envs, seed, EnvOptions(backend="envpool", threads=1, atari=SHORT_GAME))


def cart_pole() -> object:
    """A CartPole in all of Gymnasium's wrappers."""
    return gym.make("CartPole-v1")
