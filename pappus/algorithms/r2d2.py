"""R2D2: DQN with memory, learnt from replayed sequences (Kapturowski et al. 2019).

    stored state ──burn-in──▶ state ──learnt from──▶ Q(o_t, a_t)
    G_t = h(r_t + γ r_{t+1} + … + γⁿ h⁻¹(Q'(o_{t+n}, argmax_a Q(o_{t+n}, a))))       h flattens large values
    loss = w · Σ_t ½ (G_t − Q(o_t, a_t))²       priority = η max |δ| + (1 − η) mean |δ|

The state that an actor had at the start of a sequence is stale by the time it is replayed; unrolling both networks over
the burn-in first, without learning from it, makes it fresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pappus.algorithms.dqn import EpsilonConfig, EpsilonGreedy
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.errors import UserError
from pappus.experience import LossOutput, Sequence, Sequences, SequenceStats, TargetUpdates
from pappus.networks.build import build_q_network, own_network
from pappus.networks.steps import unroll_after_burn_in
from pappus.ops import sequence_priorities
from pappus.ops.q_learning import double_q, mixed_priority, rescale, taken, unrescale
from pappus.ops.returns import n_step_returns
from pappus.types import Array, EnvSpec, map_leaves


@dataclass(frozen=True)
class R2D2Config(AlgorithmConfig):
    """Defaults are the paper's (table 2)."""

    discount: float = 0.997
    """γ."""
    n_step: int = 5
    """Steps of the return before bootstrapping."""
    burn_in: int = 40
    """Steps that only warm up the recurrent state."""
    length: int = 80
    """Steps of a sequence used for learning."""
    period: int = 40
    """Steps between the starts of consecutive sequences, which overlap in the rest."""
    stored_state: bool = True
    """Start sequences from the actor's recurrent state; otherwise from zeros."""
    dueling: bool = True
    """Q = V + A − mean A."""
    head_size: int = 0
    """Units of a hidden layer of each stream of the head; 0: none."""
    rescaling: float = 1e-3
    """ε of the value rescaling; 0: none."""
    eta: float = 0.9
    """η: weight of the largest error in a sequence's priority, against the mean."""
    target_every: int = 2_500
    """Updates between copies to the target network."""
    reward_scale: float = 1.0
    """Factor on rewards for learning."""
    epsilon: EpsilonConfig = field(default_factory=EpsilonConfig)
    """Exploration."""

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.length < 2 or not 1 <= self.period < self.length:
            raise UserError(
                f"algorithm.burn_in={self.burn_in}, length={self.length}, period={self.period}: sequences of at least "
                "2 steps must begin again before they end; use such as 40, 80, 40"
            )
        if not 0 <= self.eta <= 1 or self.rescaling < 0:
            raise UserError(f"algorithm.eta={self.eta} must lie in 0 … 1, and rescaling={self.rescaling} not below 0")
        if self.n_step < 1 or self.target_every < 1:
            raise UserError(f"algorithm.n_step={self.n_step} and target_every={self.target_every} must be at least 1")


class R2D2(EpsilonGreedy):
    """How to act comes from `EpsilonGreedy`; this is how to learn."""

    def __init__(self, config: R2D2Config, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config.epsilon)
        self.config, self.env, self.network_config = config, env, network
        self.experience = Sequences(config.burn_in, config.length, config.period, config.reward_scale)
        self.target_updates = TargetUpdates(config.target_every)

    def build_network(self) -> nn.Module:
        config = self.config
        return own_network(self.env, self.network_config) or build_q_network(
            self.env, self.network_config, config.dueling, config.head_size
        )

    def initial_priority(self, steps: SequenceStats) -> Array:
        """The priority of the loss, with the actor's own values in place of the target network's."""
        config, behaviour = self.config, steps.behaviour
        discount = steps.discount * np.float32(config.discount)
        error = sequence_priorities.n_step_error(
            behaviour["q"], behaviour["value"], steps.reward, discount, steps.valid, n=config.n_step,
            rescaling=config.rescaling,
        )
        return sequence_priorities.mixed_priority(error, steps.valid, config.eta)

    def loss(
        self, network: nn.Module, target: nn.Module, batch: Sequence, weight: Tensor, update: int = 0
    ) -> LossOutput:
        """The weighted squared error of rescaled n-step double Q-learning, a mean over the batch and over time."""
        config = self.config
        now = self._unroll(network, batch)
        with torch.no_grad():
            later = self._unroll(target, batch)
            value = double_q(later.q, now.q)
        action, reward, discount, valid = (
            leaf[config.burn_in :] for leaf in (batch.action, batch.reward, batch.discount, batch.valid)
        )
        q = taken(now.q, action)
        error = self._error(q, value, reward, discount, valid)
        loss = (weight * 0.5 * error.square().mean(0)).mean()
        size = error.detach().abs()
        count = valid.sum().clamp(min=1)
        scalars = {"td_loss": loss.detach(), "q": (q.detach() * valid).sum() / count, "td_error": size.sum() / count}
        return LossOutput(loss, scalars, mixed_priority(error.detach(), valid, config.eta))

    def _error(self, q: Tensor, value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor) -> Tensor:
        """δ_t = h(G_t) − Q(o_t, a_t), all `[T, B]`, and 0 where not valid; `value` is on the scale of Q."""
        config = self.config
        values = unrescale(value, config.rescaling)
        values = torch.cat([values, torch.zeros_like(values[:1])])
        returns = n_step_returns(values, reward, discount * config.discount, valid, n=config.n_step)
        return torch.where(valid, rescale(returns, config.rescaling) - q, 0.0)

    def _unroll(self, network: Any, batch: Sequence) -> Any:
        """The network's output for the steps that are learnt from, from a state that the burn-in has made fresh."""
        state = None if self.config.stored_state else map_leaves(torch.zeros_like, batch.state)
        return unroll_after_burn_in(network, batch, self.config.burn_in, state)
