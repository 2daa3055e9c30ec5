"""The conservative term as the paper writes it, and what it must do to values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.cql_dqn import CQLDQN, CQLDQNConfig
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition
from pappus.types import ACTION_MASK, Array, ArraySpec, DiscreteAction, EnvSpec, map_leaves

B, ACTIONS = 6, 3
VECTOR = ArraySpec((4,), "float32")
ENV = EnvSpec(VECTOR, DiscreteAction(ACTIONS))
MASKED = EnvSpec({"observation": VECTOR, ACTION_MASK: ArraySpec((ACTIONS,), "int8")}, DiscreteAction(ACTIONS))
WEIGHT = torch.linspace(0.2, 1.0, B)
NETWORK = NetworkConfig(hidden_sizes=(8,))
OPTIONS: list[dict[str, Any]] = [
    {}, {"double": False}, {"dueling": True}, {"head_size": 5}, {"dueling": True, "head_size": 5}, {"quantiles": 5},
]


def made(env: EnvSpec = ENV, **settings: Any) -> tuple[CQLDQN, Any, Any]:
    algorithm = CQLDQN(CQLDQNConfig(**settings), env, NETWORK)
    torch.manual_seed(1)
    networks = algorithm.build_network(), algorithm.build_network()
    for network in networks:
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter)
    return algorithm, *networks


def batch() -> Transition:
    torch.manual_seed(0)
    discount = torch.tensor([0.97, 0.97, 0.0, 0.9, 0.0, 0.97])
    return Transition(torch.randn(B, 4), torch.arange(B) % ACTIONS, torch.randn(B), discount, torch.randn(B, 4))


def as_arrays(data: Transition) -> Any:
    return map_leaves(lambda leaf: leaf.numpy(), data)


def output(network: Any, observation: Any) -> Any:
    nothing, time = torch.zeros(1, B, dtype=torch.bool), {}
    if isinstance(observation, dict):
        time = {name: leaf.unsqueeze(0) for name, leaf in observation.items()}
    return network(time or observation.unsqueeze(0), nothing, ((), ()))


def gradients(loss: torch.Tensor, network: Any) -> torch.Tensor:
    network.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([weight.grad.flatten() for weight in network.parameters()])


def plain(algorithm: CQLDQN) -> DQN:
    """DQN with the same settings."""
    names = DQNConfig.__dataclass_fields__
    return DQN(DQNConfig(**{name: getattr(algorithm.config, name) for name in names}), algorithm.env, NETWORK)


@pytest.mark.parametrize("settings", OPTIONS)
def test_the_loss_is_dqns_and_the_conservative_term(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(alpha=0.7, **settings)
    data, q = batch(), output(network, batch().observation).q[0]
    expected = plain(algorithm).loss(network, target, data, WEIGHT).loss
    for b in range(B):
        total = sum(torch.exp(q[b, a]) for a in range(ACTIONS))
        expected = expected + 0.7 * WEIGHT[b] / B * (torch.as_tensor(total).log() - q[b, data.action[b]])
    learned = algorithm.loss(network, target, data, WEIGHT)
    torch.testing.assert_close(learned.loss, expected)
    torch.testing.assert_close(gradients(learned.loss, network), gradients(expected, network), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", OPTIONS)
def test_without_the_term_it_is_dqn_to_the_bit(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(alpha=0.0, **settings)
    one, other = (of.loss(network, target, batch(), WEIGHT) for of in (algorithm, plain(algorithm)))
    assert torch.equal(one.loss, other.loss) and torch.equal(one.priority, other.priority)
    assert torch.equal(gradients(one.loss, network), gradients(other.loss, network))
    learners = [of.on_arrays(network, target.requires_grad_(False)) for of in (algorithm, plain(algorithm))]
    if "quantiles" in settings:
        assert learners == [None, None]
        return
    found = []
    for learn in learners:
        assert learn is not None
        loss = learn(as_arrays(batch()), WEIGHT.numpy()).loss
        found.append((loss, [weight.grad.clone() for weight in network.parameters()]))
    assert found[0][0] == found[1][0] and all(map(torch.equal, found[0][1], found[1][1]))


@pytest.mark.parametrize("settings", [options for options in OPTIONS if "quantiles" not in options])
def test_what_is_learnt_on_arrays_is_what_the_loss_says(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(alpha=0.7, **settings)
    learn = algorithm.on_arrays(network, target.requires_grad_(False))
    assert learn is not None
    said = algorithm.loss(network, target, batch(), WEIGHT)
    expected = gradients(said.loss, network)
    found = learn(as_arrays(batch()), WEIGHT.numpy())
    assert found.loss == pytest.approx(said.loss.item(), rel=1e-5)
    assert found.scalars == pytest.approx({name: value.item() for name, value in said.scalars.items()}, rel=1e-4)
    own = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-5)


def test_a_term_of_ones_own_is_not_bypassed_by_arrays() -> None:
    class Own(CQLDQN):
        def extra_losses(self, q: torch.Tensor, action: torch.Tensor) -> dict[str, torch.Tensor]:
            return {}

    algorithm = Own(CQLDQNConfig(), ENV, NETWORK)
    assert algorithm.on_arrays(algorithm.build_network(), algorithm.build_network()) is None


@pytest.mark.parametrize("quantiles", [1, 5])
def test_forbidden_actions_are_not_in_the_sum(quantiles: int) -> None:
    algorithm, network, target = made(MASKED, quantiles=quantiles)
    data, allowed = batch(), torch.ones(B, ACTIONS, dtype=torch.int8)
    allowed[torch.arange(B), (data.action + 1) % ACTIONS] = 0
    shown, later = ({"observation": seen, ACTION_MASK: allowed} for seen in (data.observation, data.next_observation))
    q = output(network, shown).q[0].detach()
    kept = [[float(q[b, a]) for a in range(ACTIONS) if allowed[b, a]] for b in range(B)]
    expected = sum(
        float(WEIGHT[b]) / B * (math.log(sum(map(math.exp, kept[b]))) - float(q[b, data.action[b]])) for b in range(B)
    )
    learned = algorithm.loss(network, target, data._replace(observation=shown, next_observation=later), WEIGHT)
    assert learned.scalars["conservative_loss"].item() == pytest.approx(expected, rel=1e-4)
    learned.loss.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in network.parameters())


def values_after(alpha: float) -> Array:
    """Q of two states after training on data that show one action of each, worth 1 and 2."""
    algorithm = CQLDQN(CQLDQNConfig(alpha=alpha), ENV, NETWORK)
    torch.manual_seed(2)
    network, target = algorithm.build_network(), algorithm.build_network().requires_grad_(False)
    learn = algorithm.on_arrays(network, target)
    assert learn is not None
    seen = np.eye(4, dtype=np.float32)[:2]
    data = Transition(seen, np.array([0, 2]), np.array([1, 2], np.float32), np.zeros(2, np.float32), seen)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(400):
        learn(data, np.ones(2, np.float32))
        optimizer.step()
    q: Array = output(network, torch.from_numpy(np.tile(seen, (3, 1)))).q[0, :2].detach().numpy()
    return q


def test_actions_that_the_data_do_not_show_are_held_down() -> None:
    free, held = values_after(0.0), values_after(0.5)
    unseen = [(0, 1), (0, 2), (1, 0), (1, 1)]
    assert np.allclose([free[0, 0], free[1, 2]], [1, 2], atol=0.05)
    assert all(held[at] < free[at] for at in unseen)
    assert held.argmax(-1).tolist() == [0, 2]


@pytest.mark.parametrize("alpha", [-1.0, math.inf, math.nan])
def test_a_weight_that_means_nothing_is_refused(alpha: float) -> None:
    with pytest.raises(UserError, match=r"algorithm.alpha=\S+ must not be negative; use 0"):
        CQLDQNConfig(alpha=alpha)
