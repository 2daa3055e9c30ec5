"""The inference server for algorithms that learn from replay, on the learner's device.

    requests ──▶ captured graph (`device_network`) ──actions──▶ requests
                        └─states before─▶ recorder ──items──▶ replay
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import optree

from pappus.core import Call, ItemSink, ReplayAlgorithm, RequestServer, Source, StepCounter, Waitable
from pappus.data.recorder import Recording
from pappus.roles.batching import Batching
from pappus.roles.cpu_inference import places_of
from pappus.roles.device_network import DeviceNetwork
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.replay_inference import ReplayGroupState, ReplayInference
from pappus.types import Array, Nest


class GpuReplayGroupState(ReplayGroupState):
    """An env group whose recurrent states are in these rows of the network's states."""

    rows: Array


class GpuReplayInference(ReplayInference[GpuReplayGroupState]):
    """Central inference for replay, with the network and the recurrent states of all envs on the device."""

    afresh = "states of envs are in the memory of the learner's device"

    def __init__(
        self, name: str, request_server: RequestServer, network: DeviceNetwork, algorithm: ReplayAlgorithm,
        open_sink: Callable[[int], ItemSink], counter: StepCounter, num_envs: int, settings: InferenceSettings,
        recorded: Nest, recording: Recording | None = None, suspects: Source | None = None,
    ) -> None:
        """`recorded` has the structure of what the network tells of its states."""
        super().__init__(
            name, request_server, network, algorithm, open_sink, counter, num_envs, settings, recording, suspects
        )
        self._batching = Batching(settings.max_envs, settings.deadline, network.round_down)
        self._device_network, self._recorded = network, optree.tree_structure(recorded)
        self._accelerator = network.accelerator
        self._stream = self._accelerator.stream(urgent=True)
        network.tell = self.metrics.event

    def step(self) -> Waitable | None:
        """On a stream with a higher priority than the learner's."""
        with self._accelerator.on(self._stream):
            return super().step()

    def _make_group_state(self, session: int, num_envs: int) -> GpuReplayGroupState:
        sink, envs = self._open_sink(num_envs), self._take_numbers(num_envs)
        group_state = GpuReplayGroupState(session, sink, envs, self._counter)
        group_state.rows = self._device_network.admit(num_envs)
        return group_state

    def _clear(self, group_state: GpuReplayGroupState) -> None:
        super()._clear(group_state)
        self._device_network.dismiss(group_state.rows)

    def _infer(self, calls: Sequence[Call], group_states: Sequence[GpuReplayGroupState]) -> None:
        network, rows = self._device_network, [group_state.rows for group_state in group_states]
        batch, requests = network.batch(sum(map(len, rows))), [call.request for call in calls]
        action, *outputs = batch(
            [request.observation for request in requests], [request.first for request in requests], rows, rows,
            (network.size, 0), self._exploration(group_states),
        )
        self._measured = batch.run.warm
        names = network.behaviour_names
        behaviour, before = dict(zip(names, outputs, strict=False)), outputs[len(names) :]
        for request, one, here in zip(requests, group_states, places_of(group_states), strict=True):
            one.keep(request, optree.tree_unflatten(self._recorded, [leaf[here] for leaf in before]))
            one.remember(action[here], {key: leaf[here] for key, leaf in behaviour.items()}, network.version)
