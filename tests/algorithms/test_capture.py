"""What a captured graph asks of the losses of continuous control.

Nothing happens on the host, and updates of one kind do the same. Tensors of the device `meta` have no values: who asks
for one fails, as during a capture. What is made elsewhere shows.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pappus.algorithms.awac import AWAC, AWACConfig
from pappus.algorithms.cql import CQL, CQLConfig
from pappus.algorithms.crossq import CrossQ, CrossQConfig
from pappus.algorithms.d4pg import D4PG, D4PGConfig
from pappus.algorithms.ddpg import DDPG, DDPGConfig
from pappus.algorithms.iql import IQL, IQLConfig
from pappus.algorithms.sac import SAC, SACConfig
from pappus.algorithms.td3_bc import TD3BC, TD3BCConfig
from pappus.config import NetworkConfig
from pappus.types import map_leaves
from tests.algorithms.continuous_tools import B, made

TD3: dict[str, Any] = {"twin": True, "policy_delay": 2, "smoothing": 0.2}
CASES: dict[str, tuple[Any, Any]] = {
    "ddpg": (DDPG, DDPGConfig(action_gradient_clip=1.0)),
    "td3": (DDPG, DDPGConfig(**TD3)),
    "d4pg": (D4PG, D4PGConfig()),
    "d4pg-twin": (D4PG, D4PGConfig(critic_sizes=(16, 8), **TD3)),
    "sac": (SAC, SACConfig()),
    "crossq": (CrossQ, CrossQConfig(critic_sizes=(8, 8))),
    "td3-bc": (TD3BC, TD3BCConfig()),
    "iql": (IQL, IQLConfig()),
    "awac": (AWAC, AWACConfig()),
    "cql": (CQL, CQLConfig()),
}


class Operations(TorchDispatchMode):
    """The names of all operations, and those whose results are on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.on_host: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.names.append(str(function))
        made = result if isinstance(result, (tuple, list)) else (result,)
        if any(isinstance(one, torch.Tensor) and one.device.type != "meta" for one in made):
            self.on_host.append(str(function))
        return result


def on_device(kind: Any, config: Any, normalize: bool) -> tuple[Any, Any, Any, Any]:
    """The algorithm, its network, the one that judges later observations, and a batch."""
    network_config = NetworkConfig(hidden_sizes=(8, 8), normalize=normalize)
    algorithm, network, target, batch = made(kind, config, network=network_config)
    for one in (network, target):
        one.to("meta")
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)  # a learner's are there before its first update
    later = network if algorithm.target_updates is None else target
    return algorithm, network, later, map_leaves(lambda leaf: leaf.to("meta"), batch)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_update_is_made_on_the_device_alone_and_those_of_a_kind_are_alike(name: str, normalize: bool) -> None:
    algorithm, network, later, batch = on_device(*CASES[name], normalize)
    delays = algorithm.part_delays
    kinds: defaultdict[tuple[bool, ...], list[Any]] = defaultdict(list)
    for update in range(2 * max(delays)):
        with Operations() as operations:
            learnt = algorithm.loss(network, later, batch, torch.ones(B, device="meta"), update)
            learnt.loss.backward()
        assert not operations.on_host and learnt.priority.device.type == "meta"
        kinds[tuple(update % delay > 0 for delay in delays)].append((operations.names, list(learnt.scalars)))
    assert all(one == alike[0] for alike in kinds.values() for one in alike) and len(kinds) == len({*delays})


def test_moments_of_observations_are_counted_on_the_device() -> None:
    _, network, _, batch = on_device(SAC, SACConfig(), normalize=True)
    with Operations() as operations:
        network.observe(batch.observation.unsqueeze(0))
    assert operations.names and not operations.on_host
