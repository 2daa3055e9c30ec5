"""R2D2's loss as the paper writes it, one sequence and one step after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Sequence, SequenceStats
from pappus.ops.q_learning import rescale, unrescale
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec

BURN_IN, LENGTH, ACTIONS, SIZE, B = 3, 6, 3, 4, 4
T = BURN_IN + LENGTH
ENV = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(ACTIONS))
WEIGHT = torch.tensor([1.0, 0.5, 0.8, 0.3])


def made(env: EnvSpec = ENV, **settings: Any) -> tuple[R2D2, Any, Any]:
    """An algorithm, and two networks that disagree on the best action."""
    config = R2D2Config(**{"burn_in": BURN_IN, "length": LENGTH, "period": 3, "n_step": 3, "discount": 0.9} | settings)
    algorithm = R2D2(config, env, NetworkConfig(hidden_sizes=(5,), core="lstm", core_size=SIZE))
    torch.manual_seed(1)
    networks = algorithm.build_network(), algorithm.build_network()
    for network in networks:
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter)
    return algorithm, *networks


def batch() -> Sequence:
    """Sequences that end in the middle of an episode, that terminate, that are truncated, and that begin one.

    In all of them the row behind the last valid one shows what is bootstrapped from, and the rest is padding.
    """
    torch.manual_seed(0)
    first, valid = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    discount = torch.ones(T, B)
    valid[T - 1, 0] = False
    first[1, 1], discount[6, 1], valid[7:, 1] = True, 0.0, False
    valid[7:, 2], discount[7:, 2] = False, 0.0
    first[BURN_IN, 3], valid[:BURN_IN, 3], valid[T - 1, 3] = True, False, False
    state = torch.randn(B, SIZE), torch.randn(B, SIZE)
    return Sequence(
        torch.randn(T, B, 2), first, torch.randint(ACTIONS, (T, B)), 3 * torch.randn(T, B), discount, valid, ((), state)
    )


def values(network: Any, data: Sequence, b: int) -> torch.Tensor:
    """Q of one sequence `[length, A]`, step by step; no gradient comes from before what is learnt from."""
    state = ((), tuple(part[b : b + 1] for part in data.state[1]))
    rows = []
    for t in range(T):
        with torch.set_grad_enabled(t >= BURN_IN):
            q, _, state = network(data.observation[t : t + 1, b : b + 1], data.first[t : t + 1, b : b + 1], state)
        rows.append(q[0, 0])
    return torch.stack(rows[BURN_IN:])


def literal_errors(network: Any, target: Any, data: Sequence, b: int, config: R2D2Config) -> list[torch.Tensor]:
    """h(G) − Q(o, a) of the steps of one sequence that are learnt from."""
    q, later = values(network, data, b), values(target, data, b).detach()
    reward, discount, valid = (leaf[BURN_IN:, b].tolist() for leaf in (data.reward, data.discount, data.valid))
    errors = []
    for start in (t for t in range(LENGTH) if valid[t]):
        total, factor, t = 0.0, 1.0, start
        while t < start + config.n_step and factor and valid[t]:
            total += factor * reward[t]
            factor *= config.discount * discount[t]
            t += 1
        if factor:
            total += factor * float(unrescale(later[t, q[t].argmax()], config.rescaling))
        errors.append(rescale(torch.tensor(total), config.rescaling) - q[start, data.action[BURN_IN + start, b]])
    return errors


def gradients(loss: torch.Tensor, network: Any) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


@pytest.mark.parametrize("settings", [{}, {"n_step": 1}, {"n_step": 10}, {"rescaling": 0.0}, {"dueling": False}])
def test_the_loss_is_the_weighted_mean_of_squared_errors(settings: dict[str, Any]) -> None:
    algorithm, network, target = made(**settings)
    data, expected = batch(), torch.zeros(())
    for b in range(B):
        errors = literal_errors(network, target, data, b, algorithm.config)
        expected = expected + WEIGHT[b] * sum(0.5 * error**2 for error in errors) / LENGTH / B
    learned = algorithm.loss(network, target, data, WEIGHT)
    torch.testing.assert_close(learned.loss, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(learned.loss, network), gradients(expected, network), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("eta", [0.9, 0.2])
def test_priorities_mix_the_largest_error_with_the_mean(eta: float) -> None:
    algorithm, network, target = made(eta=eta)
    expected = []
    for b in range(B):
        sizes = torch.stack(literal_errors(network, target, batch(), b, algorithm.config)).detach().abs()
        expected.append(eta * sizes.max() + (1 - eta) * sizes.mean())
    learned = algorithm.loss(network, target, batch(), WEIGHT)
    torch.testing.assert_close(learned.priority, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_burn_in_changes_the_values_but_is_not_learnt_from() -> None:
    algorithm, network, target = made()
    data = batch()
    data.observation.requires_grad_()
    loss = algorithm.loss(network, target, data, WEIGHT).loss
    (gradient,) = torch.autograd.grad(loss, data.observation)
    assert not gradient[:BURN_IN].any() and gradient[BURN_IN].any()
    with torch.no_grad():
        data.observation[BURN_IN - 1, 0] += 1.0
    assert not torch.equal(algorithm.loss(network, target, data, WEIGHT).loss, loss)


def same_loss_and_priority(algorithm: R2D2, networks: tuple[Any, Any], one: Sequence, other: Sequence) -> bool:
    left, right = (algorithm.loss(*networks, data, WEIGHT) for data in (one, other))
    return torch.equal(left.loss, right.loss) and torch.equal(left.priority, right.priority)


def test_what_stands_at_invalid_steps_changes_nothing() -> None:
    algorithm, *networks = made()
    dirty = batch()
    garbage = ~dirty.valid
    dirty.reward[garbage], dirty.discount[garbage] = 1e4, 0.5
    dirty.action[garbage] = (dirty.action[garbage] + 1) % ACTIONS
    assert same_loss_and_priority(algorithm, (networks[0], networks[1]), batch(), dirty)


def test_what_padding_shows_changes_nothing() -> None:
    algorithm, *networks = made()
    dirty = batch()
    dirty.observation[7:, 1] = 30.0  # behind a termination
    dirty.observation[8:, 2] = 30.0  # behind the final observation of a truncated episode
    assert same_loss_and_priority(algorithm, (networks[0], networks[1]), batch(), dirty)


def test_a_truncated_episode_bootstraps_from_its_final_observation() -> None:
    algorithm, *networks = made()
    changed = batch()
    changed.observation[7, 2] += 1.0
    assert not same_loss_and_priority(algorithm, (networks[0], networks[1]), batch(), changed)


def test_what_comes_before_an_episode_changes_nothing() -> None:
    algorithm, *networks = made()
    dirty = batch()
    dirty.observation[:BURN_IN, 3] = 30.0
    for part in dirty.state[1]:
        part[3] = -5.0
    assert same_loss_and_priority(algorithm, (networks[0], networks[1]), batch(), dirty)


def test_the_stored_state_is_where_a_sequence_begins() -> None:
    algorithm, *networks = made()
    changed = batch()
    changed.state[1][0][0] += 1.0
    assert not same_loss_and_priority(algorithm, (networks[0], networks[1]), batch(), changed)


def test_sequences_may_begin_with_zeros_instead_of_the_stored_state() -> None:
    (stored, *networks), (zeros, *_) = made(), made(stored_state=False)
    blank = batch()._replace(state=((), (torch.zeros(B, SIZE), torch.zeros(B, SIZE))))
    expected = stored.loss(networks[0], networks[1], blank, WEIGHT)
    found = zeros.loss(networks[0], networks[1], batch(), WEIGHT)
    assert torch.equal(found.loss, expected.loss) and torch.equal(found.priority, expected.priority)


def test_without_burn_in_all_steps_are_learnt_from() -> None:
    algorithm, network, target = made(burn_in=0, length=T)
    data = batch()
    data.observation.requires_grad_()
    (gradient,) = torch.autograd.grad(algorithm.loss(network, target, data, WEIGHT).loss, data.observation)
    assert gradient[0, 0].any()


def test_a_final_observation_where_nothing_is_allowed_is_worth_nothing() -> None:
    masked = EnvSpec({"observation": ENV.observation, ACTION_MASK: ArraySpec((ACTIONS,), "int8")}, ENV.action)
    algorithm, network, target = made(masked)
    data = batch()
    mask = torch.ones(T, B, ACTIONS, dtype=torch.int8)
    mask[7:, 2] = 0  # the final observation of a truncated episode, and padding
    learned = algorithm.loss(
        network, target, data._replace(observation={"observation": data.observation, ACTION_MASK: mask}), WEIGHT
    )
    ended = batch()
    ended.discount[6, 2] = 0.0
    sizes = torch.stack(literal_errors(network, target, ended, 2, algorithm.config)).detach().abs()
    expected = algorithm.config.eta * sizes.max() + (1 - algorithm.config.eta) * sizes.mean()
    torch.testing.assert_close(learned.priority[2], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learned.loss, algorithm.loss(network, target, ended, WEIGHT).loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{"burn_in": -1}, {"length": 1, "period": 1}, {"period": 0}, {"period": LENGTH}])
def test_sequences_that_would_leave_steps_out_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must begin again before they end"):
        made(**settings)


@pytest.mark.parametrize("rescaling", [0.0, 1e-3])
def test_initial_priorities_are_those_of_the_loss_when_the_actor_and_the_target_network_agree(rescaling: float) -> None:
    algorithm, network, _ = made(rescaling=rescaling)
    data = batch()
    with torch.no_grad():
        q = torch.stack([values(network, data, b) for b in range(B)], 1)
        learned = algorithm.loss(network, network, data, WEIGHT).priority
    action, reward, discount, valid = (
        leaf[BURN_IN:] for leaf in (data.action, data.reward, data.discount, data.valid)
    )
    behaviour = {"q": q.gather(-1, action.unsqueeze(-1)).squeeze(-1).numpy(), "value": q.max(-1).values.numpy()}
    steps = SequenceStats(behaviour, reward.numpy(), discount.numpy(), valid.numpy())
    assert algorithm.initial_priority(steps) == pytest.approx(learned.numpy(), rel=1e-4)
