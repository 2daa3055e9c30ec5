"""The inference server for algorithms that learn from replay, with its network on a CPU or on the learner's device.

    … ──steps──▶ recorder ──items──▶ replay
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import optree
import torch

from pappus.accelerator import Accelerator
from pappus.core import Call, ItemSink, ReplayAlgorithm, RequestServer, StepCounter, Waitable
from pappus.data.recorder import Recording
from pappus.roles.acting import ActingNetwork, report_lost
from pappus.roles.cpu_inference import infer, places_of
from pappus.roles.inference_server import EnvGroupState, InferenceServer, InferenceSettings
from pappus.types import Array, Nest, Request, Timestep, leaves_of, map_leaves


class ReplayGroupState(EnvGroupState):
    """One env group: recurrent state, newest observation, numbers of its envs, and where it is recorded."""

    def __init__(
        self, session: int, sink: ItemSink, state: Nest, recorded: Nest, envs: Array, counter: StepCounter
    ) -> None:
        """`recorded` is what is recorded of the state: arrays."""
        super().__init__(session, len(envs))
        self.sink, self.state, self.recorded, self.envs, self._counter = sink, state, recorded, envs, counter
        self._seen: Timestep | None = None
        self._before: Nest = ()

    def keep(self, request: Request) -> None:
        """Keep what the envs show and the state before it, until it is known what that led to."""
        self._seen, self._before = Timestep(*map_leaves(np.copy, request[:5])), self.recorded

    def append(self, request: Request) -> None:
        assert self.action is not None and self._seen is not None
        then = Timestep(*request[:5])
        self.sink.record(self._seen, self._before, self.action, self.behaviour, then)
        self._counter.add(int(np.count_nonzero(then.valid)))

    def save(self) -> dict[str, Nest]:
        seen = None if self._seen is None else list(self._seen[:5])
        states = {"recorded": leaves_of(self.recorded), "before": leaves_of(self._before)}
        return {**super().save(), **states, "seen": seen, "envs": self.envs, "sink": self.sink.save()}

    def load(self, saved: Nest) -> None:
        super().load(saved)
        structure = optree.tree_structure(self.recorded)
        self.recorded = optree.tree_unflatten(structure, saved["recorded"])
        if saved["seen"] is not None:
            self._seen = Timestep(*saved["seen"])
            self._before = optree.tree_unflatten(structure, saved["before"])
        self.envs = saved["envs"]
        self.sink.load(saved["sink"])


class ReplayInference(InferenceServer[ReplayGroupState]):
    """Central inference that records for replay. Every env explores to a degree of its own."""

    def __init__(
        self, name: str, request_server: RequestServer, network: ActingNetwork, algorithm: ReplayAlgorithm,
        open_sink: Callable[[int], ItemSink], counter: StepCounter, num_envs: int, settings: InferenceSettings,
        recording: Recording | None = None, device: str = "cpu", stacks: bool = False,
    ) -> None:
        """`num_envs` are expected; further ones explore as the first ones do. `device` is that of the network, and
        `stacks` whether its state is (frames, the rest)."""
        super().__init__(name, request_server, network, settings, recording)
        self._accelerator = Accelerator(device)
        self._stream = self._accelerator.stream(urgent=True)
        self._acting, self._algorithm, self._open_sink, self._counter = network, algorithm, open_sink, counter
        self._num_envs, self._next, self._free, self._stacks = num_envs, 0, list[int](), stacks

    def step(self) -> Waitable | None:
        """On a stream with a higher priority than the learner's."""
        with self._accelerator.on(self._stream):
            return super().step()

    def _make_group_state(self, session: int, num_envs: int) -> ReplayGroupState:
        envs = np.array([self._take_number() for _ in range(num_envs)])
        state, sink = self._acting.initial_state(num_envs), self._open_sink(num_envs)
        return ReplayGroupState(session, sink, state, self._recorded(state), envs, self._counter)

    def _recorded(self, state: Nest) -> Nest:
        """What is recorded of a state, as arrays: all but its frames, which are rebuilt from the table."""
        rest: Nest = optree.tree_map(lambda leaf: leaf.cpu().numpy(), state[1] if self._stacks else state)
        return ((), rest) if self._stacks else rest

    def _take_number(self) -> int:
        """The lowest number that no env has."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def _clear(self, group_state: ReplayGroupState) -> None:
        group_state.sink.close()
        for number in group_state.envs.tolist():
            heapq.heappush(self._free, number)

    def _deliver(self, call: Call, group_state: ReplayGroupState) -> bool:
        ready = group_state.sink.ready()
        report_lost(self.metrics, group_state.sink)
        (self._due if ready else self._stuck).append(call)
        return False

    def save(self) -> Nest | None:
        """The network in use, all env groups with the items under construction, and numbers that envs can have."""
        if self._accelerator.real:
            self.afresh = "its network is on a device, with states that checkpoints do not hold"
            return None
        return {
            "network": self._acting.save(), "next": self._next, "free": list(self._free), **self.saved_groups(),
        }

    def load(self, state: Nest) -> None:
        """Continue with the requests in flight."""
        self._acting.load(state["network"])
        self.load_groups(state)
        self._next, self._free = state["next"], list(state["free"])

    def _outlet(self) -> Waitable:
        """The sink that has been waited for longest."""
        return self._group_states[self._stuck[0].env_group].sink

    def _infer(self, calls: Sequence[Call], group_states: Sequence[ReplayGroupState]) -> None:
        for call, group_state in zip(calls, group_states, strict=True):
            group_state.keep(call.request)
        numbers = np.concatenate([group_state.envs for group_state in group_states]) % self._num_envs
        exploration = self._algorithm.exploration(numbers, self._num_envs, self._counter.total())
        recorded = self._recorded(infer(self._acting, calls, group_states, torch.from_numpy(exploration)))
        for group_state, here in zip(group_states, places_of(group_states), strict=True):
            group_state.recorded = optree.tree_map(lambda leaf: leaf[here], recorded)  # noqa: B023
