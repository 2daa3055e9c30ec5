"""Stable-Baselines3's SAC, TD3 and PPO on MuJoCo; run by the python of `sb3.txt`, keeps a line per greedy evaluation.

    PYTHON benchmarks/peers/sb3_control.py sac --env HalfCheetah-v5 --seed 1 --folder RESULTS
"""

from __future__ import annotations

import control_work as work
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

OFF_POLICY = {
    "learning_rate": work.LEARNING_RATE, "batch_size": work.BATCH, "buffer_size": work.CAPACITY,
    "gamma": work.DISCOUNT, "tau": work.TARGET_SHARE, "train_freq": 1,
    "gradient_steps": 1, "policy_kwargs": {"net_arch": [*work.HIDDEN]},
}


def made(run: work.Run, env: VecEnv) -> BaseAlgorithm:
    """The agent with the settings of the comparison."""
    shared = {"env": env, "seed": run.seed, "device": "cpu"}
    replayed = {**OFF_POLICY, "learning_starts": run.warm_up, **shared}
    if run.algorithm == "sac":
        return SAC("MlpPolicy", **replayed)
    if run.algorithm == "td3":
        actions = env.action_space.shape
        return TD3(
            "MlpPolicy", **replayed, policy_delay=work.DELAY, target_policy_noise=work.SMOOTHING,
            action_noise=NormalActionNoise(np.zeros(actions), np.full(actions, work.NOISE)),
        )
    return PPO(
        "MlpPolicy", learning_rate=work.LEARNING_RATE, n_steps=work.ROLLOUT, batch_size=work.MINIBATCH,
        n_epochs=work.EPOCHS, gamma=work.DISCOUNT, gae_lambda=work.LAMBDA, clip_range=work.CLIP,
        max_grad_norm=work.LARGEST_NORM, **shared,
    )


def env_of(run: work.Run, seed: int, training: bool) -> VecEnv:
    """One env; PPO's is normalised, and rewards only while it learns."""
    made = DummyVecEnv([lambda: Monitor(gym.make(run.env))])
    made.seed(seed)
    if run.algorithm != "ppo":
        return made
    return VecNormalize(made, training=training, norm_reward=training, gamma=work.DISCOUNT)


class Evaluate(BaseCallback):
    """Plays greedily every so many steps, in envs of its own."""

    def __init__(self, run: work.Run) -> None:
        super().__init__()
        self.run, self.watch = run, work.Stopwatch()
        self.env = env_of(run, 10_000 + run.seed, training=False)

    def _on_step(self) -> bool:
        if self.num_timesteps % self.run.every == 0:
            self.watch.pause()
            if isinstance(self.env, VecNormalize):
                self.env.obs_rms = self.training_env.obs_rms
            score, _ = evaluate_policy(self.model, self.env, n_eval_episodes=self.run.episodes)
            self.run.keep(work.Point(self.num_timesteps, round(float(score), 2), *self.watch.stopped_at))
            self.watch.go_on()
        return self.num_timesteps < self.run.steps


def main() -> None:
    run = work.wanted("sb3")
    torch.set_num_threads(1)
    model = made(run, env_of(run, run.seed, training=True))
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.learn(total_timesteps=run.steps, callback=Evaluate(run))


if __name__ == "__main__":
    main()
