"""Stable-Baselines3's DQN (uniform replay: it has no other), timed; run by the python of `sb3.txt`."""

from __future__ import annotations

import torch
from dqn_work import BATCH, CAPACITY, DEFAULTS, HIDDEN, LEARNING_RATE, N_STEP, TARGET_EVERY, WARM_UP, updates_per_round
from measuring import Setting, Window, measure
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger


class CountUpdates(BaseCallback):
    """Counts where a round of steps starts: the updates for those before it are done."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def _on_rollout_start(self) -> None:
        if self.model._n_updates:
            self.window.observe(self.num_timesteps, self.model._n_updates)

    def _on_step(self) -> bool:
        return not self.window.full


def train(setting: Setting, window: Window, _scratch: str) -> None:
    torch.set_num_threads(1)  # layers of 64 lose more to waiting for each other than they gain
    updates = updates_per_round(setting)
    envs = make_vec_env(setting.env, setting.envs, seed=0)
    model = DQN(
        "MlpPolicy",
        envs,
        learning_rate=LEARNING_RATE,
        buffer_size=CAPACITY,
        learning_starts=WARM_UP,
        batch_size=BATCH,
        train_freq=1,
        gradient_steps=updates,
        n_steps=N_STEP,
        target_update_interval=TARGET_EVERY * setting.envs // updates,  # it counts env steps
        policy_kwargs={"net_arch": HIDDEN},
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    try:
        model.learn(total_timesteps=10**12, callback=CountUpdates(window))
    finally:
        envs.close()


if __name__ == "__main__":
    measure("sb3", "stable_baselines3", DEFAULTS, train)
