"""RLlib's DQN with its prioritized replay on its new API stack, timed; run by the python of `rllib.txt`.

Envs and learner take turns in the driver's process, as those of the other peers do.
"""

from __future__ import annotations

from typing import Any

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
    STEPS_PER_UPDATE,
    TARGET_EVERY,
    WARM_UP,
    updates_per_round,
)
from local_ray import drive  # before ray itself
from measuring import Setting, Window, measure
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
)

FRAGMENT_STEPS = 8
"""Steps of every env before the updates for them; it refuses fewer than `N_STEP`."""


def make_config(setting: Setting) -> DQNConfig:
    updates_per_round(setting)  # RLlib works it out from the intensity; refuse what does not divide
    return (
        DQNConfig()
        .environment(setting.env)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=setting.envs,
            rollout_fragment_length=FRAGMENT_STEPS,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .learners(num_learners=0)
        .training(
            lr=LEARNING_RATE,
            train_batch_size_per_learner=BATCH,
            training_intensity=BATCH / STEPS_PER_UPDATE,
            n_step=N_STEP,
            double_q=True,
            dueling=True,
            target_network_update_freq=TARGET_EVERY * STEPS_PER_UPDATE,  # it counts env steps
            num_steps_sampled_before_learning_starts=WARM_UP,
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer", "capacity": CAPACITY, "alpha": ALPHA, "beta": BETA
            },
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=HIDDEN, fcnet_activation="relu", head_fcnet_hiddens=[]
            )
        )
        .reporting(min_time_s_per_iteration=1, min_sample_timesteps_per_iteration=0)
    )


def progress(result: dict[str, Any]) -> tuple[int, int]:
    """Steps sampled and updates; no steps before the first update."""
    sampled = result.get(ENV_RUNNER_RESULTS, {}).get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0)
    trained = result.get(LEARNER_RESULTS, {}).get(ALL_MODULES, {}).get(NUM_MODULE_STEPS_TRAINED_LIFETIME, 0)
    return int(sampled) if trained else 0, int(trained) // BATCH


def train(setting: Setting, window: Window, scratch: str) -> None:
    torch.set_num_threads(1)  # layers of 64 lose more to waiting for each other than they gain
    drive(make_config(setting), window, scratch, progress)


if __name__ == "__main__":
    measure("rllib", "ray", DEFAULTS, train)
