"""tianshou's DQN with its prioritized buffer, timed; run by the python of `tianshou.txt`."""

from __future__ import annotations

import gymnasium as gym
import torch
from dqn_work import (
    ALPHA,
    BATCH,
    BETA,
    CAPACITY,
    DEFAULTS,
    HIDDEN,
    LEARNING_RATE,
    N_STEP,
    TARGET_EVERY,
    WARM_UP,
    updates_per_round,
)
from measuring import Setting, Window, measure
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, PrioritizedVectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode


def make_algorithm(env: gym.Env) -> DQN:
    # Dueling streams without layers of their own, as ours has them.
    streams = ({"hidden_sizes": []}, {"hidden_sizes": []})
    network = Net(
        state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=HIDDEN,
        dueling_param=streams,
    )
    return DQN(
        policy=DiscreteQLearningPolicy(model=network, action_space=env.action_space, eps_training=0.1),
        optim=AdamOptimizerFactory(lr=LEARNING_RATE), n_step_return_horizon=N_STEP, target_update_freq=TARGET_EVERY,
    )


def train(setting: Setting, window: Window, _scratch: str) -> None:
    """Its parts in a plain loop: its own trainer does the same and keeps statistics besides."""
    torch.set_num_threads(1)  # layers of 64 lose more to waiting for each other than they gain
    per_round = updates_per_round(setting)
    envs = DummyVectorEnv([lambda: gym.make(setting.env) for _ in range(setting.envs)])
    algorithm = make_algorithm(gym.make(setting.env))
    buffer = PrioritizedVectorReplayBuffer(CAPACITY, setting.envs, alpha=ALPHA, beta=BETA)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True, raise_on_nan_in_buffer=False)
    collector.reset()
    steps, updates = WARM_UP // setting.envs * setting.envs, 0
    with policy_within_training_step(algorithm.policy):
        collector.collect(n_step=steps)
        while not window.full:
            steps += collector.collect(n_step=setting.envs).n_collected_steps
            with torch_train_mode(algorithm):
                for _ in range(per_round):
                    algorithm.update(buffer=buffer, sample_size=BATCH)
            updates += per_round
            window.observe(steps, updates)


if __name__ == "__main__":
    measure("tianshou", "tianshou", DEFAULTS, train)
