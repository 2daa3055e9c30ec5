"""A network of your own: any `nn.Module` factory with the documented signature.

    pappus train impala --env CartPole-v1 --network.factory own_network:make     (in this folder)
    python examples/own_network.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pappus
from pappus.config import NetworkConfig
from pappus.networks.modules import Output
from pappus.ops.distributions import distribution_for
from pappus.types import EnvSpec, Nest


class Residual(nn.Module):
    """A policy and a value on a residual MLP; it has no memory, so its state is empty."""

    state_spec: Nest = ()

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.into = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.policy, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Nest:
        return ()

    def forward(self, observation: Tensor, first: Tensor, state: Nest) -> Output:
        """`observation [T, B, inputs]`, `first [T, B]`; everything is time-major."""
        x = self.into(observation)
        for block in self.blocks:
            x = x + block(x.relu())
        return Output(self.policy(x), self.value(x).squeeze(-1), state)


def make(env: EnvSpec, config: NetworkConfig) -> nn.Module:
    """What `--network.factory own_network:make` calls."""
    return Residual(env.observation.shape[0], config.hidden_sizes[0], distribution_for(env.action).parameter_size)


if __name__ == "__main__":
    pappus.train("impala", env="CartPole-v1", network={"factory": "own_network:make"}, target_return=475.0)
