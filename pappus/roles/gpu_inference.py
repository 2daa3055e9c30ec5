"""The inference server on an accelerator: an observation is copied to the device once and used for training in place.

A batch of requests is answered by one captured graph (`device_network`), which also writes the observations into the
unrolls under construction. Launching a graph is one call; each separate copy or kernel would cost tens of microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from pappus.accelerator import Accelerator, copy_all
from pappus.core import Call, Lender, RequestServer, Source, Waitable
from pappus.data.recorder import Recording
from pappus.roles.batching import Batching
from pappus.roles.device_network import DeviceNetwork
from pappus.roles.device_unrolls import UnrollBuffer
from pappus.roles.inference_server import InferenceServer, InferenceSettings, UnrollGroupState
from pappus.types import Array, Request, Timestep, leaves_of

BUFFERS = 3
"""Unrolls of an env group: one under construction, one that is being packed, one to spare."""


class GpuGroupState(UnrollGroupState):
    """One env group: places of its envs' states, and unrolls whose observations are on the device."""

    def __init__(self, session: int, num_envs: int, settings: InferenceSettings, network: DeviceNetwork) -> None:
        super().__init__(session, num_envs, settings.unroll_length)
        self.rows, self._columns = network.admit(num_envs), np.arange(num_envs)
        self._device_rows = torch.from_numpy(self.rows).to(network.accelerator.device)
        spec = settings.unroll_spec(num_envs)
        self.free = deque(network.add_unroll(spec, self) for _ in range(BUFFERS))
        self.gone = False
        self.buffer: UnrollBuffer | None = None
        self._network = network

    def begin(self, request: Request) -> None:
        """Start an unroll in a fresh buffer, with the states before it."""
        self.buffer = self.free.popleft()
        self._network.accelerator.reach(self.buffer.event)
        self._network.states_of(self._device_rows, self.buffer.state)
        self.unroll = self.buffer.host
        self.writer.begin(self.unroll, Timestep((), *request[1:5]), ())

    def append(self, request: Request) -> None:
        assert self.action is not None and self.buffer is not None
        self.writer.append(self.action, self.recorded_behaviour(), self.version, Timestep((), *request[1:5]))
        if self.full:  # the unroll is handed over before its envs are answered
            last = [leaf[-1] for leaf in leaves_of(self.buffer.unroll.observation)]
            copy_all(last, [torch.from_numpy(leaf) for leaf in leaves_of(request.observation)])

    def places(self) -> Array:
        """Where the newest observations belong in the store."""
        assert self.buffer is not None
        return self._columns + (self.buffer.start + self.writer.time * self.num_envs)


class GpuInference(InferenceServer[GpuGroupState]):
    """… ──unrolls──▶ prefetcher, beside it in the same process: experience never leaves the device."""

    afresh = "unrolls under construction are in the memory of the learner's device"

    def __init__(
        self, name: str, request_server: RequestServer, network: DeviceNetwork, unrolls: Lender,
        settings: InferenceSettings, device: str, recording: Recording | None = None, suspects: Source | None = None,
    ) -> None:
        super().__init__(name, request_server, network, settings, recording, suspects)
        self._batching = Batching(settings.max_envs, settings.deadline, network.round_down)
        self._device_network, self._unrolls = network, unrolls
        self._accelerator = Accelerator(device)
        self._stream = self._accelerator.stream(urgent=True)
        network.tell = self.metrics.event

    def step(self) -> Waitable | None:
        """On a stream with a higher priority than the learner's."""
        for buffer in self._unrolls.returned():
            if buffer.owner.gone:
                self._device_network.store.remove(buffer)
            else:
                buffer.owner.free.append(buffer)
        with self._accelerator.on(self._stream):
            return super().step()

    def _outlet(self) -> Waitable:
        return self._device_network if self._settings.synchronous else self._unrolls

    def _make_group_state(self, session: int, num_envs: int) -> GpuGroupState:
        return GpuGroupState(session, num_envs, self._settings, self._device_network)

    def _clear(self, group_state: GpuGroupState) -> None:
        self._device_network.dismiss(group_state.rows)
        group_state.gone = True
        under_construction = [] if group_state.buffer is None else [group_state.buffer]
        for buffer in (*group_state.free, *under_construction):
            self._device_network.store.remove(buffer)

    def _hand_over(self, group_state: GpuGroupState) -> bool:
        if group_state.delivered < group_state.num_envs:
            assert group_state.buffer is not None
            group_state.buffer.event = self._accelerator.mark(group_state.buffer.event)
            self._unrolls.give(group_state.buffer)
            group_state.buffer = None
            group_state.delivered = group_state.num_envs
        return bool(group_state.free)

    def _infer(self, calls: Sequence[Call], group_states: Sequence[GpuGroupState]) -> None:
        network, rows = self._device_network, [group_state.rows for group_state in group_states]
        batch = network.batch(sum(map(len, rows)))
        requests = [call.request for call in calls]
        action, *behaviour = batch(
            [request.observation for request in requests], [request.first for request in requests], rows,
            [group_state.places() for group_state in group_states], (network.size, network.store.spare),
        )
        self._measured = batch.run.warm
        named = dict(zip(network.behaviour_names, behaviour, strict=True))
        for group_state, end in zip(group_states, accumulate(map(len, rows)), strict=True):
            here = slice(end - group_state.num_envs, end)
            group_state.remember(action[here], {key: leaf[here] for key, leaf in named.items()}, network.version)
