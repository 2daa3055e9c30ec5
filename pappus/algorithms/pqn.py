"""PQN: parallelised Q-network (Gallici et al. 2024, section 4, algorithm 1): Q(λ) without replay or target network.

    G_t = r_t + γ ((1 − λ) max_a Q(o_{t+1}, a) + λ G_{t+1})                  λ-returns of fresh unrolls
    loss = ½ (Q(o_t, a_t) − G_t)²

Many envs in parallel stand for the replay, and layer normalisation keeps the values from diverging. Returns are
computed once per batch, as PPO's advantages are; then every epoch draws new minibatches, an update each. Actions are
ε-greedy. The network carries ε beside its weights: it falls with the steps that were learnt from.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pappus.algorithms.dqn import SCALAR, EpsilonConfig, EpsilonGreedy
from pappus.algorithms.minibatches import Steps, check_minibatches, drawn, shuffled
from pappus.algorithms.ppo import has_memory
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.errors import UserError
from pappus.networks.build import build_q_network, own_network
from pappus.networks.steps import BatchForward, stacked
from pappus.ops.q_learning import taken
from pappus.ops.returns import lambda_returns
from pappus.types import ArraySpec, EnvSpec, Unroll, map_leaves


@dataclass(frozen=True)
class PQNConfig(AlgorithmConfig):
    """Defaults are the paper's (appendix D), except that ε is annealed over a fixed number of steps."""

    discount: float = 0.99
    """γ."""
    q_lambda: float = 0.65
    """λ of the returns: 1 uses observed returns, 0 one-step targets."""
    epochs: int = 2
    """Epochs per batch."""
    minibatches: int = 4
    """Minibatches per epoch, one update each."""
    dueling: bool = False
    """Q = V + A − mean A."""
    reward_scale: float = 1.0
    """Factor on rewards for learning."""
    epsilon: EpsilonConfig = field(default_factory=lambda: EpsilonConfig("linear", end=0.001, steps=100_000))
    """Exploration."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.minibatches < 1:
            raise UserError(f"algorithm.epochs={self.epochs}, minibatches={self.minibatches} must be at least 1")
        if not 0 <= self.q_lambda <= 1:
            raise UserError(f"algorithm.q_lambda={self.q_lambda} must lie between 0 and 1")
        if self.epsilon.schedule != "linear":
            raise UserError(
                f"algorithm.epsilon.schedule={self.epsilon.schedule!r}: the envs of pqn share one ε; use linear"
            )

    def check_batch(self, length: int, envs: int, sequences: bool) -> None:
        check_minibatches(self.minibatches, length, envs, sequences)


class PQN(EpsilonGreedy):
    """How to act comes from `EpsilonGreedy`; this is how to learn."""

    behaviour: ClassVar[dict[str, ArraySpec]] = {"value": SCALAR}

    def __init__(self, config: PQNConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config.epsilon)
        if network.core != "none":
            raise UserError(f"core={network.core!r}: pqn learns from single steps and has no memory; use r2d2")
        self.config, self.env, self.network_config = config, env, network
        self._look = BatchForward()

    def check_batch(self, length: int, envs: int) -> None:
        """Raise `UserError` if a batch of `length` steps of `envs` envs cannot be cut into minibatches of one size."""
        self.config.check_batch(length, envs, sequences=False)

    def build_network(self) -> nn.Module:
        """The configured network, or the user's own; with ε, and the steps that it depends on."""
        network = own_network(self.env, self.network_config) or build_q_network(
            self.env, self.network_config, self.config.dueling, replay=False
        )
        if has_memory(network) or hasattr(network, "exploration"):
            raise UserError(
                f"network.factory={self.network_config.factory!r}: pqn learns from single steps, and keeps ε as the "
                "network's `exploration`; give a network with neither memory nor such a member"
            )
        network.register_buffer("exploration", torch.full((1,), self.config.epsilon.start))
        network.register_buffer("steps_learnt", torch.zeros(1))
        return network

    def prepare(self, network: Any, batch: Unroll, fresh: bool = False) -> Steps:
        """All steps of a batch, with the returns by the weights before the first update."""
        return self.steps(network, batch, fresh, batch.valid.sum())

    @torch.no_grad()
    def steps(self, network: Any, batch: Unroll, fresh: bool, learnt: Tensor) -> Steps:
        """The same; `learnt` is the number of valid steps of all learners' batches."""
        config, epsilon = self.config, self.config.epsilon
        network.steps_learnt.add_(learnt)
        left = (1 - network.steps_learnt / max(1, epsilon.steps)).clamp(min=0)
        network.exploration.copy_(epsilon.end + (epsilon.start - epsilon.end) * left)
        seen = stacked(network, batch.observation, batch.first, batch.state)
        target = lambda_returns(
            self._values(network, batch, seen, fresh), batch.reward * config.reward_scale,
            batch.discount * config.discount, batch.valid, lam=config.q_lambda,
        )
        observation = map_leaves(lambda leaf: leaf[:-1], seen)
        timed = Steps(observation, (), batch.action, (), (), target, (), batch.valid.float(), ())
        rows: Steps = map_leaves(lambda leaf: leaf.flatten(0, 1), timed)
        return rows

    def _values(self, network: Any, batch: Unroll, seen: Any, fresh: bool) -> Tensor:
        """max_a Q of all steps. A fresh batch recorded them while acting, except those of the last observations."""
        if fresh:
            last = self._look(network, map_leaves(lambda leaf: leaf[-1], seen)).q.amax(-1)
            return torch.cat([batch.behaviour["value"], last.unsqueeze(0)])
        rows: Tensor = self._look(network, map_leaves(lambda leaf: leaf.flatten(0, 1), seen)).q.amax(-1)
        return rows.view(batch.first.shape)

    def minibatches(self, steps: Steps) -> Iterator[tuple[Steps, bool]]:
        """The minibatches of all epochs; scalars are those of the last."""
        epochs, count = self.config.epochs, self.config.minibatches
        for epoch in range(epochs):
            for i, part in enumerate(shuffled(steps, count), 1):
                yield part, epoch == epochs - 1 and i == count

    def loss(self, network: nn.Module, steps: Steps, report: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        """The squared error, a mean over the valid steps."""
        q = taken(self._look(network, steps.observation).q, steps.action)
        error = q - steps.target
        loss = (steps.share * 0.5 * error.square()).sum()
        if not report:
            return loss, {}
        with torch.no_grad():
            scalars = {"td_loss": 0.5 * error.square(), "q": q, "td_error": error.abs()}
            means = {name: (steps.share * value).sum() for name, value in scalars.items()}
            return loss, {**means, "epsilon": network.get_buffer("exploration").float().sum()}

    def enough(self, scalars: Mapping[str, float]) -> bool:
        """All epochs are made."""
        return False

    def synced(self) -> SyncedPQN:
        """How several learners share minibatches."""
        return SyncedPQN(self)


class SyncedPQN:
    """How one of several learners trains on its part of a batch: minibatch j is the union of all learners' parts j."""

    def __init__(self, pqn: PQN) -> None:
        self._pqn, self.epochs = pqn, pqn.config.epochs

    def prepare(self, network: Any, batch: Unroll, fresh: bool) -> Generator[Tensor, Tensor, Steps]:
        """`PQN.prepare`, with the steps of all learners counted."""
        of_all = yield batch.valid.sum().float().view(1)
        return self._pqn.steps(network, batch, fresh, of_all.sum())

    @torch.no_grad()
    def epoch(self, steps: Steps) -> Generator[Tensor, Tensor, list[tuple[Steps, Tensor]]]:
        """This learner's parts of the minibatches of an epoch, whose shares sum to 1 over the part."""
        yield from ()  # every learner has counted its steps already: there is nothing to ask
        parts = drawn(steps, self._pqn.config.minibatches)
        counted = [(part, part.share.sum()) for part in parts]
        return [(part._replace(share=part.share / count.clamp(min=1)), count) for part, count in counted]

    def synced_buffers(self, network: nn.Module) -> list[Tensor]:
        """ε and what it depends on."""
        return [network.get_buffer("exploration"), network.get_buffer("steps_learnt")]
