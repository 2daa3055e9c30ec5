"""APPO is V-trace's targets with PPO's policy loss."""

from __future__ import annotations

import pytest
import torch

from pappus.algorithms.vtrace import APPO, APPOConfig, VTrace, VTraceConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.ops.vtrace import vtrace
from tests.algorithms.test_vtrace_loss import DISCRETE, batch

SMALL = NetworkConfig(hidden_sizes=(4,))


def test_the_loss_is_the_clipped_surrogate_of_v_traces_advantages() -> None:
    algorithm = APPO(APPOConfig(clip=0.1, normalize_advantage=False), DISCRETE, SMALL)
    network, data = algorithm.build_network(), batch()
    _, scalars = algorithm.loss(network, data)
    with torch.no_grad():
        output = network(data.observation, data.first, data.state)
    log_p = output.policy[:-1].log_softmax(-1).gather(-1, data.action.unsqueeze(-1)).squeeze(-1)
    ratio = (log_p - data.behaviour["log_prob"]).exp()
    target = vtrace(output.value, data.reward, data.discount * 0.99, ratio, data.valid).target
    later = torch.cat([target[1:], output.value[-1:]])
    terms = []
    for t in range(4):
        for b in range(3):
            if data.valid[t, b]:
                advantage = float(data.reward[t, b] + 0.99 * later[t, b] - output.value[t, b])
                r = float(ratio[t, b])
                terms.append(-min(r * advantage, max(0.9, min(1.1, r)) * advantage))
    assert float(scalars["policy_loss"]) == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def test_on_policy_its_first_gradient_is_v_traces() -> None:
    """With π = μ the ratio is 1, where the surrogate's slope is that of the policy gradient."""
    torch.manual_seed(0)
    appo = APPO(APPOConfig(normalize_advantage=False), DISCRETE, SMALL)
    plain = VTrace(VTraceConfig(), DISCRETE, SMALL)
    network, data = appo.build_network(), batch()
    with torch.no_grad():
        policy = network(data.observation, data.first, data.state).policy[:-1]
        data.behaviour["log_prob"].copy_(plain.distribution.log_prob(policy, data.action))
    gradients = [
        torch.autograd.grad(algorithm.loss(network, data)[0], list(network.parameters())) for algorithm in (appo, plain)
    ]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_advantages_are_measured_by_their_deviation() -> None:
    big = batch()._replace(reward=1000 * batch().reward)
    algorithm = APPO(APPOConfig(clip=10.0), DISCRETE, SMALL)
    network = algorithm.build_network()
    assert algorithm.loss(network, big)[1]["policy_loss"].abs() < 1.0
    dirty = batch()
    dirty.reward[2, 1] = 1e6  # at the invalid step
    torch.testing.assert_close(algorithm.loss(network, batch())[0], algorithm.loss(network, dirty)[0])


def test_a_clip_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="clip=0"):
        APPOConfig(clip=0)
