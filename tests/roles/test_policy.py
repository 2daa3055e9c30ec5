"""What a user changes about acting is used, on CartPole with a small network, where acting is computed in NumPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from examples.own_topology import build_actor
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import EnvOptions, NetworkConfig, RunConfig
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.envs.vector import make_env
from pappus.networks.flat import FlatParameters
from pappus.ops.distributions import Categorical
from pappus.roles.acting import LocalPolicy
from pappus.transports.memory import HeapBlock
from pappus.types import Timestep, unroll_spec

N = 512


class Published:
    """Weights of a network that is far from uniform, and observations for it."""

    def __init__(self, algorithm: Any) -> None:
        torch.manual_seed(1)
        self.algorithm, self.network = algorithm, algorithm.build_network().requires_grad_(False)
        self.flat = FlatParameters(self.network)
        self.flat.values.copy_(torch.randn(self.flat.size))
        self.weights = FlatWeights("weights", self.flat.size, HeapBlock(*FlatWeights.footprint(self.flat.size)))
        self.weights.publish(self.flat.values.numpy(), 0)
        self.timestep: Timestep = make_env("CartPole-v1", N, 3, EnvOptions()).reset()

    def act(self, **options: Any) -> tuple[Any, dict[str, Any], LocalPolicy]:
        policy = LocalPolicy(self.algorithm, self.weights, N, seed=5, **options)
        policy.refresh()
        return *policy.act(self.timestep), policy

    def logits(self) -> Any:
        observation = torch.from_numpy(self.timestep.observation)[None]
        return self.network(observation, torch.zeros(1, N, dtype=torch.bool), ((), ())).policy[0]


def make(kind: type = VTrace, config: Any = None, core: Any = "none") -> Published:
    spec = make_env("CartPole-v1", 1, 3, EnvOptions()).spec
    return Published(kind(config or VTraceConfig(), spec, NetworkConfig(hidden_sizes=(8,), core=core)))


def flatter(output: Any) -> Any:
    return output._replace(policy=output.policy / 4)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_transform_changes_the_policy_that_is_acted_with_and_recorded(core: str) -> None:
    setup = make(core=core)
    plain_action, plain, _ = setup.act()
    action, bold, policy = setup.act(transform=flatter)
    assert (policy._noise is not None) is (core == "none"), "a small network without memory acts in NumPy"
    if core == "none":
        expected = Categorical(2).log_prob(setup.logits() / 4, torch.from_numpy(action))
        np.testing.assert_allclose(bold["log_prob"], expected, atol=1e-4)
    # −E[log π] is the entropy: a flatter policy has more of it, and takes the less likely action more often.
    assert -bold["log_prob"].mean() > -plain["log_prob"].mean() + 0.05
    assert (action != plain_action).any()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_actors_of_the_example_record_the_policy_of_their_temperature(temperature: float) -> None:
    setup, envs, length = make(), 16, 8
    spec = unroll_spec(setup.algorithm.env, setup.algorithm.behaviour, setup.network.state_spec, length, envs)
    queue = RingQueue("unrolls", spec, 1, 1, HeapBlock(*RingQueue.footprint(spec, 1, 1)))
    config = RunConfig("impala", "CartPole-v1", envs_per_actor=envs, unroll_length=length)
    run: Any = SimpleNamespace(config=config, env="CartPole-v1", algorithm=setup.algorithm)
    actor = build_actor("actor-1", 0, run, 1, temperature, queue.sink(0), setup.weights)
    while actor.step() is None:
        pass
    (slot,) = queue.source().take(1) or []
    observation, first, action = (torch.from_numpy(leaf) for leaf in (slot.observation, slot.first, slot.action))
    logits = setup.network(observation, first, ((), ())).policy[:-1]
    expected = Categorical(2).log_prob(logits / temperature, action)
    np.testing.assert_allclose(slot.behaviour["log_prob"], expected, atol=1e-4)
    plain = Categorical(2).log_prob(logits, action)
    assert np.allclose(expected, plain, atol=1e-2) is (temperature == 1.0), "the two policies are told apart"
    assert actor._policy._noise is not None, "it acted in NumPy"


class Shy(VTrace):
    def act(self, *inputs: Any, **named: Any) -> Any:
        action, behaviour, state = super().act(*inputs, **named)
        return torch.zeros_like(action), behaviour, state


class Certain(VTrace):
    def _recorded(self, log_prob: Any, value: Any) -> dict[str, Any]:
        return {"log_prob": torch.zeros_like(log_prob)}


class First(Categorical):
    def sample_with_log_prob(self, params: Any, generator: Any = None) -> Any:
        action, log_prob = super().sample_with_log_prob(params, generator)
        return torch.zeros_like(action), log_prob


class OwnDistribution(VTrace):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.distribution = First(2)


class ShyDQN(DQN):
    def act(self, *inputs: Any, **named: Any) -> Any:
        action, behaviour, state = super().act(*inputs, **named)
        return torch.zeros_like(action), behaviour, state


@pytest.mark.parametrize("kind", [Shy, OwnDistribution, ShyDQN])
def test_an_algorithm_or_a_distribution_of_ones_own_decides(kind: type) -> None:
    plain, _, _ = make(kind.__mro__[1], DQNConfig() if kind is ShyDQN else None).act()
    action, _, _ = make(kind, DQNConfig() if kind is ShyDQN else None).act()
    assert plain.any() and not action.any()


def test_a_record_of_ones_own_is_kept() -> None:
    _, behaviour, _ = make(Certain).act()
    assert not behaviour["log_prob"].any()


def test_an_act_that_was_put_on_the_instance_is_used() -> None:
    setup = make()
    act = setup.algorithm.act
    setup.algorithm.act = lambda *inputs: (torch.zeros(N, dtype=torch.int64), *act(*inputs)[1:])
    assert not setup.act()[0].any()


def test_ppos_closed_form_gives_way_to_a_loss_of_ones_own() -> None:
    class Own(PPO):
        def loss(self, *inputs: Any, **named: Any) -> Any:
            return super().loss(*inputs, **named)

    for kind, fast in ((PPO, True), (Own, False)):
        algorithm = make(kind, PPOConfig()).algorithm
        assert (algorithm.on_arrays(algorithm.build_network()) is not None) is fast
