"""TD3+BC (Fujimoto and Gu 2021): TD3 from data, whose policy stays near the data's actions. ReBRAC is `rebrac.py`.

    policy     −λ Q_1(o, π(o)) + (π(o) − a)²        λ = α / mean |Q_1|
    critics    as TD3's (`ddpg.py`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pappus.algorithms.ddpg import DDPG, DDPGConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition
from pappus.types import EnvSpec, Nest

SMALLEST_VALUE = 1e-6
"""λ stays finite where all values are 0."""


@dataclass(frozen=True)
class TD3BCConfig(DDPGConfig):
    """TD3's settings, and the weight of values."""

    twin: bool = True
    """Two critics; targets use the smaller value."""
    policy_delay: int = 2
    """Critic updates per policy update."""
    target_every: int = 2
    """Updates between steps of the target network."""
    smoothing: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    alpha: float = 2.5
    """Weight of the scaled value relative to the distance to the data's action; 0 clones the behaviour policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0:
            raise UserError(f"algorithm.alpha={self.alpha} must not be negative; 0 only clones the behaviour")


class TD3BC(DDPG):
    """Acts and learns as TD3 does, but for the policy's loss."""

    config: TD3BCConfig

    def __init__(self, config: TD3BCConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)

    def _policy_loss(self, network: Any, seen: Nest, batch: Transition) -> Tensor:
        action: Tensor = network.policy(seen)
        slope, value = self._slope(network, seen, action)
        scale = self.config.alpha / value.abs().mean().clamp(min=SMALLEST_VALUE)
        apart: Tensor = action.squeeze(0) - batch.action.flatten(1)
        return apart.square().mean() - scale * (action * slope).sum(-1).mean()
