"""What the documentation shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pappus
from pappus.config import NetworkConfig
from pappus.networks.build import own_network
from pappus.networks.modules import FORBIDDEN
from pappus.networks.steps import BatchForward
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec

DOCS = Path(__file__).parents[1] / "docs"
TINY: dict[str, Any] = {
    "runtime": "inline", "actors": 1, "envs_per_actor": 2, "batch_size": 8, "steps": 300, "network.hidden_sizes": [8],
    "evaluation.episodes": 1, "topology.replay.warm_up": 5, "topology.replay.samples_per_insert": 1.0,
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of docs/dqn.md as a module of a user's."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "dqn.md").read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


@pytest.mark.parametrize(
    ("system", "env", "settings"),
    [
        ("dqn", "CartPole-v1", {}),
        ("gorila-dqn", "CartPole-v1", {}),
        ("r2d2", "CartPole-v1", {"network.core": "gru"}),
        ("ddpg", "Pendulum-v1", {}),
    ],
)
def test_systems_train_with_the_networks_of_the_docs(
    system: str, env: str, settings: dict[str, Any], mine: None, tmp_path: Path
) -> None:
    factory = "mine:policy_and_critics" if system == "ddpg" else "mine:values"
    result = pappus.train(system, env, run_dir=tmp_path / "run", **{**TINY, "network.factory": factory, **settings})
    assert result.summary.updates > 0


@pytest.mark.parametrize(
    ("system", "env", "network"),
    [
        ("dqn", "CartPole-v1", "Values"), ("gorila-dqn", "CartPole-v1", "Values"),
        ("r2d2", "CartPole-v1", "Remembering"), ("seed-r2d2", "CartPole-v1", "Remembering"),
        ("ddpg", "Pendulum-v1", "PolicyAndCritic"), ("td3", "Pendulum-v1", "PolicyAndCritic"),
    ],
)
def test_the_members_that_the_docs_ask_of_a_network_are_enough(
    system: str, env: str, network: str, tmp_path: Path
) -> None:
    settings = {**TINY, "network.factory": f"tests.networks.bare_networks:{network}"}
    assert pappus.train(system, env, run_dir=tmp_path / "run", **settings).summary.updates > 0


def test_the_network_of_the_docs_stacks_frames_and_leaves_masks_to_the_values(mine: None) -> None:
    spec = {"seen": ArraySpec((4,), "float32"), ACTION_MASK: ArraySpec((2,), "int8")}
    env = EnvSpec(spec, DiscreteAction(2), frame_stack=3)
    network: Any = own_network(env, NetworkConfig(hidden_sizes=(8,), factory="mine:values"))
    frames, mask = torch.randn(3, 1, 4), torch.tensor([0, 1], dtype=torch.int8).expand(3, 1, 2)
    first = torch.tensor([[True], [False], [False]])
    unrolled = network({"seen": frames, ACTION_MASK: mask}, first, network.initial_state(1)).q[-1]
    stacked = {"seen": frames.transpose(0, 1), ACTION_MASK: mask.transpose(0, 1)}  # as DQN sees them out of replay
    torch.testing.assert_close(BatchForward()(network, stacked).q, unrolled)
    assert unrolled.argmax() == 1 and unrolled[0, 0] == FORBIDDEN
