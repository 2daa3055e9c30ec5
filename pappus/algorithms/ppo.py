"""PPO: proximal policy optimization (Schulman et al. 2017, equations 7 and 9, algorithm 1).

    r = π(a|x) / μ(a|x)                                    μ is the policy that acted
    loss = −min(r Â, clip(r, 1 − ε, 1 + ε) Â) + c₁ ½ (V − G)² − c₂ H(π)

Â are generalised advantages (Schulman et al. 2016), G = Â + V. Both are computed once per batch. Then every epoch
draws new minibatches of the batch, an update each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import optree
import torch
from torch import Tensor, nn

from pappus.algorithms.actor_critic import ActorCriticAlgorithm
from pappus.algorithms.minibatches import Steps, balanced, check_minibatches, shuffled
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.core import ArrayLoss, SyncedEpochs
from pappus.errors import UserError
from pappus.networks.modules import ActorCritic, RunningMoments
from pappus.networks.numpy_mlp import numpy_mlp
from pappus.networks.steps import BatchForward, stacked
from pappus.ops.distributions import Categorical
from pappus.ops.losses import clipped_surrogate, clipped_value_loss
from pappus.ops.numpy_ops import categorical_surrogate
from pappus.ops.returns import gae
from pappus.overrides import stands_for
from pappus.types import ArraySpec, EnvSpec, Unroll, map_leaves


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """Defaults are common to most implementations."""

    discount: float = 0.99
    """γ."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation: 1 uses observed returns, 0 one-step value estimates."""
    clip: float = 0.2
    """ε: clips the probability ratio to 1 ± ε."""
    epochs: int = 4
    """Epochs per batch."""
    minibatches: int = 4
    """Minibatches per epoch, one update each."""
    baseline_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    value_clip: float = 0.0
    """Clips the change of a value by one batch, as ε does for the policy; 0: no limit."""
    normalize_advantage: bool = True
    """Normalise the advantages of each minibatch to mean 0 and deviation 1."""
    target_kl: float = 0.0
    """Stop the epochs of a batch once the KL divergence from the behaviour policy exceeds this (in nats); 0: no
    limit."""
    squash: bool = False
    """Squash continuous actions with tanh, which keeps them within the bounds; otherwise they are clipped."""
    normalize_returns: bool = True
    """Divide rewards by the running deviation of returns, so that errors of large values do not dominate the policy
    gradient in shared layers."""
    reward_scale: float = 1.0
    """Factor on rewards."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.minibatches < 1:
            raise UserError(f"algorithm.epochs={self.epochs}, minibatches={self.minibatches} must be at least 1")
        if not self.clip > 0 or self.value_clip < 0 or self.target_kl < 0:
            raise UserError(
                f"algorithm.clip={self.clip} must be positive, value_clip={self.value_clip} and "
                f"target_kl={self.target_kl} at least 0"
            )

    def check_batch(self, length: int, envs: int, sequences: bool) -> None:
        check_minibatches(self.minibatches, length, envs, sequences)


class PPO(ActorCriticAlgorithm):
    """How to act comes from the actor-critic; here is how to learn."""

    behaviour: ClassVar[dict[str, ArraySpec]] = {**ActorCriticAlgorithm.behaviour, "value": ArraySpec((), "float32")}

    def __init__(self, config: PPOConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(env, network, config.squash)
        self.config = config
        self._look = BatchForward()

    def check_batch(self, length: int, envs: int) -> None:
        """Raise `UserError` if a batch of `length` steps of `envs` envs cannot be cut into minibatches of one size."""
        self.config.check_batch(length, envs, has_memory(self.build_network()))

    def build_network(self) -> nn.Module:
        """The configured network, or the user's own; with the moments of returns, if rewards are divided by them."""
        network = super().build_network()
        if self.config.normalize_returns:
            network.add_module("returns", RunningMoments(1))
        return network

    @torch.no_grad()
    def prepare(self, network: Any, batch: Unroll, fresh: bool = False) -> Steps:
        """All steps of a batch, with values and advantages of the weights before the first update."""
        value, advantage = self.expected(network, batch, fresh)
        moments = getattr(network, "returns", None)
        if moments is not None:
            moments.update((advantage + value[:-1])[batch.valid])
        return self.steps(network, batch, value, advantage)

    def steps(self, network: Any, batch: Unroll, value: Tensor, advantage: Tensor) -> Steps:
        """All steps of a batch; values on the scale that the network uses from now on."""
        moments = getattr(network, "returns", None)
        if moments is not None:
            value, advantage = value * moments.scale, advantage * moments.scale
        memory, observation, state = has_memory(network), batch.observation, batch.state
        if not memory:
            observation, state = stacked(network, observation, batch.first, state), ()
        steps = Steps(
            map_leaves(lambda leaf: leaf[:-1], observation), batch.first[:-1], batch.action,
            batch.behaviour["log_prob"], value[:-1], advantage + value[:-1], advantage, batch.valid.float(), state,
        )
        if memory:
            return steps
        rows: Steps = map_leaves(lambda leaf: leaf.flatten(0, 1), steps._replace(first=()))
        return rows

    def expected(self, network: Any, batch: Unroll, fresh: bool) -> tuple[Tensor, Tensor]:
        """Values `[T + 1, B]` and advantages `[T, B]`, on the scale of the rewards."""
        config = self.config
        value = self._values(network, batch, fresh)
        moments = getattr(network, "returns", None)
        if moments is not None:
            value = value / moments.scale
        return value, gae(
            value, batch.reward * config.reward_scale, batch.discount * config.discount, batch.valid,
            lam=config.gae_lambda,
        )

    def _values(self, network: Any, batch: Unroll, fresh: bool) -> Tensor:
        """Values of all steps. A fresh batch recorded them while acting, except those of the last observations."""
        if has_memory(network):
            values: Tensor = network(batch.observation, batch.first, batch.state).value
            return values
        seen = stacked(network, batch.observation, batch.first, batch.state)
        if fresh:
            last = self._look(network, map_leaves(lambda leaf: leaf[-1], seen)).value
            return torch.cat([batch.behaviour["value"], last.unsqueeze(0)])
        rows: Tensor = self._look(network, map_leaves(lambda leaf: leaf.flatten(0, 1), seen)).value
        return rows.view(batch.first.shape)

    def minibatches(self, steps: Steps) -> Iterator[tuple[Steps, bool]]:
        """The minibatches of all epochs, and whether to report scalars: of the last one, and at the end of every epoch
        that may be the last. They are arrays if the steps are arrays."""
        config = self.config
        count, normalize = config.minibatches, config.normalize_advantage
        whole = [balanced(steps, 1, normalize)] if count == 1 else None  # the same in any order
        for epoch in range(1, config.epochs + 1):
            asked = bool(config.target_kl) or epoch == config.epochs
            for i, part in enumerate(whole or shuffled(steps, count, normalize), 1):
                yield part, asked and i == count

    def loss(self, network: nn.Module, steps: Steps, report: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate, the value loss and the entropy bonus, a mean over the valid steps."""
        config = self.config
        output = self._output(network, steps)
        log_prob, entropy = self.distribution.log_prob_and_entropy(output.policy, steps.action)
        log_ratio = log_prob - steps.log_prob
        actor = clipped_surrogate(log_ratio, steps.advantage, config.clip)
        critic = clipped_value_loss(output.value, steps.target, steps.value, config.value_clip)
        loss = (steps.share * (actor + config.baseline_cost * critic - config.entropy_cost * entropy)).sum()
        if not report:
            return loss, {}
        with torch.no_grad():
            change = log_ratio.exp() - 1
            scalars = {
                "value_loss": critic, "policy_loss": actor, "entropy": entropy, "approx_kl": change - log_ratio,
                "clip_fraction": (change.abs() > config.clip).float(),
            }
            return loss, {name: (steps.share * value).sum() for name, value in scalars.items()}

    def on_arrays(self, network: nn.Module) -> ArrayLoss | None:
        """`loss` and its gradient in closed form, for steps that are arrays: logits of a small network on a CPU.

        None for other networks, distributions and observations, and where a subclass has a loss of its own."""
        mlp = numpy_mlp(network, replaces=True) if isinstance(network, ActorCritic) else None
        plain = type(self.distribution) is Categorical and isinstance(self.env.observation, ArraySpec)
        if mlp is None or not plain or not stands_for(type(self), "on_arrays", "loss", "_output"):
            return None
        config = self.config
        surrogate = partial(
            categorical_surrogate, clip=config.clip, baseline_cost=config.baseline_cost,
            entropy_cost=config.entropy_cost, value_clip=config.value_clip,
        )

        def learn(steps: Steps, report: bool) -> tuple[float, dict[str, float]]:
            rows, backward = mlp.forward(steps.observation)
            found = surrogate(
                rows, steps.action, steps.log_prob, steps.advantage, steps.target, steps.value, steps.share
            )
            backward(found.gradient)
            return found.loss, found.scalars(steps.share, config.clip) if report else {}

        return learn

    def enough(self, scalars: Mapping[str, float]) -> bool:
        """Whether the policy has moved far enough, by the last minibatch of an epoch."""
        return bool(self.config.target_kl) and scalars["approx_kl"] > self.config.target_kl

    def synced(self) -> SyncedEpochs:
        """How several learners share minibatches."""
        from pappus.algorithms.synced_ppo import SyncedPPO  # which builds on this module

        return SyncedPPO(self)

    def _output(self, network: Any, steps: Steps) -> Any:
        if has_memory(network):
            return network(steps.observation, steps.first, steps.state)
        return self._look(network, steps.observation)


def has_memory(network: Any) -> bool:
    """Whether the network has recurrent state, beside the frames that it stacks."""
    state = network.state_spec
    return bool(optree.tree_leaves(state[1] if getattr(network, "frame_stack", None) is not None else state))
