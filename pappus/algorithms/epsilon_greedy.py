"""Acting on action values: the best action, or with probability ε a random one among those that are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from pappus.errors import UserError
from pappus.networks.numpy_mlp import NumpyStep
from pappus.networks.steps import StepFunction
from pappus.ops.numpy_ops import Fill, NoiseAhead, uniform
from pappus.ops.q_learning import ladder, linear, taken
from pappus.types import ACTION_MASK, Array, ArraySpec, Nest

SCALAR = ArraySpec((), "float32")


@dataclass(frozen=True)
class EpsilonConfig:
    """How often an action is random."""

    schedule: Literal["ladder", "linear"] = "ladder"
    """ladder: every env keeps its own ε (Ape-X). linear: all envs share one, which falls over time (DQN)."""
    base: float = 0.4
    """ladder: the largest ε."""
    alpha: float = 7.0
    """ladder: the smallest ε is base^(1 + alpha)."""
    start: float = 1.0
    """linear: ε at the start."""
    end: float = 0.05
    """linear: ε from `steps` on."""
    steps: int = 10_000
    """linear: env steps over which ε falls."""

    def __post_init__(self) -> None:
        for name in ("base", "start", "end"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"epsilon.{name}={getattr(self, name)} is no probability; use 0 … 1")


class EpsilonGreedy:
    """How DQN and R2D2 act. They record the value of the action, that of the best action, and ε.

    To change how actors act, override `act`, or pass `transform` to `roles.policy.LocalPolicy`.
    """

    behaviour: ClassVar[dict[str, ArraySpec]] = {"q": SCALAR, "value": SCALAR, "epsilon": SCALAR}
    part_delays: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, epsilon: EpsilonConfig) -> None:
        self._epsilon = epsilon

    def exploration(self, envs: Array, of: int, steps: int) -> Array:
        """ε of the envs with these indices among `of` envs, after `steps` env steps in total, `[N]`."""
        config = self._epsilon
        if config.schedule == "ladder":
            return ladder(envs, of, config.base, config.alpha).astype(np.float32)
        return np.full(len(envs), linear(steps, config.start, config.end, config.steps), np.float32)

    def act(
        self, step: StepFunction, observation: Nest, first: Tensor, state: Nest, generator: Generator | None,
        exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """ε-greedy actions for tensors `[N, …]`; greedy ones without a generator."""
        q, _, state = step(observation, first, state)
        value, action = q.max(-1)
        if generator is None or exploration is None:
            return action, {"q": value, "value": value, "epsilon": torch.zeros_like(value)}, state
        dice = torch.rand(2, len(q), generator=generator, device=q.device)
        anything = _any_action(dice[0], q.shape[-1], observation)
        action = torch.where(dice[1] < exploration, anything, action)
        return action, {"q": taken(q, action), "value": value, "epsilon": exploration}, state

    @property
    def numpy_noise(self) -> Fill:
        """The noise that `act_numpy` samples with."""
        return uniform

    def act_numpy(
        self, step: NumpyStep, observation: Array, noise: NoiseAhead, exploration: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """`act` with a generator, for an array `[N, …]` and a network without memory, in NumPy."""
        q = step(observation).q
        rows, count = np.arange(len(q)), q.shape[-1]
        action = q.argmax(-1)
        value = q[rows, action]
        if exploration is None:
            return action, {"q": value, "value": value, "epsilon": np.zeros_like(value)}
        which, whether = noise.take(2, len(q))
        anything = np.minimum((which * count).astype(np.int64), count - 1)
        action = np.where(whether < exploration, anything, action)
        return action, {"q": q[rows, action], "value": value, "epsilon": exploration}


def _any_action(dice: Tensor, count: int, observation: Nest) -> Tensor:
    """An action for every number in [0, 1), uniform over the allowed ones."""
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return (dice * count).long().clamp_(max=count - 1)
    allowed = observation[ACTION_MASK].bool().cumsum(-1)
    wanted = (dice * allowed[:, -1]).long().clamp_(max=count - 1) + 1
    return torch.searchsorted(allowed, wanted.unsqueeze(-1)).squeeze(-1).clamp_(max=count - 1)
