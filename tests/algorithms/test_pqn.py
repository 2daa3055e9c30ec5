"""PQN's returns and loss as the paper writes them, how ε falls, and what must not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.dqn import EpsilonConfig
from pappus.algorithms.pqn import PQN, PQNConfig
from pappus.api import configure
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.roles.acting import ActingNetwork
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Unroll
from tests.roles.test_policy import Published

T, B = 5, 4
ENV = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3))
SMALL = NetworkConfig(hidden_sizes=(8,), layer_norm=True)


def make(**settings: Any) -> tuple[PQN, Any]:
    torch.manual_seed(1)
    algorithm = PQN(PQNConfig(**{"minibatches": 1, **settings}), ENV, SMALL)
    return algorithm, algorithm.build_network()


def batch_for(network: Any) -> Unroll:
    """Random, with one invalid step and one end of an episode."""
    torch.manual_seed(0)
    valid, discount = torch.ones(T, B, dtype=torch.bool), torch.ones(T, B)
    valid[2, 1], discount[3, 2] = False, 0.0
    return Unroll(
        torch.randn(T + 1, B, 2), torch.zeros(T + 1, B, dtype=torch.bool), torch.randint(3, (T, B)),
        torch.randn(T, B), discount, valid, {"value": torch.zeros(T, B)}, torch.zeros(T, B), network.initial_state(B),
    )


def test_the_loss_is_the_papers() -> None:
    algorithm, network = make(q_lambda=0.7, discount=0.9, reward_scale=2.0)
    batch = batch_for(network)
    with torch.no_grad():
        q = network(batch.observation, batch.first, batch.state).q
    best, terms = q.amax(-1), []
    for b in range(B):
        later = best[T, b]
        for t in reversed(range(T)):
            if not batch.valid[t, b]:
                later = best[t, b]  # a pseudo-transition ends what came before with its own value
                continue
            mixed = 0.3 * best[t + 1, b] + 0.7 * later
            later = 2.0 * batch.reward[t, b] + 0.9 * batch.discount[t, b] * mixed
            terms.append(0.5 * (q[t, b, batch.action[t, b]] - later) ** 2)
    steps, reports = next(algorithm.minibatches(algorithm.prepare(network, batch)))
    loss, scalars = algorithm.loss(network, steps, reports)
    assert loss.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-5)
    assert len(terms) == T * B - 1 and not scalars
    _, scalars = algorithm.loss(network, steps, report=True)
    assert set(scalars) == {"td_loss", "q", "td_error", "epsilon"}


def test_a_fresh_batch_uses_the_values_that_were_recorded_while_acting() -> None:
    algorithm, network = make()
    batch = batch_for(network)
    with torch.no_grad():
        batch.behaviour["value"] = network(batch.observation, batch.first, batch.state).q.amax(-1)[:-1]
    anew, recorded = algorithm.prepare(network, batch, False), algorithm.prepare(network, batch, True)
    torch.testing.assert_close(anew.target, recorded.target)
    batch.behaviour["value"] += 1
    assert not torch.allclose(algorithm.prepare(network, batch, True).target, anew.target)


def test_every_epoch_shows_every_step_once() -> None:
    algorithm, network = make(epochs=3, minibatches=5)
    steps = algorithm.prepare(network, batch_for(network))
    parts = list(algorithm.minibatches(steps))
    assert len(parts) == 15 and [reports for _, reports in parts] == [False] * 14 + [True]
    for epoch in range(3):
        seen = torch.cat([part.target for part, _ in parts[5 * epoch : 5 * epoch + 5]])
        torch.testing.assert_close(seen.sort().values, steps.target.sort().values)
    assert all(part.share.sum().item() == pytest.approx(1.0) for part, _ in parts)


def test_epsilon_falls_with_the_steps_that_were_learnt_from_and_travels_with_the_weights() -> None:
    algorithm, network = make(epsilon=EpsilonConfig("linear", start=0.9, end=0.1, steps=76))
    assert network.exploration.item() == pytest.approx(0.9)
    algorithm.prepare(network, batch_for(network))  # 19 valid steps
    assert network.exploration.item() == pytest.approx(0.7)
    for _ in range(5):
        algorithm.prepare(network, batch_for(network))
    assert network.exploration.item() == pytest.approx(0.1) and network.steps_learnt.item() == 6 * 19


@pytest.mark.parametrize("layer_norm", [False, True])
def test_actors_explore_as_much_as_the_weights_say(layer_norm: bool) -> None:
    """In NumPy (a plain MLP) and in torch (with layer norms)."""
    config = PQNConfig()
    published = Published(PQN(config, ENV, NetworkConfig(hidden_sizes=(8,), layer_norm=layer_norm)))
    published.network.exploration.fill_(0.5)
    published.weights.publish(published.flat.values.numpy(), 1)
    acting, greedy = (ActingNetwork(published.algorithm, published.weights, seed, "float32") for seed in (3, None))
    assert acting.refresh() and greedy.refresh()
    observation, first = np.ones((9_000, 2), np.float32), np.zeros(9_000, np.bool_)
    action, behaviour, _ = acting.infer(observation, first, acting.initial_state(9_000))
    best, _, _ = greedy.infer(observation, first, greedy.initial_state(9_000))
    assert np.mean(action != best) == pytest.approx(0.5 * 2 / 3, abs=0.02)
    assert len(set(best.tolist())) == 1 and behaviour["value"].shape == (9_000,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": EpsilonConfig()}, "the envs of pqn share one ε; use linear"),
        ({"q_lambda": 1.5}, "q_lambda=1.5 must lie between 0 and 1"),
        ({"epochs": 0}, "must be at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PQNConfig(**settings)


def test_memory_and_uneven_minibatches_are_refused() -> None:
    with pytest.raises(UserError, match="pqn learns from single steps and has no memory; use r2d2"):
        PQN(PQNConfig(), ENV, NetworkConfig(core="lstm"))
    with pytest.raises(UserError, match="minibatches=7 does not divide a batch of 5 steps of 4 envs; use 1, 2, 4, 5"):
        make(minibatches=7)[0].check_batch(T, B)


def test_a_network_of_ones_own_with_memory_is_refused() -> None:
    own = NetworkConfig(factory="tests.networks.bare_networks:Remembering")
    with pytest.raises(UserError, match="pqn learns from single steps"):
        PQN(PQNConfig(), ENV, own).build_network()
    plain = NetworkConfig(factory="tests.networks.bare_networks:Values")
    assert PQN(PQNConfig(), ENV, plain).build_network().get_buffer("exploration").item() == 1.0


def test_the_optimizer_of_the_paper_is_refused_where_workers_share_one() -> None:
    config = configure("a3c", "CartPole-v1", {"optimizer.name": "radam", "actors": 2, "device": "cpu"})
    with pytest.raises(UserError, match="'radam' has no statistics that a3c's workers can share; use adam"):
        config.topology.check(config)


def test_running_moments_are_those_of_fresh_experience() -> None:
    network: Any = PQN(PQNConfig(), ENV, NetworkConfig(hidden_sizes=(8,), normalize=True)).build_network()
    batch = batch_for(network)
    network.observe(batch.observation[:-1], batch.first[:-1], batch.state)
    assert network.torso.torsos[0].moments.count.item() == T * B
