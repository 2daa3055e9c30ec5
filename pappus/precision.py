"""Which precision a run computes in, chosen by measurement on a CPU, by what its tensor cores offer on a GPU."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Literal, TypeAlias

import torch

from pappus.accelerator import one_thread
from pappus.config import RunConfig
from pappus.core import Algorithm, EpochAlgorithm
from pappus.networks.many_mlps import ManyMLPs
from pappus.networks.normed_mlps import NormedMLPs
from pappus.types import EnvSpec, map_leaves, unroll_spec

Precision: TypeAlias = Literal["float32", "mixed", "bfloat16"]

REQUIRED_GAIN = 1.2
"""How many times faster bfloat16 must be for its rounding to be worth it."""
PROBE_SHAPE = (5, 16)
"""Unroll length and envs of the measured update."""
ROUNDS = 4
HALF_INSTRUCTIONS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
"""Of `torch.cpu`; older versions lack some."""
SMALLEST_MIXED = 256
"""Rows of a batch, and units of a hidden layer, from which on `mixed` is chosen: a product of 256 × 256 × 256 takes 170
instead of 335 µs with AVX512-BF16, and rounding what it multiplies 20."""


def choose_precision(config: RunConfig, algorithm: Algorithm, env: EnvSpec) -> Precision:
    """The config's precision, with `auto` resolved: on a CPU by timing updates in both."""
    if config.precision != "auto":
        return config.precision
    if hasattr(algorithm, "experience"):
        return "mixed" if config.device == "cpu" and mixing_pays(algorithm, config.batch_size) else "float32"
    network: Any = algorithm.build_network()
    convolutional = any(isinstance(module, torch.nn.Conv2d) for module in network.modules())
    if config.inline or not convolutional:
        return "float32"
    if config.device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    spec = unroll_spec(env, algorithm.behaviour, network.state_spec, *PROBE_SHAPE)
    batch: Any = map_leaves(lambda leaf: torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype)), spec)
    if isinstance(algorithm, EpochAlgorithm):
        batch = algorithm.prepare(network, batch, fresh=False)
    seconds: dict[Precision, float] = {"float32": float("inf"), "bfloat16": float("inf")}
    with one_thread():
        for _ in range(ROUNDS):  # in turn, so that both see the same load; the first rounds warm up
            for precision in seconds:
                spent = _time_update(algorithm, network, batch, precision)
                seconds[precision] = min(seconds[precision], spent)
    return "bfloat16" if seconds["float32"] > REQUIRED_GAIN * seconds["bfloat16"] else "float32"


def mixing_pays(algorithm: Algorithm, batch: int) -> bool:
    """Whether this CPU makes products of the hidden layers faster in bfloat16. A rule and not a measurement, so that a
    run repeats to the bit on this machine."""
    multiplies_half = any(getattr(torch.cpu, name, bool)() for name in HALF_INSTRUCTIONS)
    if not multiplies_half or batch < SMALLEST_MIXED or hasattr(algorithm, "on_arrays"):
        return False
    found = [module for module in algorithm.build_network().modules() if isinstance(module, ManyMLPs | NormedMLPs)]
    return any(module.narrowest >= SMALLEST_MIXED for module in found)


def _time_update(algorithm: Any, network: Any, batch: Any, precision: Precision) -> float:
    """Process time of one update, which other processes do not lengthen."""
    start = time.process_time()
    with torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext():
        loss, _ = algorithm.loss(network, batch)
    loss.backward()
    return time.process_time() - start
