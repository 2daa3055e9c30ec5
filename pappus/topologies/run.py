"""One run, as topologies see it: the config and what follows from it before anything is started."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from pappus.config import RunConfig
from pappus.core import Algorithm, OnPolicyAlgorithm, ReplayAlgorithm
from pappus.errors import UserError
from pappus.types import EnvSpec, Nest, Unroll, unroll_spec


@dataclass(frozen=True)
class Run:
    """What every role of a run may know."""

    config: RunConfig
    env: str | Callable[..., Any]
    env_spec: EnvSpec
    algorithm: Algorithm
    state_spec: Nest
    """Recurrent state of one env."""
    weights_size: int
    """Numbers in the flat buffer of weights."""
    directory: Path | None = None

    def unroll_spec(self, num_envs: int) -> Unroll:
        """An unroll of so many envs side by side."""
        return unroll_spec(
            self.env_spec, self.algorithm.behaviour, self.state_spec, self.config.unroll_length, num_envs
        )


def on_policy(algorithm: Algorithm) -> OnPolicyAlgorithm:
    """The same algorithm, if it learns from unrolls as they come."""
    if hasattr(algorithm, "experience"):
        raise UserError(f"{type(algorithm).__name__} learns from replay, which this topology has none of; use apex")
    return cast(OnPolicyAlgorithm, algorithm)


def off_policy(algorithm: Algorithm) -> ReplayAlgorithm:
    """The same algorithm, if it learns from replay."""
    if not hasattr(algorithm, "experience"):
        raise UserError(f"{type(algorithm).__name__} learns from fresh unrolls and not from replay; use impala")
    return cast(ReplayAlgorithm, algorithm)


def derive_seed(seed: int, *path: str | int) -> tuple[int, int]:
    """Two seeds for one purpose; purposes differ, and so do their streams."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    first, second = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return int(first) >> 1, int(second) >> 1
