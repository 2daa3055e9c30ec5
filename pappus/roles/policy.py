"""A network that acts, refreshed from published weights: for a fixed group of envs, or for any requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import optree
import torch

from pappus.core import Algorithm, WeightsReader
from pappus.networks.flat import FlatParameters
from pappus.networks.numpy_mlp import numpy_mlp
from pappus.networks.steps import single_step
from pappus.ops.numpy_ops import NoiseAhead
from pappus.overrides import stands_for
from pappus.types import Array, Nest, Timestep, map_leaves

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Transform: TypeAlias = Callable[[Any], Any]
"""The network's output for one step → the output to act on, such as `output._replace(policy=output.policy / 2)`.

It gets `Output` or `QOutput` of tensors or of NumPy arrays `[N, …]`: use operators that both have."""


class ActingNetwork:
    """A copy of the network that follows the published weights. It keeps no recurrent state: its callers do.

    It samples actions from `seed`, or acts greedily without one. `transform` changes the network's output before an
    action is chosen and recorded.
    """

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, seed: int | None, precision: str,
        transform: Transform | None = None,
    ) -> None:
        self._algorithm, self._weights = algorithm, weights
        self._network: Any = algorithm.build_network()
        self._network.requires_grad_(False).eval()
        self._flat = FlatParameters(self._network, DTYPES[precision])
        self._step, mlp = _transformed(single_step(self._network), transform), numpy_mlp(self._network)
        self._received = np.empty(self._flat.size, np.float32)
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._noise = None if mlp is None or self._generator is None else _numpy_noise(algorithm, self._generator)
        self._numpy_step = None if mlp is None else _transformed(mlp, transform)
        self._act_numpy: Any = getattr(algorithm, "act_numpy", None)
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
        """Actions `[N, …]`, the behaviour to record with them, and the state after them.

        `exploration` is how much each env explores `[N]`, for algorithms that take it.
        """
        if self._noise is not None and isinstance(observation, np.ndarray):
            explored = None if exploration is None else exploration.numpy()
            return *self._act_numpy(self._numpy_step, observation, self._noise, explored), state
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
        """Continue from what `save` returned."""
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


def _transformed(step: Callable[..., Any], transform: Transform | None) -> Callable[..., Any]:
    return step if transform is None else lambda *inputs: transform(step(*inputs))


def _numpy_noise(algorithm: Any, generator: torch.Generator) -> NoiseAhead | None:
    """The noise for `algorithm.act_numpy`, unless `act` or `_recorded` was overridden without it."""
    slow = ("act", "_recorded")
    if not stands_for(type(algorithm), "act_numpy", *slow) or any(name in vars(algorithm) for name in slow):
        return None
    return None if algorithm.numpy_noise is None else NoiseAhead(algorithm.numpy_noise, generator)


class LocalPolicy(ActingNetwork):
    """Acts for `num_envs` envs and keeps their recurrent state; greedily without a seed."""

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, num_envs: int, seed: int | None,
        precision: str = "float32", explore: Callable[[], Array] | None = None, transform: Transform | None = None,
    ) -> None:
        """`explore` returns how much each env explores `[N]`; it is called whenever weights are refreshed."""
        super().__init__(algorithm, weights, seed, precision, transform)
        self._explore = explore
        self._exploration: torch.Tensor | None = None
        self._state = self.initial_state(num_envs)

    def refresh(self) -> bool:
        """Use the newest weights and the current exploration; False while there are no weights."""
        if self._explore is not None:
            self._exploration = torch.from_numpy(self._explore())
        return super().refresh()

    @property
    def state(self) -> Nest:
        """Recurrent state before the next observation, arrays `[N, …]`."""
        return optree.tree_map(lambda leaf: leaf.numpy(), self._state)

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Actions `[N, …]` and the behaviour to record with them."""
        action, behaviour, self._state = self.infer(
            timestep.observation, timestep.first, self._state, self._exploration
        )
        return action, behaviour

    def save(self) -> Nest:
        """Weights in use, recurrent state and random state."""
        return {**super().save(), "state": optree.tree_leaves(self._state)}

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned."""
        super().load(saved)
        self._state = optree.tree_unflatten(optree.tree_structure(self._state), saved["state"])
