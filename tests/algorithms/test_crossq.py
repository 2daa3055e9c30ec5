"""CrossQ's loss against what the paper writes down, and its running moments through a run."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import pappus
from pappus.algorithms.crossq import CrossQ, CrossQConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.networks.flat import FlatParameters
from pappus.telemetry.run_folders import find_checkpoint
from pappus.telemetry.weights import stored_weights
from pappus.types import ArraySpec, ContinuousAction, EnvSpec
from tests.algorithms.continuous_tools import B, gradient, made

SMALL: dict[str, Any] = {"critic_sizes": (16, 16), "temperature": 0.5}
SETTINGS: dict[str, Any] = {
    "runtime": "inline", "steps": 120, "batch_size": 8, "topology.replay.samples_per_insert": 8.0,
    "topology.replay.warm_up": 40, "network.hidden_sizes": (8,), "algorithm.critic_sizes": (8,),
    "evaluation.episodes": 1,
}


def test_critics_follow_themselves_in_one_pass_with_later_actions() -> None:
    algorithm, network, _, batch = made(CrossQ, CrossQConfig(**SMALL))
    weight, twin = torch.rand(B), copy.deepcopy(network)
    torch.manual_seed(3)
    learned = algorithm.loss(network, None, batch, weight, update=1)
    torch.manual_seed(3)
    later, seen = twin.see(batch.next_observation), twin.see(batch.observation)
    action, log_prob = algorithm.distribution.reparameterized(twin.policy(later).detach())
    q, q_later = twin.learnt_q((seen, batch.action), (later, action))
    goal = batch.reward + batch.discount * (q_later.detach().min(0).values - 0.5 * log_prob)
    assert goal[-1] == batch.reward[-1], "nothing follows a termination"
    expected = (weight * (q - goal).square().sum(0)).mean()
    torch.testing.assert_close(learned.loss, expected)
    torch.testing.assert_close(gradient(learned.loss, network.critics), gradient(expected, twin.critics))
    torch.testing.assert_close(learned.priority, (q - goal).abs().mean(0).detach())
    assert not gradient(learned.loss, network.actor).any() and network.log_temperature.grad is None


def test_the_policy_climbs_what_critics_say_by_their_running_moments_every_third_time() -> None:
    algorithm, network, _, batch = made(CrossQ, CrossQConfig(**SMALL))
    counts = [network.actor.norms[0].count.item(), network.critics.norms[0].count.item()]
    torch.manual_seed(3)
    learned = algorithm.loss(network, None, batch, torch.zeros(B), update=3)
    assert [network.actor.norms[0].count.item(), network.critics.norms[0].count.item()] == [one + 1 for one in counts]
    assert not gradient(learned.loss, network.critics).any(), "the critics are judges, and do not learn from it"
    assert {"policy_loss", "entropy", "temperature"} <= learned.scalars.keys()
    assert algorithm.part_delays == (3, 1) and algorithm.target_updates is None


def test_its_network_may_have_a_single_row() -> None:
    """Whose batch it was that is not finite is found out in parts."""
    algorithm, network, _, batch = made(CrossQ, CrossQConfig(**SMALL))
    one = type(batch)(*(leaf[:1] for leaf in batch[:5]))
    assert algorithm.loss(network, None, one, torch.ones(1), update=0).loss.isfinite()


@pytest.mark.parametrize("settings", [{"policy_delay": 0}, {"renorm_after": -1}, {"critic_sizes": ()}])
def test_sizes_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="policy_delay"):
        CrossQConfig(**settings)


def test_a_policy_from_a_checkpoint_acts_by_the_moments_that_were_counted(tmp_path: Path) -> None:
    result = pappus.train("crossq", "Pendulum-v1", SETTINGS, run_dir=tmp_path / "run")
    env = EnvSpec(ArraySpec((3,), "float32"), ContinuousAction((1,)))
    algorithm = CrossQ(CrossQConfig(critic_sizes=(8,)), env, NetworkConfig(hidden_sizes=(8,)))
    network: Any = algorithm.build_network()
    seen = torch.tensor([[0.5, -0.5, 3.0]])
    without = algorithm.distribution.mode(network.policy(network.see(seen)))
    FlatParameters(network).values.copy_(torch.from_numpy(stored_weights(find_checkpoint(tmp_path / "run", "latest"))))
    assert network.critics.norms[0].count.item() == result.summary.updates
    assert network.actor.norms[0].count.item() == math.ceil(result.summary.updates / 3)
    mode = algorithm.distribution.mode(network.policy(network.see(seen)))
    assert result.policy.act(seen[0].numpy()) == pytest.approx(2 * mode[0].detach().numpy(), abs=1e-5)
    assert not torch.allclose(mode, without, atol=1e-3)
