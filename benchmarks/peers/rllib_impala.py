"""RLlib's IMPALA on its new API stack, timed; run by the python of `rllib.txt`."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
import secrets
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ale_py
import gymnasium as gym
import ray
from measuring import Setting, Window, measure
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

DEFAULTS = {"CartPole-v1": (2, 128), "ALE/Pong-v5": (2, 8)}
FRAGMENT = {"CartPole-v1": int(os.environ.get("FRAG", 50)), "ALE/Pong-v5": int(os.environ.get("FRAG", 32))}
OBJECT_STORE_BYTES = 2 * 2**30
NATURE = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
NETWORKS = {
    "CartPole-v1": DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True),
    "ALE/Pong-v5": DefaultModelConfig(
        conv_filters=NATURE, conv_activation="relu", head_fcnet_hiddens=[512], vf_share_layers=True
    ),
}


def pong(_config: dict[str, Any]) -> gym.Env:
    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=84, scale_obs=True)
    env = gym.wrappers.FrameStackObservation(env, 4)
    space = gym.spaces.Box(0.0, 1.0, (84, 84, 4), "float32")
    return gym.wrappers.TransformObservation(env, lambda frames: frames.transpose(1, 2, 0), space)


def make_config(setting: Setting) -> IMPALAConfig:
    fragment = FRAGMENT[setting.env]
    n=int(os.environ.get("NL","1"))
    return (
        IMPALAConfig()
        .environment("pong" if setting.env == "ALE/Pong-v5" else setting.env, clip_rewards=True if "Pong" in setting.env else None)
        .env_runners(
            num_env_runners=setting.workers,
            num_envs_per_env_runner=setting.envs,
            rollout_fragment_length=fragment,
            num_cpus_per_env_runner=float(os.environ.get("CPR","0.5")),
            gym_env_vectorize_mode=os.environ.get("MODE","sync"),
        )
        .learners(num_learners=n, num_cpus_per_learner=1)
        .training(train_batch_size_per_learner=int(os.environ.get("BATCH","0")) or fragment * setting.envs, timeout_s_sampler_manager=float(os.environ.get("TO","0")), **({"broadcast_interval": int(os.environ["BC"])} if "BC" in os.environ else {}))
        .rl_module(model_config=NETWORKS[setting.env])
        .reporting(min_time_s_per_iteration=1)
    )


def train(setting: Setting, window: Window) -> None:
    register_env("pong", pong)
    with tempfile.TemporaryDirectory(prefix="ray") as directory:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
        )
        algorithm = make_config(setting).build_algo()
        try:
            import sys
            while not window.full:
                r = algorithm.train()
                t=r.get("learners",{}).get("__all_modules__",{}).get("num_env_steps_trained_lifetime")
                s=r["env_runners"].get("num_env_steps_sampled_lifetime"); print("SAMPLED",s,"TRAINED",t, 0, r["env_runners"].get("episode_return_mean"), file=sys.stderr)
                if t: window.observe(s)
            print('DROPPED', r['learner_group'], file=sys.stderr)
        finally:
            algorithm.stop()
            ray.shutdown()


if __name__ == "__main__":
    measure("rllib_impala", "ray", DEFAULTS, train)
