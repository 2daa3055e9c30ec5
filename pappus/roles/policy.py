"""A policy with its own network, refreshed from published weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import torch

from pappus.core import Algorithm, WeightsReader
from pappus.networks.acting import single_step
from pappus.networks.flat import FlatParameters
from pappus.types import Array, Nest, Timestep, map_leaves

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LocalPolicy:
    """Acts for `num_envs` envs at once; greedily when it has no seed."""

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, num_envs: int, seed: int | None, precision: str = "float32"
    ) -> None:
        self._algorithm, self._weights = algorithm, weights
        network: Any = algorithm.build_network()
        network.requires_grad_(False).eval()
        self._flat = FlatParameters(network, DTYPES[precision])
        self._step = single_step(network)
        self._received = np.empty(self._flat.size, np.float32)
        self._state = network.initial_state(num_envs)
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.name = weights.name
        self.version = -1

    @property
    def state(self) -> Nest:
        """Recurrent state before the next observation, arrays `[N, …]`."""
        return optree.tree_map(lambda leaf: leaf.numpy(), self._state)

    def refresh(self) -> bool:
        """Use the newest weights; False while there are none."""
        if self._weights.version() != self.version:
            self.version = self._weights.read(self._received)
            self._flat.values.copy_(torch.from_numpy(self._received))
        return self.version >= 0

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Actions `[N, …]` and what the algorithm records of them."""
        observation = map_leaves(torch.from_numpy, timestep.observation)
        with torch.inference_mode():
            action, behaviour, self._state = self._algorithm.act(
                self._step, observation, torch.from_numpy(timestep.first), self._state, self._generator
            )
        return action.numpy(), {key: leaf.numpy() for key, leaf in behaviour.items()}

    def save(self) -> Nest:
        """Weights in use, recurrent state and random state."""
        assert self._generator is not None
        return {
            "received": self._received.copy(), "version": self.version, "generator": self._generator.get_state(),
            "state": optree.tree_leaves(self._state),
        }

    def load(self, saved: Nest) -> None:
        """Go on from what `save` returned."""
        assert self._generator is not None
        self._received[:] = saved["received"]
        self._flat.values.copy_(torch.from_numpy(self._received))
        self.version = saved["version"]
        self._generator.set_state(saved["generator"])
        self._state = optree.tree_unflatten(optree.tree_structure(self._state), saved["state"])

    def explain(self) -> str:
        return self._weights.explain()

    def fileno(self) -> int:
        return self._weights.fileno()

    def clear(self) -> None:
        self._weights.clear()
