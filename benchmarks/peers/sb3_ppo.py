"""Stable-Baselines3's PPO, timed; run by the python of `sb3.txt`.

One worker steps its envs in this process; `--workers` equal to `--envs` gives each env a process of its own.
"""

from __future__ import annotations

import ale_py
import gymnasium as gym
import torch
from measuring import Setting, Window, measure
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack
from torch import nn

DEFAULTS = {"CartPole-v1": (1, 16), "ALE/Pong-v5": (1, 8)}
ROLLOUT_STEPS, EPOCHS, MINIBATCHES = 128, 4, 4


class CountIterations(BaseCallback):
    """Counts where a rollout starts: every step before it has been learned from."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.window.observe(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.window.full


class Torso(BaseFeaturesExtractor):
    """Two layers of 64 that policy and value share; SB3's own default gives each its own two."""

    def __init__(self, observation_space: gym.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=64)
        (size,) = observation_space.shape
        self.layers = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


def make_envs(setting: Setting) -> VecEnv:
    if setting.workers not in (1, setting.envs):
        raise ValueError(f"workers={setting.workers} with envs={setting.envs}: use 1, or as many as envs")
    vector = DummyVecEnv if setting.workers == 1 else SubprocVecEnv
    if setting.env == "CartPole-v1":
        return make_vec_env(setting.env, setting.envs, seed=0, vec_env_cls=vector)
    gym.register_envs(ale_py)
    # AtariWrapper repeats actions four times itself.
    frames = make_atari_env(setting.env, setting.envs, seed=0, env_kwargs={"frameskip": 1}, vec_env_cls=vector)
    return VecFrameStack(frames, n_stack=4)


def train(setting: Setting, window: Window, _scratch: str) -> None:
    envs = make_envs(setting)
    pixels = setting.env != "CartPole-v1"
    if not pixels:
        torch.set_num_threads(1)  # layers of 64 lose more to waiting for each other than they gain
    model = PPO(
        "CnnPolicy" if pixels else "MlpPolicy",
        envs,
        n_steps=ROLLOUT_STEPS,
        n_epochs=EPOCHS,
        batch_size=ROLLOUT_STEPS * setting.envs // MINIBATCHES,
        # CnnPolicy is the Nature network by default.
        policy_kwargs=None if pixels else {"features_extractor_class": Torso, "net_arch": []},
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    try:
        model.learn(total_timesteps=10**12, callback=CountIterations(window))
    finally:
        envs.close()


if __name__ == "__main__":
    measure("sb3", "stable_baselines3", DEFAULTS, train)
