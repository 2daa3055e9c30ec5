"""Networks and hand-made batches for methods that learn continuous control from data."""

from __future__ import annotations

from typing import Any

import torch

from pappus.config import NetworkConfig
from pappus.experience import Transition
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec

B = 6
SEEN = ArraySpec((3,), "float32")
ENV = EnvSpec(SEEN, ContinuousAction((2,)))
DISCRETE = EnvSpec(SEEN, DiscreteAction(4))
SMALL = NetworkConfig(hidden_sizes=(8, 8))


def made(algorithm: Any, config: Any, env: EnvSpec = ENV, network: NetworkConfig = SMALL) -> tuple[Any, Any, Any, Any]:
    """The algorithm, its network and target with different weights, and a batch whose last item terminated."""
    torch.manual_seed(0)
    made = algorithm(config, env, network)
    continuous = isinstance(env.action, ContinuousAction)
    action = torch.rand(B, 2) * 2 - 1 if continuous else torch.randint(4, (B,))
    batch = Transition(
        torch.randn(B, 3), action, torch.randn(B), torch.tensor([0.9] * (B - 1) + [0.0]), torch.randn(B, 3),
    )
    return made, made.build_network(), made.build_network().requires_grad_(False), batch


def gradient(loss: torch.Tensor, module: Any) -> torch.Tensor:
    """Of a loss by all parameters of a module, zero where there is none."""
    parameters = list(module.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(at) if one is None else one).flatten() for one, at in pairs])
