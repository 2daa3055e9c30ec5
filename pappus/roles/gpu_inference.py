"""The inference server on an accelerator: an observation is copied to the device once, and is trained on there.

Requests lie in pinned memory and are copied into the unroll under construction. One captured graph gathers the
recurrent states of a batch's envs, runs the network, samples, and puts the new states back. Only an action and a few
numbers per env return to the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch

from pappus.accelerator import Accelerator, CapturedGraph
from pappus.core import Algorithm, Call, Lender, RequestServer, Waitable, WeightsReader
from pappus.networks.flat import FlatParameters
from pappus.networks.steps import single_step
from pappus.roles.acting import DTYPES
from pappus.roles.batching import Batching
from pappus.roles.inference_server import InferenceServer, InferenceSettings, UnrollGroupState
from pappus.roles.prefetcher import UnrollBuffer
from pappus.types import Array, Nest, Request, Timestep, leaves_of, map_leaves

BUFFERS = 3
"""Unrolls of an env group: one under construction, one that is being packed, one to spare."""
SMALLEST_BATCH = 32
"""Batches are padded to this, or to twice, four times … as many envs, so that few graphs serve all sizes."""


class DeviceNetwork:
    """The network on the device, its weights taken from a learner on the same device, and the states of all envs."""

    def __init__(
        self, algorithm: Algorithm, weights: WeightsReader, seed: int, precision: str, accelerator: Accelerator,
        smallest_batch: int = SMALLEST_BATCH,
    ) -> None:
        self._algorithm, self._weights, self._accelerator = algorithm, weights, accelerator
        self._smallest_batch = smallest_batch
        self._network = cast(Any, algorithm.build_network())
        self._network.requires_grad_(False).eval()
        self._flat = FlatParameters(self._network, DTYPES[precision], str(accelerator.device))
        self._received = torch.empty(self._flat.size, device=accelerator.device)
        self._step = single_step(self._network)
        self._generator = torch.Generator(accelerator.device).manual_seed(seed)
        self.size = 0
        """Places for envs; the one behind them is for rows that only fill a batch."""
        self._states: Nest = self._network.initial_state(1)
        self._free: list[int] = []
        self.behaviour_names = list(algorithm.behaviour)
        self._batches: dict[int, StaticBatch] = {}
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
        index = torch.from_numpy(rows).to(self._accelerator.device)
        for states, initial in zip(leaves_of(self._states), leaves_of(self._network.initial_state(1)), strict=True):
            states[index] = initial
        return rows

    def dismiss(self, rows: Array) -> None:
        """Free the places of some envs."""
        self._free += rows.tolist()

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

    def batch(self, num_envs: int, like: Nest) -> StaticBatch:
        """The smallest static batch that so many envs fit into; where nothing is captured, one of just that size."""
        size = self._smallest_batch or num_envs
        while size < num_envs:
            size *= 2
        if size not in self._batches:
            self._batches[size] = StaticBatch(size, like, self._accelerator, self._act, self._generator, self.tell)
        return self._batches[size]

    def round_down(self, num_envs: int) -> int:
        """The largest static batch that so many envs fill."""
        size = self._smallest_batch or num_envs
        while 2 * size <= num_envs:
            size *= 2
        return min(size, num_envs)

    def _act(self, batch: StaticBatch) -> list[torch.Tensor]:
        with torch.inference_mode():
            state = map_leaves(lambda leaf: leaf[batch.rows], self._states)
            action, behaviour, state = self._algorithm.act(
                self._step, batch.observation, batch.first, state, self._generator
            )
            for into, leaf in zip(leaves_of(self._states), leaves_of(state), strict=True):
                into[batch.rows] = leaf
        return [action, *(behaviour[name] for name in self.behaviour_names)]


class StaticBatch:
    """Inputs and outputs of one captured forward pass, always in the same places."""

    def __init__(
        self, size: int, like: Nest, accelerator: Accelerator, act: Callable[[StaticBatch], list[torch.Tensor]],
        generator: torch.Generator, tell: Callable[[str], None],
    ) -> None:
        device = accelerator.device
        self._accelerator, self.size = accelerator, size
        self.observation: Nest = map_leaves(
            lambda leaf: torch.zeros(size, *leaf.shape[1:], dtype=leaf.dtype, device=device), like
        )
        self.first = torch.zeros(size, dtype=torch.bool, device=device)
        self.rows = torch.zeros(size, dtype=torch.int64, device=device)
        self._host_first = accelerator.pinned((size,), torch.bool)
        self._host_rows = accelerator.pinned((size,), torch.int64)
        self._host_outputs: list[torch.Tensor] = []
        self.run = CapturedGraph(accelerator, lambda: act(self), tell, generator)

    def __call__(
        self, observations: Sequence[Nest], first: Sequence[Array], rows: Sequence[Array], padding: int
    ) -> list[Array]:
        """Outputs as host arrays `[size, …]`, of which the first ones are those asked for."""
        total = sum(map(len, rows))
        for into, *parts in zip(leaves_of(self.observation), *map(leaves_of, observations), strict=True):
            torch.cat(parts, out=into[:total])
        np.concatenate(first, out=self._host_first.numpy()[:total])
        np.concatenate(rows, out=self._host_rows.numpy()[:total])
        self._host_rows[total:] = padding
        self.first.copy_(self._host_first, non_blocking=True)
        self.rows.copy_(self._host_rows, non_blocking=True)
        outputs = self.run()
        if not self._host_outputs:
            self._host_outputs = [self._accelerator.pinned(tuple(leaf.shape), leaf.dtype) for leaf in outputs]
        for into, leaf in zip(self._host_outputs, outputs, strict=True):
            into.copy_(leaf, non_blocking=True)
        self._accelerator.wait()
        return [leaf.numpy().copy() for leaf in self._host_outputs]


class GpuGroupState(UnrollGroupState):
    """One env group: places of its envs' states, and unrolls whose observations are on the device."""

    def __init__(
        self, session: int, num_envs: int, settings: InferenceSettings, network: DeviceNetwork, accelerator: Accelerator
    ) -> None:
        super().__init__(session, num_envs, settings.unroll_length)
        self.rows = network.admit(num_envs)
        self._device_rows = torch.from_numpy(self.rows).to(accelerator.device)
        self.free: deque[UnrollBuffer] = deque()
        spec = settings.unroll_spec(num_envs)
        self.free.extend(UnrollBuffer(spec, accelerator, self) for _ in range(BUFFERS))
        self.gone = False
        self.buffer: UnrollBuffer | None = None
        self._network, self._accelerator = network, accelerator

    def begin(self, request: Request) -> None:
        """Start an unroll in a fresh buffer, with what the envs show and the states before it."""
        self.buffer = self.free.popleft()
        self._accelerator.follow(self.buffer.event)
        self._network.states_of(self._device_rows, self.buffer.state)
        self.unroll = self.buffer.host
        self.writer.begin(self.unroll, Timestep((), *request[1:5]), ())
        self._upload(request, 0)

    def append(self, request: Request) -> None:
        assert self.action is not None
        self.writer.append(self.action, self.behaviour, self.version, Timestep((), *request[1:5]))
        self._upload(request, self.writer.time)

    def showing(self) -> Nest:
        """The newest observation, on the device."""
        assert self.buffer is not None
        return map_leaves(lambda leaf: leaf[self.writer.time], self.buffer.observation)

    def _upload(self, request: Request, time: int) -> None:
        assert self.buffer is not None
        for into, leaf in zip(leaves_of(self.buffer.observation), leaves_of(request.observation), strict=True):
            into[time].copy_(torch.from_numpy(leaf), non_blocking=True)


class GpuInference(InferenceServer[GpuGroupState]):
    """… ──unrolls──▶ prefetcher, beside it in the same process: experience never leaves the device."""

    def __init__(
        self, name: str, request_server: RequestServer, network: DeviceNetwork, unrolls: Lender,
        settings: InferenceSettings, device: str,
    ) -> None:
        super().__init__(name, request_server, network, settings)
        self._batching = Batching(settings.max_envs, settings.deadline, network.round_down)
        self._device_network, self._unrolls = network, unrolls
        self._accelerator = Accelerator(device)
        self._stream = self._accelerator.stream(urgent=True)
        network.tell = self.metrics.event

    def step(self) -> Waitable | None:
        """On a stream with a higher priority than the learner's."""
        for buffer in self._unrolls.returned():
            if not buffer.owner.gone:
                buffer.owner.free.append(buffer)
        with self._accelerator.on(self._stream):
            return super().step()

    def _outlet(self) -> Waitable:
        return self._device_network if self._settings.synchronous else self._unrolls

    def _make_group_state(self, session: int, num_envs: int) -> GpuGroupState:
        return GpuGroupState(session, num_envs, self._settings, self._device_network, self._accelerator)

    def _clear(self, group_state: GpuGroupState) -> None:
        self._device_network.dismiss(group_state.rows)
        group_state.gone = True
        group_state.free.clear()

    def _hand_over(self, group_state: GpuGroupState) -> bool:
        if group_state.delivered < group_state.num_envs:
            assert group_state.buffer is not None
            group_state.buffer.event = self._accelerator.mark(group_state.buffer.event)
            self._unrolls.give(group_state.buffer)
            group_state.delivered = group_state.num_envs
        return bool(group_state.free)

    def _infer(self, calls: Sequence[Call], group_states: Sequence[GpuGroupState]) -> None:
        network, rows = self._device_network, [group_state.rows for group_state in group_states]
        observations = [group_state.showing() for group_state in group_states]
        batch = network.batch(sum(map(len, rows)), observations[0])
        action, *behaviour = batch(observations, [call.request.first for call in calls], rows, network.size)
        self._measured = batch.run.warm
        named = dict(zip(network.behaviour_names, behaviour, strict=True))
        for group_state, end in zip(group_states, accumulate(map(len, rows)), strict=True):
            here = slice(end - group_state.num_envs, end)
            group_state.remember(action[here], {key: leaf[here] for key, leaf in named.items()}, network.version)
