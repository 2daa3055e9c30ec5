"""How likely a trained policy takes an action: what off-policy estimates ask of it.

    Sampled      a ~ π(· | o)                             actor-critics, as they act while they train
    SoftGreedy   the best action, or with ε any allowed   policies over one discrete choice
    Fixed        one action, without a density            deterministic policies
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from pappus.core import Algorithm
from pappus.errors import UserError
from pappus.ops.distributions import Categorical, Distribution
from pappus.types import ACTION_MASK, ActionSpec, ContinuousAction, DiscreteAction, Nest


class ActionChoice(Protocol):
    """The choice among actions at observations `[…]`."""

    @property
    def probabilities(self) -> Tensor | None:
        """Of every action, `[…, A]`, where the policy makes one discrete choice."""

    def log_prob(self, action: Tensor) -> Tensor:
        """log π(a | o) of actions `[…, *action]`, −∞ where it is never taken; the log-density of continuous ones."""

    def sample(self, count: int, generator: Generator) -> Tensor:
        """`count` actions at every observation, `[count, …, *action]`; fewer where they would be the same."""


@dataclass(frozen=True)
class Sampled:
    """A distribution, with the parameters that a network computed."""

    distribution: Distribution
    params: Tensor

    @property
    def probabilities(self) -> Tensor | None:
        return self.params.softmax(-1) if isinstance(self.distribution, Categorical) else None

    def log_prob(self, action: Tensor) -> Tensor:
        return self.distribution.log_prob(self.params, action)

    def sample(self, count: int, generator: Generator) -> Tensor:
        return torch.stack([self.distribution.sample_with_log_prob(self.params, generator)[0] for _ in range(count)])


@dataclass(frozen=True)
class SoftGreedy:
    """π(a | o) = (1 − ε) [a is the best] + ε / (number of allowed actions)."""

    best: Tensor
    epsilon: float
    allowed: Tensor
    """`[…, A]`, bool."""

    @property
    def probabilities(self) -> Tensor:
        spread = self.epsilon * self.allowed / self.allowed.sum(-1, keepdim=True)
        return spread.scatter_add(-1, self.best.unsqueeze(-1), torch.full_like(spread[..., :1], 1 - self.epsilon))

    def log_prob(self, action: Tensor) -> Tensor:
        return self.probabilities.gather(-1, action.unsqueeze(-1)).squeeze(-1).log()

    def sample(self, count: int, generator: Generator) -> Tensor:
        rows = self.probabilities
        drawn = torch.multinomial(rows.reshape(-1, rows.shape[-1]), count, replacement=True, generator=generator)
        return drawn.T.reshape(count, *self.best.shape)


@dataclass(frozen=True)
class Fixed:
    """One action for every observation. Discrete ones have the probability 1; continuous ones have no density."""

    action: Tensor
    spec: ActionSpec
    probabilities: None = None

    def log_prob(self, action: Tensor) -> Tensor:
        if isinstance(self.spec, ContinuousAction):
            raise UserError(
                "a deterministic policy has no density over continuous actions, so data cannot be weighted by it; use "
                "--methods fqe"
            )
        width = len(self.spec.array.shape)
        same = (action == self.action).reshape(*action.shape[: action.dim() - width], -1).all(-1)
        return torch.where(same, 0.0, -torch.inf)

    def sample(self, count: int, generator: Generator) -> Tensor:
        return self.action.unsqueeze(0)


def is_sampled(algorithm: Algorithm) -> bool:
    """Whether the policy is a distribution over actions; else it has one best action for every observation."""
    return hasattr(algorithm, "distribution") and not getattr(algorithm, "deterministic", False)


def choice_of(
    algorithm: Any, output: Any, observation: Nest, first: Tensor, greedy: bool, epsilon: float
) -> ActionChoice:
    """The choice of an algorithm whose network gave this output for observations `[T, N, …]`. `greedy`: the most likely
    action instead of a sampled one. `epsilon`: how often an action is random, where one of several is best."""
    if is_sampled(algorithm) and not greedy:
        return Sampled(algorithm.distribution, output.policy)
    action, _, _ = algorithm.act(lambda *_: output, observation, first, output.state, None)
    spec: ActionSpec = algorithm.env.action
    if not isinstance(spec, DiscreteAction):
        return Fixed(action, spec)
    allowed = torch.ones(*action.shape, spec.n, dtype=torch.bool, device=action.device)
    if isinstance(observation, dict) and ACTION_MASK in observation:
        mask = observation[ACTION_MASK].bool()
        allowed = mask | ~mask.any(-1, keepdim=True)  # many envs allow nothing after the end, where nothing is done
    return SoftGreedy(action, epsilon, allowed)
