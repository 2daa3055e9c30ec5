"""Discrete CQL: DQN that holds down the values of actions that the data do not show (Kumar et al. 2020, CQL(H)).

    loss = DQN's + α w (log Σ_a exp Q(o_t, a) − Q(o_t, a_t))

An action that no transition shows is judged by nobody: the maximum of the bootstrap would pick whatever the network
overestimates. The term pushes down on the largest values and up on those of the data. It is the cross-entropy of
softmax Q(o, ·) with the data's actions, so α also says how close the policy stays to the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.errors import UserError
from pappus.ops.numpy_ops import cross_entropy
from pappus.ops.q_learning import taken
from pappus.types import Array


@dataclass(frozen=True)
class CQLDQNConfig(DQNConfig):
    """Like DQN's, but with one-step targets, because longer returns are those of the behaviour policy."""

    alpha: float = 1.0
    """α: weight of the conservative term; 0: DQN. 1 is d3rlpy's default; the paper uses 4 for small data sets."""
    n_step: int = 1
    """Steps of the return before bootstrapping; more than one follow the behaviour policy."""
    dueling: bool = False
    """Q = V + A − mean A."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha < math.inf:
            raise UserError(f"algorithm.alpha={self.alpha} must not be negative; use 0 for plain DQN, or such as 1")


class CQLDQN(DQN):
    """DQN with the conservative term. With quantiles it acts on their mean."""

    config: CQLDQNConfig

    def extra_losses(self, q: Tensor, action: Tensor) -> dict[str, Tensor]:
        """α (log Σ exp Q − Q(a)); actions that a mask forbids are worth −10⁹ and add nothing."""
        return {"conservative_loss": self.config.alpha * (q.logsumexp(-1) - taken(q, action))}

    def extra_losses_on_arrays(self, q: Array, action: Array) -> dict[str, tuple[Array, Array]]:
        """The same; its gradient is α (softmax Q − 1[a])."""
        losses, gradient = cross_entropy(q, action)
        return {"conservative_loss": (self.config.alpha * losses, self.config.alpha * gradient)}
