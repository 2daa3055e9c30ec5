"""The inference server for algorithms that learn from replay; `gpu_replay_inference` has it on the learner's device.

    … ──steps──▶ recorder ──items──▶ replay
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import optree
import torch

from pappus.core import Call, ItemSink, ReplayAlgorithm, RequestServer, Source, StepCounter, Waitable
from pappus.data.recorder import Recording
from pappus.roles.acting import ActingNetwork, count_stored
from pappus.roles.cpu_inference import infer, places_of
from pappus.roles.inference_server import EnvGroupState, InferenceServer, InferenceSettings, Network
from pappus.types import Array, Nest, Request, Timestep, leaves_of, map_leaves


class ReplayGroupState(EnvGroupState):
    """One env group: newest observation, the state before it, indices of its envs, and its replay sink."""

    def __init__(self, session: int, sink: ItemSink, envs: Array, counter: StepCounter) -> None:
        super().__init__(session, len(envs))
        self.sink, self.envs, self._counter = sink, envs, counter
        self.stored = 0
        """Steps stored so far, as far as they were counted."""
        self._seen: Timestep | None = None
        self._before: Nest = ()

    def keep(self, request: Request, before: Nest) -> None:
        """Keep what the envs show and what is recorded of the state before it, until it is known what that led to."""
        self._seen, self._before = Timestep(*map_leaves(np.copy, request[:5])), before

    def append(self, request: Request) -> None:
        assert self.action is not None and self._seen is not None
        then = Timestep(*request[:5])
        self._counter.add(self.sink.record(self._seen, self._before, self.action, self.recorded_behaviour(), then))

    def undelivered(self) -> int:
        return self.sink.open_steps()


GroupState = TypeVar("GroupState", bound=ReplayGroupState)


class ReplayInference(InferenceServer[GroupState]):
    """Central inference that records for replay. Every env has its own degree of exploration."""

    def __init__(
        self, name: str, request_server: RequestServer, network: Network, algorithm: ReplayAlgorithm,
        open_sink: Callable[[int], ItemSink], counter: StepCounter, num_envs: int, settings: InferenceSettings,
        recording: Recording | None = None, suspects: Source | None = None,
    ) -> None:
        """`num_envs` are expected; further ones explore as the first ones do."""
        super().__init__(name, request_server, network, settings, recording, suspects)
        self._algorithm, self._open_sink, self._counter = algorithm, open_sink, counter
        self._num_envs, self._next, self._free = num_envs, 0, list[int]()

    def _take_numbers(self, count: int) -> Array:
        """The lowest numbers that no env has."""
        return np.array([self._take_number() for _ in range(count)])

    def _take_number(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def _clear(self, group_state: GroupState) -> None:
        count_stored(self, group_state.sink, group_state.stored)
        group_state.sink.close()
        for number in group_state.envs.tolist():
            heapq.heappush(self._free, number)

    def _deliver(self, call: Call, group_state: GroupState) -> bool:
        ready = group_state.sink.ready()
        group_state.stored = count_stored(self, group_state.sink, group_state.stored)
        (self._due if ready else self._stuck).append(call)
        return False

    def _outlet(self) -> Waitable:
        """The sink that has been waited for longest."""
        return self._group_states[self._stuck[0].env_group].sink

    def _exploration(self, group_states: Sequence[GroupState]) -> Array:
        """How much each env explores now."""
        numbers = np.concatenate([group_state.envs for group_state in group_states]) % self._num_envs
        return self._algorithm.exploration(numbers, self._num_envs, self._counter.total())


class CpuReplayGroupState(ReplayGroupState):
    """An env group with the recurrent state of its envs and what is recorded of it, as arrays."""

    recorded: Nest = ()

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


class CpuReplayInference(ReplayInference[CpuReplayGroupState]):
    """Central inference for replay, with the network on a CPU."""

    def __init__(
        self, name: str, request_server: RequestServer, network: ActingNetwork, algorithm: ReplayAlgorithm,
        open_sink: Callable[[int], ItemSink], counter: StepCounter, num_envs: int, settings: InferenceSettings,
        recording: Recording | None = None, suspects: Source | None = None, stacks: bool = False,
    ) -> None:
        """`stacks`: the network's state is (frames, the rest), of which frames are rebuilt from the table."""
        super().__init__(
            name, request_server, network, algorithm, open_sink, counter, num_envs, settings, recording, suspects
        )
        self._acting, self._stacks = network, stacks

    def _make_group_state(self, session: int, num_envs: int) -> CpuReplayGroupState:
        sink, envs = self._open_sink(num_envs), self._take_numbers(num_envs)
        group_state = CpuReplayGroupState(session, sink, envs, self._counter)
        group_state.state = self._acting.initial_state(num_envs)
        group_state.recorded = self._recorded(group_state.state)
        return group_state

    def _recorded(self, state: Nest) -> Nest:
        """What is recorded of a state, as arrays."""
        rest: Nest = optree.tree_map(lambda leaf: leaf.numpy(), state[1] if self._stacks else state)
        return ((), rest) if self._stacks else rest

    def _infer(self, calls: Sequence[Call], group_states: Sequence[CpuReplayGroupState]) -> None:
        for call, group_state in zip(calls, group_states, strict=True):
            group_state.keep(call.request, group_state.recorded)
        exploration = torch.from_numpy(self._exploration(group_states))
        recorded = self._recorded(infer(self._acting, calls, group_states, exploration))
        for group_state, here in zip(group_states, places_of(group_states), strict=True):
            group_state.recorded = optree.tree_map(lambda leaf: leaf[here], recorded)  # noqa: B023

    def save(self) -> Nest:
        """The network in use, all env groups with the items under construction, and numbers that envs can have."""
        return {"network": self._acting.save(), "next": self._next, "free": list(self._free), **self.saved_groups()}

    def load(self, state: Nest) -> None:
        """Continue with the requests in flight."""
        self._acting.load(state["network"])
        self.load_groups(state)
        self._next, self._free = state["next"], list(state["free"])
