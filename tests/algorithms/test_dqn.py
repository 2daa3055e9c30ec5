"""DQN's loss as the papers write it, one transition after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition, TransitionStats
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, map_leaves

B, ACTIONS = 6, 3
VECTOR = ArraySpec((4,), "float32")
ENV = EnvSpec(VECTOR, DiscreteAction(ACTIONS))
WEIGHT = torch.linspace(0.2, 1.0, B)


def made(env: EnvSpec = ENV, **settings: Any) -> tuple[DQN, Any, Any]:
    """An algorithm, and two networks that disagree on the best action."""
    algorithm = DQN(DQNConfig(**settings), env, NetworkConfig(hidden_sizes=(8,)))
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


def output(network: Any, observation: torch.Tensor) -> Any:
    return network(observation.unsqueeze(0), torch.zeros(1, len(observation), dtype=torch.bool), ((), ()))


def literal_errors(network: Any, target: Any, data: Transition, double: bool) -> list[torch.Tensor]:
    """G − Q(o, a) of each transition; a gradient flows through Q(o, a) alone."""
    q, errors = output(network, data.observation).q[0], []
    later, chooser = (output(n, data.next_observation).q[0].detach() for n in (target, network if double else target))
    for b in range(B):
        best = chooser[b].tolist().index(max(chooser[b].tolist()))
        goal = float(data.reward[b]) + float(data.discount[b]) * float(later[b, best])
        errors.append(goal - q[b, data.action[b]])
    return errors


def huber(error: torch.Tensor, delta: float) -> torch.Tensor:
    return 0.5 * error**2 if error.abs().item() <= delta else delta * (abs(error) - 0.5 * delta)


def gradients(loss: torch.Tensor, network: Any) -> torch.Tensor:
    network.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([weight.grad.flatten() for weight in network.parameters()])


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("delta", [1.0, 1e6])
def test_the_loss_is_the_weighted_mean_of_huber_errors(dueling: bool, double: bool, delta: float) -> None:
    algorithm, network, target = made(dueling=dueling, double=double, huber=delta)
    errors = literal_errors(network, target, batch(), double)
    expected = sum(float(WEIGHT[b]) * huber(errors[b], delta) for b in range(B)) / B
    learned = algorithm.loss(network, target, batch(), WEIGHT)
    torch.testing.assert_close(learned.loss, expected)
    torch.testing.assert_close(gradients(learned.loss, network), gradients(expected, network))


def test_the_two_networks_disagree_so_that_double_q_shows() -> None:
    _, network, target = made()
    one, other = (output(n, batch().next_observation).q[0].argmax(-1) for n in (network, target))
    assert (one != other).any()


@pytest.mark.parametrize("settings", [{}, {"double": False}, {"quantiles": 5}])
def test_priorities_are_the_sizes_of_the_errors(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(**settings)
    errors = literal_errors(network, target, batch(), settings.get("double", True))
    learned = algorithm.loss(network, target, batch(), WEIGHT)
    torch.testing.assert_close(learned.priority, torch.stack(errors).detach().abs())
    assert not learned.priority.requires_grad


@pytest.mark.parametrize("quantiles", [1, 5])
def test_what_comes_after_a_termination_does_not_matter(quantiles: int) -> None:
    algorithm, network, target = made(quantiles=quantiles)
    data = batch()
    clean = algorithm.loss(network, target, data, WEIGHT)
    data.next_observation[data.discount == 0] = 50.0
    dirty = algorithm.loss(network, target, data, WEIGHT)
    assert torch.equal(clean.loss, dirty.loss) and torch.equal(clean.priority, dirty.priority)
    data.next_observation[0] = 50.0
    assert not torch.equal(algorithm.loss(network, target, data, WEIGHT).loss, clean.loss)


@pytest.mark.parametrize("quantiles", [1, 5])
def test_no_gradient_reaches_the_target_network(quantiles: int) -> None:
    algorithm, network, target = made(quantiles=quantiles)
    algorithm.loss(network, target, batch(), WEIGHT).loss.backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("double", [True, False])
def test_the_quantile_loss_compares_every_quantile_with_every_goal(double: bool) -> None:
    count, delta = 5, 0.7
    algorithm, network, target = made(quantiles=count, huber=delta, double=double)
    data = batch()
    now, later = output(network, data.observation), output(target, data.next_observation)
    chooser = output(network, data.next_observation) if double else later
    expected = torch.zeros(())
    for b in range(B):
        best = int(chooser.q[0, b].argmax())
        for i in range(count):
            for j in range(count):
                goal = data.reward[b] + data.discount[b] * later.quantiles[0, b, best, j].detach()
                error = goal - now.quantiles[0, b, data.action[b], i]
                share = abs((i + 0.5) / count - (error.item() < 0))
                expected = expected + WEIGHT[b] * share * huber(error, delta) / delta / count / B
    learned = algorithm.loss(network, target, data, WEIGHT)
    torch.testing.assert_close(learned.loss, expected)
    torch.testing.assert_close(gradients(learned.loss, network), gradients(expected, network), rtol=1e-4, atol=1e-5)


MASKED = EnvSpec({"observation": VECTOR, ACTION_MASK: ArraySpec((ACTIONS,), "int8")}, DiscreteAction(ACTIONS))


def shown(observation: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"observation": observation, ACTION_MASK: mask}


def test_a_goal_is_built_on_allowed_actions_only() -> None:
    algorithm, network, target = made(MASKED)
    data = batch()
    later, chooser = (output(n, data.next_observation).q[0] for n in (target, network))
    allowed = torch.ones(B, ACTIONS, dtype=torch.int8)
    allowed[torch.arange(B), chooser.argmax(-1)] = 0
    everything = torch.ones(B, ACTIONS, dtype=torch.int8)
    observed = data._replace(
        observation=shown(data.observation, everything), next_observation=shown(data.next_observation, allowed)
    )
    second = chooser.topk(2).indices[:, 1]
    goal = data.reward + data.discount * later[torch.arange(B), second]
    q = output(network, data.observation).q[0, torch.arange(B), data.action]
    torch.testing.assert_close(algorithm.loss(network, target, observed, WEIGHT).priority, (goal - q).abs().detach())


@pytest.mark.parametrize("settings", [{"double": True}, {"double": False}, {"quantiles": 5}])
def test_a_goal_where_nothing_is_allowed_is_what_was_earned_until_then(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(MASKED, **settings)
    data = batch()
    data.discount[:] = 0.97  # truncated there, so that it is bootstrapped from
    everything, nothing = torch.ones(B, ACTIONS, dtype=torch.int8), torch.zeros(B, ACTIONS, dtype=torch.int8)
    now = output(network, data.observation)
    observed = data._replace(
        observation=shown(data.observation, everything), next_observation=shown(data.next_observation, nothing)
    )
    learned = algorithm.loss(network, target, observed, WEIGHT)
    error = data.reward - now.q[0, torch.arange(B), data.action]
    torch.testing.assert_close(learned.priority, error.detach().abs())
    ended = data._replace(discount=torch.zeros(B))
    torch.testing.assert_close(learned.loss, made(**settings)[0].loss(network, target, ended, WEIGHT).loss)


def test_memory_is_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"core='lstm' needs sequences.*use r2d2"):
        DQN(DQNConfig(), ENV, NetworkConfig(core="lstm"))


def test_continuous_actions_are_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match="a Q network needs one discrete choice"):
        DQN(DQNConfig(), EnvSpec(VECTOR, ContinuousAction((2,))), NetworkConfig()).build_network()


def test_initial_priorities_are_those_of_the_loss_when_the_actor_and_the_target_network_agree() -> None:
    algorithm, network, _ = made()
    data = batch()
    with torch.no_grad():
        now, later = (output(network, seen).q[0] for seen in (data.observation, data.next_observation))
        learned = algorithm.loss(network, network, data, WEIGHT).priority
    behaviour = {"q": now[torch.arange(B), data.action].numpy()}
    steps = TransitionStats(
        behaviour, {"value": later.max(-1).values.numpy()}, data.reward.double().numpy(), data.discount.double().numpy()
    )
    assert algorithm.initial_priority(steps) == pytest.approx(learned.numpy(), abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"double": False}, {"dueling": False}, {"head_size": 5}, {"huber": 0.1}, {"dueling": False, "head_size": 5}],
)
def test_what_is_learnt_on_arrays_is_what_the_loss_says(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(**settings)
    learn = algorithm.on_arrays(network, target.requires_grad_(False))
    assert learn is not None
    said = algorithm.loss(network, target, batch(), WEIGHT)
    expected = gradients(said.loss, network)
    for parameter in network.parameters():
        parameter.grad.fill_(7.0)  # what was there before does not matter
    found = learn(map_leaves(lambda leaf: leaf.numpy(), batch()), WEIGHT.numpy())
    assert found.loss == pytest.approx(said.loss.item(), rel=1e-5)
    assert found.scalars == pytest.approx({name: value.item() for name, value in said.scalars.items()}, rel=1e-4)
    torch.testing.assert_close(torch.from_numpy(found.priority), said.priority, rtol=1e-4, atol=1e-5)
    own = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-5)


def test_what_arrays_cannot_do_is_left_to_the_loss() -> None:
    class Own(DQN):
        def loss(self, *inputs: Any, **named: Any) -> Any:
            return super().loss(*inputs, **named)

    named = EnvSpec({"a": VECTOR}, DiscreteAction(ACTIONS))
    pictures = EnvSpec(ArraySpec((84, 84), "uint8"), DiscreteAction(ACTIONS), 4)
    normed = NetworkConfig(hidden_sizes=(8,), layer_norm=True)
    for algorithm in (
        made(quantiles=3)[0], made(named)[0], DQN(DQNConfig(), pictures, NetworkConfig()),
        DQN(DQNConfig(), ENV, normed), Own(DQNConfig(), ENV, NetworkConfig()),
    ):
        assert algorithm.on_arrays(algorithm.build_network(), algorithm.build_network()) is None
