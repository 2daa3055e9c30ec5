"""D4PG's loss against what the paper writes down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.d4pg import D4PG, D4PGConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import TransitionStats
from pappus.ops.value_distributions import Atoms
from pappus.types import EnvSpec
from tests.algorithms.continuous_tools import ENV, B, gradient, made

LOW, HIGH, ATOMS = -5.0, 5.0, 11
SETTINGS: dict[str, Any] = {"v_min": LOW, "v_max": HIGH, "atoms": ATOMS}
Z = torch.linspace(LOW, HIGH, ATOMS)


def projected(probability: torch.Tensor, reward: float, discount: float) -> torch.Tensor:
    """Each atom's probability, by the distance of where it moves to from the others."""
    moved = (reward + discount * Z).clamp(LOW, HIGH)
    return torch.stack([(probability * (1 - (moved - z).abs()).clamp(min=0)).sum() for z in Z])


@pytest.mark.parametrize("twin", [False, True])
def test_critics_learn_the_projected_distribution_of_the_target(twin: bool) -> None:
    algorithm, network, target, batch = made(D4PG, D4PGConfig(twin=twin, policy_delay=2, **SETTINGS))
    weight = torch.rand(B)
    learned = algorithm.loss(network, target, batch, weight, update=1)
    later = batch.next_observation[None]
    logits = target.logits(later, target.policy(later))[:, 0]
    own = network.logits(batch.observation[None], batch.action[None])[:, 0]
    assert len(own) == (2 if twin else 1)
    loss, error = torch.zeros(()), torch.zeros(B)
    for i in range(B):
        laws = logits[:, i].softmax(-1)
        law = min(laws, key=lambda law: float(law @ Z))
        goal = projected(law, float(batch.reward[i]), float(batch.discount[i]))
        mean = batch.reward[i] + batch.discount[i] * (law @ Z)
        for critic in own:
            loss = loss - weight[i] * (goal * critic[i].log_softmax(-1)).sum() / B
            error[i] += (critic[i].softmax(-1) @ Z - mean).abs() / len(own)
    torch.testing.assert_close(learned.loss, loss)
    torch.testing.assert_close(learned.priority, error.detach())


def test_the_policy_climbs_the_mean_and_teaches_the_critic_nothing() -> None:
    algorithm, network, target, batch = made(D4PG, D4PGConfig(**SETTINGS))
    loss = algorithm.loss(network, target, batch, torch.zeros(B), update=0).loss
    assert not gradient(loss, network.critics).any(), "all weights are 0, so only the policy has something to learn"
    seen = batch.observation[None]
    expected = -(network.logits(seen, network.policy(seen))[0, 0].softmax(-1) @ Z).mean()
    torch.testing.assert_close(gradient(loss, network.actor), gradient(expected, network.actor), atol=1e-6, rtol=1e-4)


def test_actors_and_learner_mean_the_same_by_a_priority() -> None:
    algorithm, network, _, batch = made(D4PG, D4PGConfig(policy_delay=2, **SETTINGS))
    seen, later = batch.observation[None], batch.next_observation[None]
    with torch.no_grad():
        q = network.q(seen, batch.action[None])[0].numpy()
        value = network.q(later, network.policy(later))[0].numpy()
    stats = TransitionStats({"q": q}, {"value": value}, batch.reward.double().numpy(), batch.discount.double().numpy())
    learned = algorithm.loss(network, network, batch, torch.ones(B), update=1).priority
    np.testing.assert_allclose(algorithm.initial_priority(stats), learned, rtol=1e-4)


def test_what_lies_beyond_the_atoms_is_reported() -> None:
    algorithm, network, target, batch = made(D4PG, D4PGConfig(policy_delay=2, v_min=-1e-3, v_max=1e-3))
    assert algorithm.loss(network, target, batch, torch.ones(B), update=1).scalars["beyond_atoms"] > 0.9


@pytest.mark.parametrize("settings", [{"atoms": 1}, {"v_min": 1.0, "v_max": 1.0}, {"v_max": float("inf")}])
def test_atoms_that_span_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be at least 2, and v_min"):
        D4PGConfig(**settings)


def test_means_are_exact_whatever_autocast_rounds() -> None:
    atoms, logits = Atoms(-150.0, 150.0, 51), torch.randn(4, 51)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(atoms.mean(logits), (logits.softmax(-1) * atoms.values(logits)).sum(-1))


def test_critics_may_have_sizes_of_their_own() -> None:
    network = made(D4PG, D4PGConfig(twin=True, critic_sizes=(16, 4), **SETTINGS))[1]
    shapes = {name: tuple(weight.shape) for name, weight in network.named_parameters() if name.endswith("weight")}
    assert shapes["actor.members.0.layers.0.weight"] == (8, 8), "the policy keeps those of the network"
    assert shapes["critics.1.weight"][1] == 2 * 16 and shapes["critics.1.members.1.layers.0.weight"] == (4, 16)
    with pytest.raises(UserError, match=r"critic_sizes=\(4, 0\) must be layers of at least 1 unit"):
        D4PGConfig(critic_sizes=(4, 0))


def without_logits(env: EnvSpec, config: NetworkConfig) -> torch.nn.Module:
    return torch.nn.Linear(1, 1)


def test_a_network_of_ones_own_without_logits_is_refused() -> None:
    config = NetworkConfig(factory=f"{__name__}:without_logits")
    with pytest.raises(UserError, match=r"without_logits gives a Linear without logits, which this algorithm calls"):
        D4PG(D4PGConfig(), ENV, config).build_network()


def test_observations_may_be_scaled_by_their_moments() -> None:
    network = D4PG(D4PGConfig(), ENV, NetworkConfig(hidden_sizes=(8,), normalize=True)).build_network()
    assert {name.rpartition(".")[2] for name, _ in network.named_buffers()} >= {"mean", "count"}


def test_the_network_has_no_buffers_so_that_parameter_servers_can_hold_it() -> None:
    network = made(D4PG, D4PGConfig(), ENV)[1]
    assert not list(network.buffers()) and sum(network.part_sizes) == sum(p.numel() for p in network.parameters())
