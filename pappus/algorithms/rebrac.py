"""ReBRAC (Tarasov et al. 2023): TD3+BC with a penalty of its own for the policy and for the critics.

    G = r_t + … + γⁿ (min_i Q'_i(o', a') − β₂ ‖a' − â'‖²)        a' = π'(o') + ε, â' the data's next action
    policy     −λ min_i Q_i(o, π(o)) + β₁ ‖π(o) − a‖²            λ = 1 / mean |Q|

Critics have layer norms, all networks three layers (settings of the system in `systems.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pappus.algorithms.td3_bc import SMALLEST_VALUE, TD3BC, TD3BCConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition, Transitions
from pappus.types import EnvSpec, Nest


@dataclass(frozen=True)
class ReBRACConfig(TD3BCConfig):
    """The paper tunes the penalties per data set: β₁ over 0.001 … 0.1, β₂ over 0 … 0.5."""

    alpha: float = 1.0
    """Weight of the scaled value."""
    policy_penalty: float = 0.01
    """β₁: the policy's penalty on the squared distance to the data's action."""
    critic_penalty: float = 0.01
    """β₂: the targets' penalty on the squared distance of the next action to the data's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("policy_penalty", "critic_penalty"):
            if getattr(self, name) < 0:
                raise UserError(f"algorithm.{name}={getattr(self, name)} must not be negative; 0 does without")


class ReBRAC(TD3BC):
    """Learns from transitions with the data's next action."""

    config: ReBRACConfig

    def __init__(self, config: ReBRACConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)
        self.experience = Transitions(config.n_step, config.discount, config.reward_scale, next_action=True)

    def _goal(self, target: Any, batch: Transition) -> Tensor:
        action, value = self._next(target, batch)
        apart = (action - batch.next_action.flatten(1).clamp(-1.0, 1.0)).square().sum(-1)
        penalty = self.config.critic_penalty * apart.nan_to_num(nan=0.0)  # no action was taken where the episode ended
        goal: Tensor = batch.reward + batch.discount * (value - penalty)
        return goal

    def _policy_loss(self, network: Any, seen: Nest, batch: Transition) -> Tensor:
        action: Tensor = network.policy(seen)
        slope, value = self._slope(network, seen, action)
        scale = self.config.alpha / value.abs().mean().clamp(min=SMALLEST_VALUE)
        apart: Tensor = (action.squeeze(0) - batch.action.flatten(1)).square().sum(-1)
        return self.config.policy_penalty * apart.mean() - scale * (action * slope).sum(-1).mean()

    def _judged(self, network: Any, seen: Nest, action: Tensor) -> Tensor:
        """The smaller of the critics' values."""
        return torch.stack(network.judge(seen, action)).amin(0)
