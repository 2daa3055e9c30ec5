"""Random actions that masks allow, for checks and tests."""

from __future__ import annotations

import numpy as np

from pappus.types import ACTION_MASK, Array, ContinuousAction, DiscreteAction, EnvSpec, Nest


def random_action(spec: EnvSpec, observation: Nest, num_envs: int, rng: np.random.Generator) -> Array:
    """One action per env, uniform over the allowed ones; continuous ones also exceed the bounds."""
    action = spec.action
    if isinstance(action, ContinuousAction):
        return rng.uniform(-1.25, 1.25, (num_envs, *action.shape)).astype(np.float32)
    scores = rng.random((num_envs, action.mask_size))
    if spec.masked:
        scores[observation[ACTION_MASK] == 0] = -1
    choices = np.stack([part.argmax(axis=1) for part in by_choice(spec, scores)], axis=1)
    return choices[:, 0] if isinstance(action, DiscreteAction) else choices


def by_choice(spec: EnvSpec, rows: Array) -> list[Array]:
    """`[N, mask_size]` cut into one `[N, n]` per choice of the action."""
    if isinstance(spec.action, ContinuousAction):
        return []
    nvec = (spec.action.n,) if isinstance(spec.action, DiscreteAction) else spec.action.nvec
    return np.split(rows, np.cumsum(nvec)[:-1], axis=1)
