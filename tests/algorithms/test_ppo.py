"""PPO's loss as the paper writes it, how a batch is cut into minibatches, and what must not matter."""

from __future__ import annotations

import math
from typing import Any

import optree
import pytest
import torch

from pappus.algorithms.ppo import PPO, PPOConfig, has_memory
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Unroll

T, B = 4, 6
DISCRETE = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3))
SMALL = NetworkConfig(hidden_sizes=(4,))


def make(config: PPOConfig | None = None, env: EnvSpec = DISCRETE, network: NetworkConfig = SMALL) -> tuple[PPO, Any]:
    torch.manual_seed(1)
    algorithm = PPO(config or PPOConfig(), env, network)
    return algorithm, algorithm.build_network()


def batch_for(network: Any, env: EnvSpec = DISCRETE) -> Unroll:
    """Random, with one invalid step; every observation's first number says which one it is."""
    torch.manual_seed(0)
    shape = env.action.array.shape
    action = torch.rand(T, B, *shape) if isinstance(env.action, ContinuousAction) else torch.ones(T, B, *shape).long()
    valid = torch.ones(T, B, dtype=torch.bool)
    valid[2, 1] = False
    observation = optree.tree_map(lambda leaf: torch.randn(T + 1, B, *leaf.shape), env.observation)
    first = torch.zeros(T + 1, B, dtype=torch.bool)
    return Unroll(
        observation, first, action, torch.randn(T, B), torch.ones(T, B), valid,
        {"log_prob": torch.full((T, B), -1.0)}, torch.zeros(T, B), network.initial_state(B),
    )


def test_the_loss_is_the_papers() -> None:
    config = PPOConfig(
        baseline_cost=0.3, entropy_cost=0.2, clip=0.1, normalize_advantage=False, normalize_returns=False, minibatches=1
    )
    algorithm, network = make(config)
    batch = batch_for(network)
    steps, _ = next(algorithm.minibatches(algorithm.prepare(network, batch)))
    loss, scalars = algorithm.loss(network, steps)
    with torch.no_grad():
        output = network(batch.observation, batch.first, batch.state)
    log_p = output.policy[:-1].log_softmax(-1)
    terms, surrogates = [], []
    for t in range(T):
        for b in range(B):
            if not batch.valid[t, b]:
                continue
            advantage, discount = 0.0, 1.0
            for k in range(t, T):
                if not batch.valid[k, b]:
                    break
                delta = batch.reward[k, b] + 0.99 * output.value[k + 1, b] - output.value[k, b]
                advantage, discount = advantage + discount * float(delta), discount * 0.99 * 0.95
            ratio = math.exp(float(log_p[t, b, batch.action[t, b]]) + 1.0)
            surrogate = min(ratio * advantage, max(0.9, min(1.1, ratio)) * advantage)
            entropy = -float((log_p[t, b].exp() * log_p[t, b]).sum())
            terms.append(-surrogate + 0.3 * 0.5 * advantage**2 - 0.2 * entropy)
            surrogates.append(-surrogate)
    assert float(loss.detach()) == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert float(scalars["policy_loss"]) == pytest.approx(sum(surrogates) / len(surrogates), rel=1e-4)
    assert 0 <= scalars["clip_fraction"] <= 1 and scalars["approx_kl"] >= 0


def test_every_valid_step_is_seen_once_in_an_epoch_and_counts_alike() -> None:
    algorithm, network = make(PPOConfig(epochs=2, minibatches=4))
    batch = batch_for(network)
    parts = list(algorithm.minibatches(algorithm.prepare(network, batch)))
    assert [asked for _, asked in parts] == [False] * 7 + [True]
    for epoch in (parts[:4], parts[4:]):
        seen = torch.cat([steps.observation for steps, _ in epoch])
        expected = batch.observation[:-1].flatten(0, 1)
        assert sorted(seen[:, 0].tolist()) == sorted(expected[:, 0].tolist())
        for steps, _ in epoch:
            assert steps.share.sum() == pytest.approx(1.0)
            counted = steps.share[steps.share > 0]
            assert torch.allclose(counted, counted[0])
        assert sum(int((steps.share == 0).sum()) for steps, _ in epoch) == 1, "the invalid step never counts"
    assert not torch.equal(parts[0][0].observation, parts[4][0].observation), "each epoch has an order of its own"


def test_each_epoch_is_reported_of_where_the_batch_may_be_left_after_it() -> None:
    algorithm, network = make(PPOConfig(epochs=2, minibatches=4, target_kl=0.1))
    parts = algorithm.minibatches(algorithm.prepare(network, batch_for(network)))
    assert [asked for _, asked in parts] == [False, False, False, True] * 2


def test_a_single_minibatch_is_the_whole_batch_in_every_epoch() -> None:
    algorithm, network = make(PPOConfig(epochs=3, minibatches=1))
    steps = algorithm.prepare(network, batch_for(network))
    parts = list(algorithm.minibatches(steps))
    assert [asked for _, asked in parts] == [False, False, True]
    for part, _ in parts:
        assert torch.equal(part.observation, steps.observation) and torch.equal(part.target, steps.target)
        assert part.share.sum() == pytest.approx(1.0) and (part.share == 0).sum() == 1
        assert float((part.share * part.advantage.square()).sum()) == pytest.approx(1.0, rel=1e-4)


def test_advantages_of_a_minibatch_have_mean_0_and_deviation_1() -> None:
    algorithm, network = make(PPOConfig(minibatches=2))
    for steps, _ in algorithm.minibatches(algorithm.prepare(network, batch_for(network))):
        mean = (steps.share * steps.advantage).sum()
        assert float(mean) == pytest.approx(0.0, abs=1e-6)
        assert float((steps.share * steps.advantage.square()).sum()) == pytest.approx(1.0, rel=1e-4)
        assert not torch.allclose(steps.target, steps.advantage + steps.value), "targets stay what they were"


@pytest.mark.parametrize("value_clip", [0.0, 0.1])
def test_what_is_learnt_on_arrays_is_what_the_loss_says(value_clip: float) -> None:
    config = PPOConfig(epochs=2, minibatches=2, value_clip=value_clip, clip=0.01)
    algorithm, network = make(config, network=NetworkConfig(hidden_sizes=(7, 5), normalize=True))
    steps = algorithm.prepare(network, batch_for(network))
    learn = algorithm.on_arrays(network)
    assert learn is not None
    network.torso.torsos[0].moments.update(steps.observation)
    for minibatch, report in algorithm.minibatches(steps):
        with torch.no_grad():  # the policy moves on, and the clip is felt
            for weight in network.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        network.zero_grad()
        loss, scalars = algorithm.loss(network, minibatch, report)
        loss.backward()  # type: ignore[no-untyped-call]
        expected = [weight.grad.clone() for weight in network.parameters()]
        for weight in network.parameters():
            weight.grad.fill_(7.0)  # what was there before does not matter
        found, said = learn(optree.tree_map(lambda leaf: leaf.numpy(), minibatch), report)
        assert found == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
        assert said == pytest.approx({name: value.item() for name, value in scalars.items()}, rel=1e-3, abs=1e-5)
        for own, theirs in zip(network.parameters(), expected, strict=True):
            torch.testing.assert_close(own.grad, theirs, rtol=1e-3, atol=1e-5)


def test_what_arrays_cannot_do_is_left_to_the_loss() -> None:
    for env, settings in (
        (EnvSpec(ArraySpec((2,), "float32"), ContinuousAction((1,))), {}),
        (EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(3)), {"core": "lstm"}),
        (EnvSpec({"a": ArraySpec((2,), "float32"), ACTION_MASK: ArraySpec((3,), "float32")}, DiscreteAction(3)), {}),
        (EnvSpec({"a": ArraySpec((2,), "float32")}, DiscreteAction(3)), {}),
    ):
        algorithm, network = make(PPOConfig(), env, NetworkConfig(**settings))
        assert algorithm.on_arrays(network) is None


def test_minibatches_of_a_network_with_memory_keep_sequences_whole() -> None:
    settings = NetworkConfig(hidden_sizes=(4,), core="lstm", core_size=5)
    algorithm, network = make(PPOConfig(minibatches=3), network=settings)
    assert has_memory(network)
    batch = batch_for(network)
    state = optree.tree_map(torch.randn_like, batch.state)
    batch = batch._replace(state=state)
    steps = algorithm.prepare(network, batch)
    assert steps.share.shape == (T, B)
    for part, _ in list(algorithm.minibatches(steps))[:3]:
        assert part.observation.shape == (T, 2, 2) and part.share.sum() == pytest.approx(1.0)
        for column in range(2):
            [b] = [b for b in range(B) if torch.equal(batch.observation[:-1, b], part.observation[:, column])]
            own, theirs = (optree.tree_leaves(nest) for nest in (part.state, state))
            assert all(torch.equal(x[column], y[b]) for x, y in zip(own, theirs, strict=True))
        loss, _ = algorithm.loss(network, part)
        assert torch.isfinite(loss)


def test_frames_are_stacked_once_and_rows_shuffled_all_the_same() -> None:
    env = EnvSpec({"a": ArraySpec((2,), "float32"), ACTION_MASK: ArraySpec((3,), "float32")}, DiscreteAction(3), 3)
    algorithm, network = make(PPOConfig(minibatches=1, normalize_advantage=False), env)
    assert not has_memory(network)
    batch = batch_for(network, env)
    batch.observation[ACTION_MASK].fill_(1.0)
    batch.observation[ACTION_MASK][:, 3, 2] = 0.0
    batch.first[2, 4] = True
    steps = algorithm.prepare(network, batch)
    whole = network(batch.observation, batch.first, batch.state)
    rows = algorithm._output(network, steps)
    torch.testing.assert_close(rows.policy, whole.policy[:-1].flatten(0, 1))
    torch.testing.assert_close(rows.value, whole.value[:-1].flatten())


def test_what_stands_at_an_invalid_step_changes_nothing() -> None:
    algorithm, network = make(PPOConfig(minibatches=1, normalize_returns=False))
    clean, dirty = batch_for(network), batch_for(network)
    dirty.reward[2, 1], dirty.discount[2, 1], dirty.behaviour["log_prob"][2, 1] = 1e6, 0.0, -20.0

    def loss(batch: Unroll) -> float:
        torch.manual_seed(3)
        steps, _ = next(algorithm.minibatches(algorithm.prepare(network, batch)))
        return float(algorithm.loss(network, steps)[0].detach())

    assert loss(clean) == pytest.approx(loss(dirty), rel=1e-6)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("deviation", ["free", "predicted"])
@pytest.mark.parametrize(
    "action", [DiscreteAction(3), MultiDiscreteAction((3, 2)), ContinuousAction((2,)), ContinuousAction((2, 1))]
)
@pytest.mark.parametrize("squash", [False, True])
def test_every_weight_gets_a_gradient(action: Any, core: Any, deviation: Any, squash: bool) -> None:
    env = EnvSpec(ArraySpec((2,), "float32"), action)
    settings = NetworkConfig(hidden_sizes=(4,), core=core, core_size=5, deviation=deviation)
    algorithm, network = make(PPOConfig(minibatches=1, squash=squash), env, settings)
    steps, _ = next(algorithm.minibatches(algorithm.prepare(network, batch_for(network, env))))
    algorithm.loss(network, steps)[0].backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in network.parameters())


def test_a_batch_is_left_when_the_policy_has_moved_far_enough() -> None:
    algorithm, _ = make(PPOConfig(target_kl=0.01))
    assert not algorithm.enough({"approx_kl": 0.009}) and algorithm.enough({"approx_kl": 0.011})
    assert not make()[0].enough({"approx_kl": 100.0}), "without a bound it never is"


def test_a_clipped_value_gains_nothing_beyond_the_clip() -> None:
    algorithm, network = make(PPOConfig(minibatches=1, value_clip=0.1, entropy_cost=0.0, normalize_advantage=False))
    steps = algorithm.prepare(network, batch_for(network))
    far = steps._replace(
        advantage=torch.zeros_like(steps.advantage), target=steps.value + 10.0, value=steps.value - 5.0,
        share=torch.full_like(steps.share, 1 / steps.share.numel()),
    )
    loss, _ = algorithm.loss(network, far)
    loss.backward()
    value_row = network.head.linear.weight.grad[-1]
    assert loss > 0 and not value_row.any(), "it has moved further than 0.1 towards the target already"


def test_rewards_are_measured_by_the_deviation_of_returns() -> None:
    algorithm, network = make(PPOConfig(normalize_returns=True))
    plain, other = make(PPOConfig(normalize_returns=False))
    batch = batch_for(network)
    big = batch._replace(reward=1000 * batch.reward)
    for head in (network.head, other.head):  # nothing is expected yet
        head.linear.weight.data.zero_()
    unscaled = plain.prepare(other, big)
    steps = algorithm.prepare(network, big)
    moments = network.returns
    returns = unscaled.target[unscaled.share > 0]
    assert float(moments.variance) == pytest.approx(float(returns.var(correction=0)), rel=1e-4)
    torch.testing.assert_close(steps.target, unscaled.target / returns.std(correction=0))
    again = algorithm.prepare(network, batch)
    assert again.target.abs().max() < 0.1, "small rewards are small beside what was seen before"
    assert "returns.mean" in dict(network.named_buffers()), "they travel with the weights"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"epochs": 0}, "epochs=0"), ({"minibatches": 0}, "minibatches=0"), ({"clip": 0.0}, "clip=0.0 must be positive")],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PPOConfig(**settings)


