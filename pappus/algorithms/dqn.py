"""DQN with what Ape-X gave it: double Q, dueling heads, n-step returns, prioritized replay.

    Mnih et al. 2015, van Hasselt et al. 2016, Wang et al. 2016, Schaul et al. 2016, Horgan et al. 2018 (section 3)

    G = r_t + γ r_{t+1} + … + γⁿ Q'(o_{t+n}, argmax_a Q(o_{t+n}, a))         Q' is the target network
    loss = w · huber(G − Q(o_t, a_t))                                         w corrects for the priorities

With `quantiles`, the distribution of returns is learnt instead of its mean (Dabney et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.core import ReplayArrayLoss
from pappus.errors import UserError
from pappus.experience import LossOutput, TargetUpdates, Transition, Transitions, TransitionStats
from pappus.networks.build import build_q_network, own_network
from pappus.networks.numpy_mlp import NumpyStep, numpy_mlp
from pappus.networks.q_networks import QNetwork
from pappus.networks.steps import BatchForward, StepFunction
from pappus.ops.numpy_ops import NoiseAhead, uniform
from pappus.ops.q_learning import double_q, huber_q_loss, ladder, linear, quantile_huber, taken
from pappus.overrides import stands_for
from pappus.types import ACTION_MASK, Array, ArraySpec, EnvSpec, Nest

SCALAR = ArraySpec((), "float32")
GREEDY = "greedy"
"""What ε-greedy policies say beside what is stored for replay: whether the action is the best."""


@dataclass(frozen=True)
class EpsilonConfig:
    """ε-greedy exploration."""

    schedule: Literal["ladder", "linear"] = "ladder"
    """ladder: every env has its own fixed ε (Ape-X). linear: all envs share one annealed ε (DQN)."""
    base: float = 0.4
    """ladder: the largest ε."""
    alpha: float = 7.0
    """ladder: the smallest ε is base^(1 + alpha)."""
    start: float = 1.0
    """linear: ε at the start."""
    end: float = 0.05
    """linear: ε after `steps`."""
    steps: int = 10_000
    """linear: env steps over which ε is annealed."""

    def __post_init__(self) -> None:
        for name in ("base", "start", "end"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"epsilon.{name}={getattr(self, name)} is no probability; use 0 … 1")


class EpsilonGreedy:
    """How DQN, R2D2 and PQN act. The former record the value of the action, that of the best action, and ε.

    To change how actors act, override `act`, or pass `transform` to `roles.acting.LocalPolicy`.
    """

    behaviour: ClassVar[dict[str, ArraySpec]] = {"q": SCALAR, "value": SCALAR, "epsilon": SCALAR}
    said: ClassVar[tuple[str, ...]] = (*behaviour, GREEDY)
    """What `act` says of its actions: more than is learnt from."""
    part_delays: ClassVar[tuple[int, ...]] = (1,)
    numpy_noise = staticmethod(uniform)
    """The noise that `act_numpy` samples with."""

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
        value, best = q.max(-1)
        if generator is None or exploration is None:
            never, always = torch.zeros_like(value), torch.ones_like(value, dtype=torch.bool)
            return best, {"q": value, "value": value, "epsilon": never, GREEDY: always}, state
        dice = torch.rand(2, len(q), generator=generator, device=q.device)
        anything = _any_action(dice[0], q.shape[-1], observation)
        action = torch.where(dice[1] < exploration, anything, best)
        epsilon = exploration.expand_as(value).clone()  # PQN's lies beside the weights, which change in place
        return action, {"q": taken(q, action), "value": value, "epsilon": epsilon, GREEDY: action == best}, state

    def act_numpy(
        self, step: NumpyStep, observation: Array, noise: NoiseAhead, exploration: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """`act` with a generator, for an array `[N, …]` and a network without memory, in NumPy."""
        q = step(observation).q
        rows, count = np.arange(len(q)), q.shape[-1]
        best = q.argmax(-1)
        value = q[rows, best]
        if exploration is None:
            never, always = np.zeros_like(value), np.ones(len(q), np.bool_)
            return best, {"q": value, "value": value, "epsilon": never, GREEDY: always}
        which, whether = noise.take(2, len(q))
        anything = np.minimum((which * count).astype(np.int64), count - 1)
        action = np.where(whether < exploration, anything, best)
        epsilon = np.full_like(value, exploration)
        return action, {"q": q[rows, action], "value": value, "epsilon": epsilon, GREEDY: action == best}

    def behaviour_log_prob(self, behaviour: Mapping[str, Array], allowed: Array) -> Array | None:
        """log π(a | o) = log([a is the best] (1 − ε) + ε / allowed), all of one shape."""
        if GREEDY not in behaviour:  # an `act` of a subclass may not say so
            return None
        epsilon = behaviour["epsilon"]
        log_prob: Array = np.log(behaviour[GREEDY] * (1 - epsilon) + epsilon / allowed)
        return log_prob


@dataclass(frozen=True)
class DQNConfig(AlgorithmConfig):
    """Defaults are Ape-X's (Horgan et al. 2018, appendix C)."""

    discount: float = 0.99
    """γ."""
    n_step: int = 3
    """Steps of the return before bootstrapping."""
    double: bool = True
    """Double Q-learning: the network selects the next action, the target network evaluates it."""
    dueling: bool = True
    """Q = V + A − mean A."""
    head_size: int = 0
    """Units of a hidden layer of each stream of the head; 0: none."""
    quantiles: int = 1
    """Quantiles of the return to learn for every action; 1: its mean."""
    huber: float = 1.0
    """Threshold of the Huber loss: larger errors count linearly."""
    target_every: int = 2_500
    """Updates between copies to the target network."""
    reward_scale: float = 1.0
    """Factor on rewards for learning."""
    epsilon: EpsilonConfig = field(default_factory=EpsilonConfig)
    """Exploration."""

    def __post_init__(self) -> None:
        for name in ("n_step", "quantiles", "target_every"):
            if getattr(self, name) < 1:
                raise UserError(f"algorithm.{name}={getattr(self, name)} must be at least 1")
        if not self.huber > 0:
            raise UserError(f"algorithm.huber={self.huber} must be positive")


class DQN(EpsilonGreedy):
    """How to act comes from `EpsilonGreedy`; this is how to learn."""

    def __init__(self, config: DQNConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config.epsilon)
        if network.core != "none":
            raise UserError(f"core={network.core!r} needs sequences, and DQN learns from single transitions; use r2d2")
        self.config, self.env, self.network_config = config, env, network
        self.experience = Transitions(config.n_step, config.discount, config.reward_scale)
        self.target_updates = TargetUpdates(config.target_every)
        self._look = BatchForward()

    def build_network(self) -> nn.Module:
        config = self.config
        return own_network(self.env, self.network_config) or build_q_network(
            self.env, self.network_config, config.dueling, config.head_size, config.quantiles
        )

    def initial_priority(self, steps: TransitionStats) -> Array:
        """|δ|, with the actor's own values in place of the target network's."""
        goal = steps.reward + steps.discount * steps.next_behaviour["value"]
        priority: Array = np.abs(goal - steps.behaviour["q"])
        return priority

    def loss(
        self, network: nn.Module, target: nn.Module, batch: Transition, weight: Tensor, update: int = 0
    ) -> LossOutput:
        """The weighted Huber loss of n-step double Q-learning, a mean over the batch."""
        config = self.config
        now = self._look(network, batch.observation)
        with torch.no_grad():
            later = self._look(target, batch.next_observation)
            chooser = self._look(network, batch.next_observation).q if config.double else later.q
            goal = batch.reward + batch.discount * double_q(later.q, chooser)
        q = taken(now.q, batch.action)
        if config.quantiles == 1:
            losses = F.huber_loss(q, goal, reduction="none", delta=config.huber)
        else:
            best = chooser.argmax(-1)
            rows = torch.arange(len(best), device=best.device)
            goals = batch.reward.unsqueeze(-1) + batch.discount.unsqueeze(-1) * later.quantiles[rows, best]
            losses = quantile_huber(now.quantiles[rows, batch.action], goals, config.huber)
        loss = torch.dot(weight, losses.float()) / len(losses)
        values = q.detach()
        error = (goal - values).abs()
        scalars = {"td_loss": loss.detach(), "q": values.mean(), "td_error": error.mean()}
        for name, extra in self.extra_losses(now.q, batch.action).items():
            term = torch.dot(weight, extra.float()) / len(extra)
            loss, scalars[name] = loss + term, term.detach()
        return LossOutput(loss, scalars, error)

    def extra_losses(self, q: Tensor, action: Tensor) -> dict[str, Tensor]:
        """What a subclass adds to the loss of every item, `[B]` by name, from the values of all actions `[B, A]`."""
        return {}

    def extra_losses_on_arrays(self, q: Array, action: Array) -> dict[str, tuple[Array, Array]]:
        """`extra_losses` for arrays, each with its gradient by the values `[B, A]`."""
        return {}

    def on_arrays(self, network: nn.Module, target: nn.Module) -> ReplayArrayLoss | None:
        """`loss` and its gradient in closed form, for items that are arrays: values of a small network on a CPU.

        None for other networks and observations, quantiles, and where a subclass has a loss of its own."""
        mlp, judge = numpy_mlp(network, replaces=True), numpy_mlp(target)
        plain = self.config.quantiles == 1 and isinstance(self.env.observation, ArraySpec)
        own = stands_for(type(self), "on_arrays", "loss") and stands_for(
            type(self), "extra_losses_on_arrays", "extra_losses"
        )
        if mlp is None or judge is None or not plain or not own:
            return None
        head, config = cast(QNetwork, network).head, self.config
        mixing = head.mixing().numpy() if head.dueling else np.eye(head.num_actions, dtype=np.float32)

        def learn(batch: Transition, weight: Array) -> LossOutput:
            rows, backward = mlp.forward(batch.observation)
            later = judge(batch.next_observation).q
            chooser = mlp(batch.next_observation).q if config.double else later
            goal = batch.reward + batch.discount * later[np.arange(len(later)), chooser.argmax(-1)]
            values = rows @ mixing
            found = huber_q_loss(values, batch.action, goal, weight, config.huber)
            q, error = (float(np.add.reduce(of)) / len(goal) for of in (found.q, found.error))
            scalars, gradient, loss = {"td_loss": found.loss, "q": q, "td_error": error}, found.gradient, found.loss
            for name, (extra, slope) in self.extra_losses_on_arrays(values, batch.action).items():
                share = weight / np.float32(len(goal))
                scalars[name] = term = float(share @ extra)
                loss, gradient = loss + term, gradient + share[:, None] * slope
            backward(gradient @ mixing.T)
            return LossOutput(loss, scalars, found.error)

        return learn


def _any_action(dice: Tensor, count: int, observation: Nest) -> Tensor:
    """An action for every number in [0, 1), uniform over the allowed ones."""
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return (dice * count).long().clamp_(max=count - 1)
    allowed = observation[ACTION_MASK].bool().cumsum(-1)
    wanted = (dice * allowed[:, -1]).long().clamp_(max=count - 1) + 1
    return torch.searchsorted(allowed, wanted.unsqueeze(-1)).squeeze(-1).clamp_(max=count - 1)
