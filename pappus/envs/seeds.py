"""Seeds of envs, derived from the seed of whoever steps them."""

from __future__ import annotations

import numpy as np

_SEEDS = 2**31 - 1  # ale-py and EnvPool take signed 32-bit seeds


def first_env_seed(seed: int, num_envs: int) -> int:
    """The seed of env 0; the others count up from it, so that envs of one vector never share a seed."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] % (_SEEDS - num_envs))
