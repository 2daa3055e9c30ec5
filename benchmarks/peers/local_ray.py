"""What RLlib's scripts share: a small cluster in this machine, and an algorithm that trains until the window is full.

To be imported before anything of ray's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Read when ray is imported: no report of usage, and no second cluster when a finalizer runs after the shutdown.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_AUTO_CONNECT="0")

import ray
from measuring import Window
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

CPUS = 2
OBJECT_STORE_BYTES = 2 * 2**30


def drive(
    config: AlgorithmConfig, window: Window, scratch: str, count: Callable[[dict[str, Any]], tuple[int, int]]
) -> None:
    """`count` finds (steps learned from, updates) in what an iteration reports; no steps before the first update."""
    ray.init(
        num_cpus=CPUS,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=scratch,
    )
    try:
        _train(config, window, count)
    finally:
        ray.shutdown()


def _train(config: AlgorithmConfig, window: Window, count: Callable[[dict[str, Any]], tuple[int, int]]) -> None:
    algorithm = config.build_algo()
    try:
        while not window.full:
            steps, updates = count(algorithm.train())
            if steps:
                window.observe(steps, updates)
    finally:
        algorithm.stop()
