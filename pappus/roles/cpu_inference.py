"""The inference server on a CPU, for algorithms that learn from unrolls.

    … ──unrolls──▶ packer ──batches──▶ sinks, round-robin

It packs unrolls into training batches itself: one copy of each costs far less than a thread would.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import optree
import torch

from pappus.core import Call, RequestServer, Sink, Waitable
from pappus.data.recorder import Recording
from pappus.recording.unrolls import BatchPacker
from pappus.roles.acting import ActingNetwork
from pappus.roles.inference_server import EnvGroupState, InferenceServer, InferenceSettings, UnrollGroupState
from pappus.types import Array, Nest, Request, Timestep, Unroll, leaves_of, map_leaves


class CpuGroupState(UnrollGroupState):
    """One env group: its envs' recurrent state, and the unroll under construction."""

    def __init__(self, session: int, num_envs: int, settings: InferenceSettings, state: Nest) -> None:
        super().__init__(session, num_envs, settings.unroll_length)
        spec = settings.unroll_spec(num_envs)
        self.unroll: Unroll = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
        self.state = state

    def begin(self, request: Request) -> None:
        state = optree.tree_map(lambda leaf: leaf.numpy(), self.state)
        self.writer.begin(self.unroll, Timestep(*request[:5]), state)

    def append(self, request: Request) -> None:
        assert self.action is not None
        self.writer.append(self.action, self.behaviour, self.version, Timestep(*request[:5]))

    def save(self) -> dict[str, Nest]:
        return {**super().save(), "unroll": leaves_of(self.unroll), "time": self.writer.time}

    def load(self, saved: Nest) -> None:
        super().load(saved)
        for into, leaf in zip(leaves_of(self.unroll), saved["unroll"], strict=True):
            into[...] = leaf
        self.writer.resume(self.unroll, saved["time"])


class CpuInference(InferenceServer[CpuGroupState]):
    """Central inference that records unrolls, for one learner or many."""

    def __init__(
        self, name: str, request_server: RequestServer, network: ActingNetwork, sinks: Sequence[Sink],
        settings: InferenceSettings, recording: Recording | None = None,
    ) -> None:
        super().__init__(name, request_server, network, settings, recording)
        self._acting = network
        self._packer = BatchPacker(sinks, settings.batch_size)

    def handed_on(self) -> int:
        return self._packer.handed_on()

    def _outlet(self) -> Waitable:
        return self._packer.sink

    def _make_group_state(self, session: int, num_envs: int) -> CpuGroupState:
        return CpuGroupState(session, num_envs, self._settings, self._acting.initial_state(num_envs))

    def _hand_over(self, group_state: CpuGroupState) -> bool:
        group_state.delivered = self._packer.pack(group_state.unroll, group_state.delivered, group_state.num_envs)
        return group_state.delivered == group_state.num_envs

    def _infer(self, calls: Sequence[Call], group_states: Sequence[CpuGroupState]) -> None:
        infer(self._acting, calls, group_states)

    def save(self) -> Nest:
        """The network in use, all env groups, and whose requests are in which state."""
        packer = self._packer
        return {
            "network": self._acting.save(), "filled": packer.filled, "held": packer.held, "turn": packer.turn,
            **self.saved_groups(),
        }

    def load(self, state: Nest) -> None:
        """Continue with the requests in flight."""
        self._acting.load(state["network"])
        self._packer.filled, self._packer.held, self._packer.turn = state["filled"], state["held"], state["turn"]
        self.load_groups(state)

    def close(self) -> None:
        """Count what fills no batch as dropped, too."""
        super().close()
        self.drop(self._packer.held)


def infer(
    network: ActingNetwork, calls: Sequence[Call], group_states: Sequence[EnvGroupState],
    exploration: torch.Tensor | None = None,
) -> Nest:
    """One forward pass for all requests; every env group remembers its rows of the outcome. Returns the recurrent state
    of all of them, side by side."""
    observation, first, state = _join(calls, [group_state.state for group_state in group_states])
    action, behaviour, state = network.infer(observation, first, state, exploration)
    if len(group_states) == 1:
        group_states[0].remember(action, behaviour, network.version)
        group_states[0].state = state
        return state
    for one, here in zip(group_states, places_of(group_states), strict=True):
        one.remember(action[here], {key: leaf[here] for key, leaf in behaviour.items()}, network.version)
        one.state = optree.tree_map(lambda leaf: leaf[here], state)  # noqa: B023
    return state


def places_of(group_states: Sequence[EnvGroupState]) -> list[slice]:
    """Where the envs of each group are in a batch."""
    ends = accumulate(one.num_envs for one in group_states)
    return [slice(end - one.num_envs, end) for one, end in zip(group_states, ends, strict=True)]


def _join(calls: Sequence[Call], states: Sequence[Nest]) -> tuple[Nest, Array, Nest]:
    """Requests and states side by side; a single request is used where it lies."""
    if len(calls) == 1:
        return calls[0].request.observation, calls[0].request.first, states[0]
    observation = optree.tree_map(lambda *leaves: np.concatenate(leaves), *(call.request.observation for call in calls))
    first = np.concatenate([call.request.first for call in calls])
    state = optree.tree_map(lambda *leaves: torch.cat(leaves), *states)
    return observation, first, state
