"""What all actor-critics share: a policy-value network and how it acts."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Generator, Tensor, nn

from pappus.config import NetworkConfig
from pappus.networks.acting import StepFunction
from pappus.networks.arrays import ArrayStep
from pappus.networks.build import build_actor_critic, own_network
from pappus.ops.array_sampling import Fill, NoiseAhead, array_sampler
from pappus.ops.distributions import distribution_for
from pappus.types import Array, ArraySpec, EnvSpec, Nest


class ActorCriticAlgorithm:
    """Samples from the policy head and records the log-probability of what it sampled."""

    reduction: str = "mean"
    """What a loss is of its valid steps; see `OnPolicyAlgorithm`."""
    behaviour: ClassVar[dict[str, ArraySpec]] = {"log_prob": ArraySpec((), "float32")}

    def __init__(self, env: EnvSpec, network: NetworkConfig, squash: bool = False) -> None:
        """`squash` keeps continuous actions between their bounds."""
        self.env, self.network_config = env, network
        self.distribution = distribution_for(env.action, squash)
        self._sampler = array_sampler(self.distribution)

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

    @property
    def array_noise(self) -> Fill | None:
        """What `act_on_arrays` draws from; None where only `act` will do."""
        return None if self._sampler is None else self._sampler.noise

    def act_on_arrays(
        self, step: ArrayStep, observation: Array, noise: NoiseAhead, exploration: Array | None
    ) -> tuple[Array, dict[str, Array]]:
        """Action and its log-probability for an array `[N, …]`, without torch."""
        assert self._sampler is not None
        policy, value = step(observation)
        action, log_prob = self._sampler.draw(policy, noise)
        return action, self._recorded(log_prob, value)

    def _recorded(self, log_prob: Any, value: Any) -> dict[str, Any]:
        """What is remembered of an action, tensors or arrays `[N]`."""
        said = {"log_prob": log_prob, "value": value}
        return {name: said[name] for name in self.behaviour}
