"""A network that acts, refreshed from published weights: for one fixed group of envs, or for whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import torch

from pappus.core import Algorithm, WeightsReader
from pappus.networks.acting import single_step
from pappus.networks.arrays import array_step
from pappus.networks.flat import FlatParameters
from pappus.ops.array_sampling import NoiseAhead
from pappus.types import Array, Nest, Timestep, map_leaves

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ActingNetwork:
    """A copy of the network that follows the published weights. It keeps no recurrent state: clients do.

    It samples from `seed` on, or acts greedily without one.
    """

    def __init__(self, algorithm: Algorithm, weights: WeightsReader, seed: int | None, precision: str) -> None:
        self._algorithm, self._weights = algorithm, weights
        self._network: Any = algorithm.build_network()
        self._network.requires_grad_(False).eval()
        self._flat = FlatParameters(self._network, DTYPES[precision])
        self._step, self._array_step = single_step(self._network), array_step(self._network)
        self._received = np.empty(self._flat.size, np.float32)
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._acting: Any = algorithm  # on arrays, where it and the network can
        fill = getattr(algorithm, "array_noise", None) if self._array_step is not None else None
        self._noise = None if fill is None or self._generator is None else NoiseAhead(fill, self._generator)
        self.name = weights.name
        self.version = -1

    def initial_state(self, num_envs: int) -> Nest:
        """The recurrent state before an episode, tensors `[N, …]`."""
        return self._network.initial_state(num_envs)

    def refresh(self) -> bool:
        """Use the newest weights; False while there are none."""
        if self._weights.version() != self.version:
            self.version = self._weights.read(self._received)
            self._flat.values.copy_(torch.from_numpy(self._received))
        return self.version >= 0

    def infer(
        self, observation: Nest, first: Array, state: Nest, exploration: torch.Tensor | None = None
    ) -> tuple[Array, dict[str, Array], Nest]:
        """Actions `[N, …]`, what the algorithm records of them, and the state after them.

        `exploration` says how much each env explores, for algorithms that need to be told.
        """
        if self._noise is not None and isinstance(observation, np.ndarray):
            explored = None if exploration is None else exploration.numpy()
            return *self._acting.act_on_arrays(self._array_step, observation, self._noise, explored), state
        with torch.inference_mode():
            action, behaviour, state = self._algorithm.act(
                self._step, map_leaves(torch.from_numpy, observation), torch.from_numpy(first), state, self._generator,
                exploration,
            )
        return action.numpy(), {key: leaf.numpy() for key, leaf in behaviour.items()}, state

    def save(self) -> Nest:
        """Weights in use and random state."""
        assert self._generator is not None
        random = {"generator": self._generator.get_state()} if self._noise is None else self._noise.save()
        return {"received": self._received.copy(), "version": self.version, "random": random}

    def load(self, saved: Nest) -> None:
        """Go on from what `save` returned."""
        assert self._generator is not None
        self._received[:] = saved["received"]
        self._flat.values.copy_(torch.from_numpy(self._received))
        self.version = saved["version"]
        if self._noise is None:
            self._generator.set_state(saved["random"]["generator"])
        else:
            self._noise.load(saved["random"])

    def explain(self) -> str:
        return self._weights.explain()

    def fileno(self) -> int:
        return self._weights.fileno()

    def clear(self) -> None:
        self._weights.clear()


class LocalPolicy(ActingNetwork):
    """Acts for `num_envs` envs and keeps their recurrent state; greedily when it has no seed."""

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, num_envs: int, seed: int | None,
        precision: str = "float32", explore: Callable[[], Array] | None = None,
    ) -> None:
        """`explore` says how much each env explores `[N]`, whenever weights are refreshed."""
        super().__init__(algorithm, weights, seed, precision)
        self._explore = explore
        self._exploration: torch.Tensor | None = None
        self._state = self.initial_state(num_envs)

    def refresh(self) -> bool:
        """Use the newest weights, and explore as it is time to; False while there are none."""
        if self._explore is not None:
            self._exploration = torch.from_numpy(self._explore())
        return super().refresh()

    @property
    def state(self) -> Nest:
        """Recurrent state before the next observation, arrays `[N, …]`."""
        return optree.tree_map(lambda leaf: leaf.numpy(), self._state)

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Actions `[N, …]` and what the algorithm records of them."""
        action, behaviour, self._state = self.infer(
            timestep.observation, timestep.first, self._state, self._exploration
        )
        return action, behaviour

    def save(self) -> Nest:
        """Weights in use, recurrent state and random state."""
        return {**super().save(), "state": optree.tree_leaves(self._state)}

    def load(self, saved: Nest) -> None:
        """Go on from what `save` returned."""
        super().load(saved)
        self._state = optree.tree_unflatten(optree.tree_structure(self._state), saved["state"])
