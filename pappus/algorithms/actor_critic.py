"""What all actor-critics share: a policy-value network and how it acts.

To change how actors act, override `act`, or pass `transform` to `roles.acting.LocalPolicy`. Both are honoured whichever
way the network is computed: the NumPy path is taken only where `act` and `_recorded` are those that it stands for.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from torch import Generator, Tensor, nn

from pappus.config import NetworkConfig
from pappus.networks.build import build_actor_critic, own_network
from pappus.networks.numpy_mlp import NumpyStep
from pappus.networks.steps import StepFunction
from pappus.ops.distributions import distribution_for, numpy_sampler
from pappus.ops.numpy_ops import Fill, NoiseAhead, NumpySampler
from pappus.types import Array, ArraySpec, EnvSpec, Nest


class ActorCriticAlgorithm:
    """Samples from the policy head and records the log-probability of the sample."""

    reduction: str = "mean"
    """Whether the loss is the mean or the sum over its valid steps; see `OnPolicyAlgorithm`."""
    behaviour: ClassVar[dict[str, ArraySpec]] = {"log_prob": ArraySpec((), "float32")}

    def __init__(self, env: EnvSpec, network: NetworkConfig, squash: bool = False) -> None:
        """`squash` keeps continuous actions between their bounds."""
        self.env, self.network_config = env, network
        self.distribution = distribution_for(env.action, squash)

    def build_network(self) -> nn.Module:
        """The configured network, or the user's own."""
        return own_network(self.env, self.network_config) or build_actor_critic(self.env, self.network_config)

    def act(
        self, step: StepFunction, observation: Nest, first: Tensor, state: Nest, generator: Generator | None,
        exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """Action, its log-probability and the next state for tensors `[N, …]`; greedy without a generator."""
        output = step(observation, first, state)
        if generator is None:
            action = self.distribution.mode(output.policy)
            log_prob = self.distribution.log_prob(output.policy, action)
        else:
            action, log_prob = self.distribution.sample_with_log_prob(output.policy, generator)
        return action, self._recorded(log_prob, output.value), output.state

    @cached_property
    def _sampler(self) -> NumpySampler | None:
        return numpy_sampler(self.distribution)

    @property
    def numpy_noise(self) -> Fill | None:
        """The noise that `act_numpy` samples with; None where only `act` can sample."""
        return None if self._sampler is None else self._sampler.noise

    def act_numpy(
        self, step: NumpyStep, observation: Array, noise: NoiseAhead, exploration: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """`act` with a generator, for an array `[N, …]` and a network without memory, in NumPy."""
        assert self._sampler is not None
        output = step(observation)
        action, log_prob = self._sampler.draw(output.policy, noise)
        return action, self._recorded(log_prob, output.value)

    def _recorded(self, log_prob: Any, value: Any) -> dict[str, Any]:
        """The behaviour to record with an action, tensors or arrays `[N]`."""
        known = {"log_prob": log_prob, "value": value}
        return {name: known[name] for name in self.behaviour}
