"""Small policies with random weights: one for everything that an exported graph must have in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from pappus.algorithms.crossq import CrossQConfig
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.data.no_env import NoEnv
from pappus.envs.spaces import action_converter, observation_converter
from pappus.envs.vector import VectorEnv, WithLastInputs
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import RunningMoments
from pappus.networks.normed_mlps import BatchRenorm
from pappus.policy import TrainedPolicy
from pappus.systems import ALGORITHMS
from pappus.trained import policy_of
from pappus.types import ACTION_MASK, EnvSpec

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float64)
IMAGE = spaces.Box(0, 255, (36, 36), np.uint8)
GRID = spaces.Box(0, 1, (6, 6, 2), np.bool_)


def made(
    algorithm: str, observation: Any, action: Any, network: dict[str, Any], frame_stack: int = 1,
    last_inputs: bool = False, config: AlgorithmConfig | None = None,
) -> TrainedPolicy:
    """The policy of an algorithm, with its own config or this one, in an env with these spaces, which is nowhere."""
    torch.manual_seed(0)
    ours, _ = action_converter(action)
    shown, _ = observation_converter(observation, ours)
    env: VectorEnv = NoEnv(EnvSpec(shown, ours, frame_stack), observation, action)
    env = WithLastInputs(env) if last_inputs else env
    entry = ALGORITHMS[algorithm]
    sizes = NetworkConfig(hidden_sizes=(16,), core_size=8, **network)
    algorithm_made = entry.make(config or entry.config, env.spec, sizes)
    built = algorithm_made.build_network()
    for module in built.modules():
        if isinstance(module, RunningMoments):
            module.update(torch.randn(50, len(module.mean)) * 3 + 1)
        elif isinstance(module, BatchRenorm):
            module(torch.randn(50, len(module.mean)) * 3 + 1, learning=True)
    flat = FlatParameters(built).values.add_(torch.randn(FlatParameters(built).size) * 0.02)
    return TrainedPolicy(env, policy_of(algorithm_made, flat.numpy(), 1))


def mlp() -> TrainedPolicy:
    return made("ppo", VECTOR, spaces.Discrete(3, start=2), {"normalize": True})


def cnn() -> TrainedPolicy:
    return made("dqn", IMAGE, spaces.Discrete(4), {}, frame_stack=4)


def lstm() -> TrainedPolicy:
    return made("r2d2", VECTOR, spaces.Discrete(3), {"core": "lstm"}, last_inputs=True)


def masks() -> TrainedPolicy:
    shown = spaces.Dict({"seen": VECTOR, ACTION_MASK: spaces.MultiBinary(5)})
    return made("ppo", shown, spaces.MultiDiscrete([3, 2], start=[1, 0]), {})


def squashed() -> TrainedPolicy:
    return made("sac", VECTOR, spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([3.0, np.inf], np.float32)), {})


def normed() -> TrainedPolicy:
    return made("crossq", VECTOR, spaces.Box(-1.0, 1.0, (2,)), {}, config=CrossQConfig(critic_sizes=(16,)))


def dicts() -> TrainedPolicy:
    shown = spaces.Dict({
        "picture": GRID, "where": VECTOR, "kind": spaces.Discrete(5, start=-2),
        "both": spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-np.inf, np.inf, ())]),
    })
    return made("ppo", shown, spaces.Box(-1.0, 1.0, (2,)), {})


CASES: dict[str, Callable[[], TrainedPolicy]] = {
    "mlp": mlp, "cnn": cnn, "lstm": lstm, "masks": masks, "squashed": squashed, "normed": normed, "dicts": dicts,
}
