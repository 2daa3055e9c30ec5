"""d3rlpy's offline algorithms on a data set in Minari's format: greedy score and updates/s; run by the python of
`d3rlpy.txt`, where pappus is not installed.

    PYTHON benchmarks/peers/d3rlpy_offline.py --algorithm discrete-cql --data DIR --steps 5000 --seeds 1 2 3 4 5

Prints one line of JSON per seed. Settings that are not given are d3rlpy's defaults.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium as gym
import h5py
import numpy as np
import structlog
import torch
from d3rlpy.algos import (
    AWACConfig,
    BCConfig,
    CQLConfig,
    DiscreteBCConfig,
    DiscreteCQLConfig,
    DoubleDQNConfig,
    IQLConfig,
    ReBRACConfig,
    TD3PlusBCConfig,
)

WARM_UP = 100
"""Updates before the clock starts: networks are built and the first batches touch fresh memory."""
ALGORITHMS: dict[str, Any] = {
    "discrete-bc": DiscreteBCConfig, "discrete-cql": DiscreteCQLConfig, "double-dqn": DoubleDQNConfig,
    "bc": BCConfig, "cql": CQLConfig, "iql": IQLConfig, "td3-bc": TD3PlusBCConfig, "awac": AWACConfig,
    "rebrac": ReBRACConfig,
}


def episodes_of(folder: Path) -> list[dict[str, Any]]:
    """Every episode's arrays; observations have a row more than the rest."""
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        groups = sorted(file, key=lambda name: int(name.rpartition("_")[2]))
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        return [{name: file[group][name][()] for name in names} for group in groups]


def best(episodes: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """The share of episodes with the highest returns."""
    ranked = sorted(episodes, key=lambda episode: -float(episode["rewards"].sum()))
    return ranked[: max(1, round(share * len(ranked)))]


def dataset_of(episodes: list[dict[str, Any]]) -> Any:
    """d3rlpy's buffer; it has no observation after a truncation, and leaves such a transition out."""
    column = {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]
              if name != "observations"}
    seen = np.concatenate([episode["observations"][:-1] for episode in episodes]).astype(np.float32)
    return d3rlpy.dataset.MDPDataset(
        seen, column["actions"], column["rewards"].astype(np.float32), column["terminations"].astype(np.float32),
        column["truncations"].astype(np.float32),
    )


def build(arguments: argparse.Namespace, env: gym.Env[Any, Any]) -> Any:
    """The algorithm with the sizes and rates that were asked for."""
    config = ALGORITHMS[arguments.algorithm]
    fields = config.__dataclass_fields__
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=arguments.hidden)
    settings = {name: encoder for name in fields if name.endswith("encoder_factory")}
    if arguments.learning_rate:
        settings |= {name: arguments.learning_rate for name in fields if name.endswith("learning_rate")}
    if arguments.batch_size:
        settings["batch_size"] = arguments.batch_size
    if isinstance(env.action_space, gym.spaces.Box):
        space = env.action_space
        settings["action_scaler"] = d3rlpy.preprocessing.MinMaxActionScaler(minimum=space.low, maximum=space.high)
    if arguments.normalize:
        settings["observation_scaler"] = d3rlpy.preprocessing.StandardObservationScaler()
    if arguments.reward_scale != 1.0:
        settings["reward_scaler"] = d3rlpy.preprocessing.MultiplyRewardScaler(arguments.reward_scale)
    return config(**{**settings, **json.loads(arguments.settings)}).create(device=False)


def train(arguments: argparse.Namespace, data: Any, env: gym.Env[Any, Any]) -> tuple[Any, float]:
    """The trained algorithm and its updates per second."""
    algorithm, started = build(arguments, env), [0.0]

    def watch(_algorithm: Any, _epoch: int, step: int) -> None:
        if step == WARM_UP:
            started[0] = time.perf_counter()

    algorithm.fit(
        data, arguments.steps, n_steps_per_epoch=arguments.steps, show_progress=False, callback=watch,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    return algorithm, (arguments.steps - WARM_UP) / (time.perf_counter() - started[0])


def play(algorithm: Any, env: gym.Env[Any, Any], episodes: int, seed: int) -> float:
    """Mean return of greedy episodes."""
    total = 0.0
    for number in range(episodes):
        seen, over = env.reset(seed=seed + number)[0], False
        while not over:
            action = algorithm.predict(np.asarray(seen, np.float32)[None])[0]
            seen, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=5_000, help="updates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--best", type=float, default=1.0, help="share of episodes with the highest returns")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rate", type=float, help="of every optimizer")
    parser.add_argument("--normalize", action="store_true", help="scale observations to mean 0 and deviation 1")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="rewards are multiplied by it")
    parser.add_argument("--settings", default="{}", help="further settings of the algorithm, as JSON")
    parser.add_argument("--episodes", type=int, default=20, help="greedy episodes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # layers of 64 lose more to waiting for each other than they gain
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    env, data = gym.make(arguments.env), dataset_of(best(episodes_of(arguments.data), arguments.best))
    for seed in arguments.seeds:
        d3rlpy.seed(seed)
        algorithm, rate = train(arguments, data, env)
        score = play(algorithm, env, arguments.episodes, 1_000 * seed)
        result = {
            "peer": "d3rlpy", "version": version("d3rlpy"), "algorithm": arguments.algorithm,
            "data": arguments.data.name, "seed": seed, "steps": arguments.steps, "score": round(score, 2),
            "updates_per_second": round(rate, 1),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
