"""The network of an inference server on a device, with the states of all envs. A batch is one captured CUDA graph:

    requests ──▶ observations ──▶ their places in unrolls, where these are built on the device
                      │
    states of the envs ──▶ network ──▶ actions … ──▶ pinned outputs
            ▲────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from pappus.accelerator import Accelerator, CapturedGraph, copy_all
from pappus.core import Algorithm, WeightsReader
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import zeros
from pappus.networks.steps import single_step
from pappus.roles.acting import DTYPES
from pappus.roles.device_unrolls import ObservationStore, UnrollBuffer
from pappus.types import Array, Nest, Unroll, leaves_of, map_leaves

SMALLEST_BATCH = 32
"""Batches are padded to this, or to twice, four times … as many envs, so that few graphs serve all sizes."""


class DeviceNetwork:
    """The network on the device, with weights from a learner on the same device, the recurrent states of all envs, and
    the observations of their unrolls under construction.

    Where experience goes to replay instead, `observation` are the specs of what an env shows: nothing is stored,
    each env explores as its request says, and outputs end with what `recorded` takes of the states before the step.
    """

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, seed: int, precision: str, accelerator: Accelerator,
        smallest_batch: int = SMALLEST_BATCH, said: Sequence[str] = (), observation: Nest = (),
        recorded: Callable[[Nest], Nest] = lambda _: (),
    ) -> None:
        """`said` are names of what `act` says of its actions: all that is learnt from, and more for a recording."""
        self._algorithm, self._weights, self.accelerator = algorithm, weights, accelerator
        self._smallest_batch = smallest_batch
        self._network = cast(Any, algorithm.build_network())
        self._network.requires_grad_(False).eval()
        self._flat = FlatParameters(self._network, DTYPES[precision], str(accelerator.device))
        self._received = torch.empty(self._flat.size, device=accelerator.device)
        self._step = single_step(self._network)
        self._seed, self._generator = seed, torch.Generator(accelerator.device).manual_seed(seed)
        self._made = 0
        """Batches that were captured so far."""
        self.size = 0
        """Places for envs; the one behind them is for rows that only fill a batch."""
        self._states: Nest = self._network.initial_state(1)
        self._free: list[int] = []
        self.store = ObservationStore(accelerator)
        self.behaviour_names = list(said or algorithm.behaviour)
        self._batches: dict[int, StaticBatch] = {}
        self._observation: Nest = zeros(observation, 1, accelerator.device)
        self._recorded = recorded
        self.name, self.version = weights.name, -1
        self.explain, self.fileno, self.clear = weights.explain, weights.fileno, weights.clear
        self.tell: Callable[[str], None] = lambda _: None
        """Called with a message when a graph cannot be captured."""

    def refresh(self) -> bool:
        if self._weights.version() != self.version:
            self.version = self._weights.read(self._received)
            self._flat.values.copy_(self._received)
        return self.version >= 0

    def admit(self, num_envs: int) -> Array:
        """Places for the states of so many envs, cleared."""
        while len(self._free) < num_envs:
            self._grow(num_envs)
        rows = np.array([self._free.pop() for _ in range(num_envs)])
        index = torch.from_numpy(rows).to(self.accelerator.device)
        for states, initial in zip(leaves_of(self._states), leaves_of(self._network.initial_state(1)), strict=True):
            states[index] = initial
        return rows

    def dismiss(self, rows: Array) -> None:
        """Free the places of some envs."""
        self._free += rows.tolist()

    def add_unroll(self, spec: Unroll, owner: Any) -> UnrollBuffer:
        """A place for an unroll of this spec."""
        before = self.store.spare
        buffer = self.store.add(spec, owner)
        if self.store.spare != before:
            self._batches.clear()
        return buffer

    def _grow(self, num_envs: int) -> None:
        """At least twice as many places."""
        size = max(2 * self.size, self.size + num_envs)
        grown = self._network.initial_state(size + 1)
        for into, leaf in zip(leaves_of(grown), leaves_of(self._states), strict=True):
            into[: self.size] = leaf[: self.size]
        self._free += range(self.size, size)
        self._states, self.size = grown, size
        self._batches.clear()  # graphs hold on to the tensors that they were captured with

    def states_of(self, rows: torch.Tensor, into: Nest) -> None:
        for leaf, target in zip(leaves_of(self._states), leaves_of(into), strict=True):
            torch.index_select(leaf, 0, rows, out=target)

    def batch(self, num_envs: int) -> StaticBatch:
        """The smallest static batch that so many envs fit into; where nothing is captured, one of just that size."""
        size = self._smallest_batch or num_envs
        while size < num_envs:
            size *= 2
        if size not in self._batches:
            like = self.store.observation if self.store.spare else self._observation
            generator = self._generator
            if self.accelerator.real:  # each captured graph has its own, and none repeats another's numbers
                self._made += 1
                generator = torch.Generator(self.accelerator.device).manual_seed(self._seed + self._made)
            self._batches[size] = StaticBatch(size, like, self.accelerator, self._act, generator, self.tell)
        return self._batches[size]

    def round_down(self, num_envs: int) -> int:
        """The largest static batch that so many envs fill."""
        size = self._smallest_batch or num_envs
        while 2 * size <= num_envs:
            size *= 2
        return min(size, num_envs)

    def _act(self, batch: StaticBatch) -> list[torch.Tensor]:
        with torch.inference_mode():
            rows, first, places = batch.numbers[0], batch.numbers[1].bool(), batch.numbers[2]
            stores = self.store.spare > 0
            for into, leaf in zip(leaves_of(self.store.observation), leaves_of(batch.observation), strict=stores):
                into.index_copy_(0, places, leaf)
            before = map_leaves(lambda leaf: leaf[rows], self._states)
            exploration = getattr(self._network, "exploration", None) if stores else batch.exploration
            action, behaviour, state = self._algorithm.act(
                self._step, batch.observation, first, before, batch.generator, exploration
            )
            for into, leaf in zip(leaves_of(self._states), leaves_of(state), strict=True):
                into[rows] = leaf
        return [action, *(behaviour[name] for name in self.behaviour_names), *leaves_of(self._recorded(before))]


class StaticBatch:
    """Inputs and outputs of one captured forward pass, always in the same places, on the host and on the device."""

    def __init__(
        self, size: int, like: Nest, accelerator: Accelerator, act: Callable[[StaticBatch], list[torch.Tensor]],
        generator: torch.Generator, tell: Callable[[str], None],
    ) -> None:
        """`like` are observations `[N, …]`."""
        self._accelerator, self._act, self.generator = accelerator, act, generator
        self._host_numbers = accelerator.pinned((3, size), torch.int64)
        self.observation: Nest = map_leaves(lambda leaf: leaf.new_zeros(size, *leaf.shape[1:]), like)
        self.numbers = torch.zeros(3, size, dtype=torch.int64, device=accelerator.device)
        """Where the states of the envs are, whether an episode begins, and where the observations belong."""
        self._rows, self._first, self._places = self._host_numbers.numpy()
        self._host_exploration = accelerator.pinned((size,), torch.float32)
        self.exploration = torch.zeros(size, device=accelerator.device)
        """How much each env explores, where requests say so."""
        self._outputs: list[torch.Tensor] = []
        self._results: list[Array] = []
        self.run = CapturedGraph(accelerator, self._work, tell, generator)

    def _work(self) -> None:
        copy_all([self.numbers, self.exploration], [self._host_numbers, self._host_exploration])
        outputs = self._act(self)
        if not self._outputs:
            self._outputs = [self._accelerator.pinned(tuple(leaf.shape), leaf.dtype) for leaf in outputs]
            self._results = [leaf.numpy() for leaf in self._outputs]
        copy_all(self._outputs, outputs)

    def __call__(
        self, observations: Sequence[Nest], first: Sequence[Array], rows: Sequence[Array], places: Sequence[Array],
        padding: tuple[int, int], exploration: Array | float = 0.0,
    ) -> list[Array]:
        """Outputs as host arrays `[size, …]`, of which the first ones are those asked for; `padding` are the row and
        the place of those that only fill the batch. A request's memory must not change before they are there."""
        total = sum(map(len, rows))
        for into, *parts in zip(leaves_of(self.observation), *map(leaves_of, observations), strict=True):
            copy_all(into[:total].split([len(part) for part in parts]), [torch.from_numpy(part) for part in parts])
        np.concatenate(rows, out=self._rows[:total])
        np.concatenate(first, out=self._first[:total], casting="unsafe")
        np.concatenate(places, out=self._places[:total])
        self._rows[total:], self._places[total:] = padding
        self._host_exploration.numpy()[:total] = exploration
        self.run()
        self._accelerator.wait()
        return [leaf.copy() for leaf in self._results]
