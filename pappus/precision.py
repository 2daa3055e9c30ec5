"""Which precision a run computes in, chosen by measurement."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Literal, TypeAlias

import torch

from pappus.config import RunConfig
from pappus.core import Algorithm
from pappus.types import EnvSpec, map_leaves, unroll_spec

Precision: TypeAlias = Literal["float32", "bfloat16"]

REQUIRED_GAIN = 1.2
"""bfloat16 must be so much faster before its rounding is worth it."""
PROBE_SHAPE = (5, 8)
"""Unroll length and envs of the measured update."""


def choose_precision(config: RunConfig, algorithm: Algorithm, env: EnvSpec) -> Precision:
    """The config's precision, with `auto` resolved by timing updates in both."""
    if config.precision != "auto":
        return config.precision
    network: Any = algorithm.build_network()
    convolutional = any(isinstance(module, torch.nn.Conv2d) for module in network.modules())
    if config.runtime == "inline" or not convolutional:
        return "float32"
    batch = _zeros(algorithm, env, network.state_spec, config.device)
    network.to(config.device)
    exact = _time_update(algorithm, network, batch, "float32", config.device)
    rounded = _time_update(algorithm, network, batch, "bfloat16", config.device)
    return "bfloat16" if exact > REQUIRED_GAIN * rounded else "float32"


def _zeros(algorithm: Algorithm, env: EnvSpec, state: Any, device: str) -> Any:
    spec = unroll_spec(env, algorithm.behaviour, state, *PROBE_SHAPE)
    return map_leaves(lambda leaf: torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype), device=device), spec)


def _time_update(algorithm: Algorithm, network: Any, batch: Any, precision: str, device: str) -> float:
    """Seconds of the fastest of three updates."""
    kind = device.partition(":")[0]
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        with torch.autocast(kind, torch.bfloat16) if precision == "bfloat16" else nullcontext():
            loss, _ = algorithm.loss(network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if kind == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
