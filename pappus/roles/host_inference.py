"""The inference server on a CPU. It packs finished unrolls into training batches itself: that is one copy of each, far
less than handing them to a thread would cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import optree
import torch

from pappus.core import Call, Desk, Sink
from pappus.replay.writers import BatchPacker
from pappus.roles.dealing import DealingSink
from pappus.roles.inference_server import InferenceServer, InferenceSettings, UnrollSeat
from pappus.roles.policy import ActingNetwork
from pappus.types import Array, Nest, Request, Timestep, Unroll, leaves_of, map_leaves


class HostSeat(UnrollSeat):
    """One lane: its envs' recurrent state, and the unroll under construction."""

    def __init__(self, session: int, num_envs: int, settings: InferenceSettings, state: Nest) -> None:
        super().__init__(session, num_envs, settings.unroll_length)
        spec = settings.unroll_spec(num_envs)
        self.unroll: Unroll = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
        self.state = state

    def begin(self, request: Request) -> None:
        """Start an unroll with what the envs show."""
        state = optree.tree_map(lambda leaf: leaf.numpy(), self.state)
        self.writer.begin(self.unroll, Timestep(*request[:5]), state)

    def append(self, request: Request) -> None:
        """Write down what the last actions led to."""
        assert self.action is not None
        self.writer.append(self.action, self.behaviour, self.version, Timestep(*request[:5]))

    def save(self) -> Nest:
        """Everything, as plain data."""
        acted = {} if self.action is None else {"action": self.action, "behaviour": self.behaviour}
        return {
            "session": self.session, "num_envs": self.num_envs, "version": self.version, "delivered": self.delivered,
            "unroll": leaves_of(self.unroll), "time": self.writer.time, "state": leaves_of(self.state), **acted,
        }

    def load(self, saved: Nest) -> None:
        """Go on from what `save` returned."""
        for into, leaf in zip(leaves_of(self.unroll), saved["unroll"], strict=True):
            into[...] = leaf
        self.writer.resume(self.unroll, saved["time"])
        self.state = optree.tree_unflatten(optree.tree_structure(self.state), saved["state"])
        self.action, self.behaviour = saved.get("action"), saved.get("behaviour", {})
        self.version, self.delivered = saved["version"], saved["delivered"]


class HostInference(InferenceServer[HostSeat]):
    """… ──unrolls──▶ packer ──batches──▶ sinks, one batch for each in turn."""

    def __init__(
        self, name: str, desk: Desk, network: ActingNetwork, sinks: Sequence[Sink], settings: InferenceSettings
    ) -> None:
        self._sinks = DealingSink(sinks)
        super().__init__(name, desk, network, self._sinks, settings)
        self._acting = network
        self._packer = BatchPacker(self._sinks, settings.batch_size)

    def _make_seat(self, session: int, num_envs: int) -> HostSeat:
        return HostSeat(session, num_envs, self._settings, self._acting.initial_state(num_envs))

    def _deliver(self, call: Call, seat: HostSeat) -> bool:
        seat.delivered = self._packer.pack(seat.unroll, seat.delivered, seat.num_envs)
        if seat.delivered < seat.num_envs:
            self._stuck.append(call)
            return False
        seat.begin(call.request)
        self._due.append(call)
        return True

    def _infer(self, calls: Sequence[Call], seats: Sequence[HostSeat]) -> None:
        observation, first, state = join(calls, [seat.state for seat in seats])
        action, behaviour, state = self._acting.infer(observation, first, state)
        if len(seats) == 1:
            seats[0].remember(action, behaviour, self._acting.version)
            seats[0].state = state
            return
        for seat, end in zip(seats, accumulate(seat.num_envs for seat in seats), strict=True):
            here = slice(end - seat.num_envs, end)
            seat.remember(action[here], {key: leaf[here] for key, leaf in behaviour.items()}, self._acting.version)
            seat.state = optree.tree_map(lambda leaf: leaf[here], state)  # noqa: B023

    def save(self) -> Nest:
        """The network in use, all seats, and whose requests are in which state."""
        return {
            "network": self._acting.save(), "filled": self._packer.filled, "held": self._packer.held,
            "turn": self._sinks.turn,
            "lanes": list(self._seats), "seats": [seat.save() for seat in self._seats.values()],
            "due": [call.lane for call in self._due], "stuck": [call.lane for call in self._stuck],
        }

    def load(self, state: Nest) -> None:
        """Go on with the requests in flight."""
        self._acting.load(state["network"])
        self._packer.filled, self._packer.held = state["filled"], state["held"]
        self._sinks.turn = state["turn"]
        for lane, saved in zip(state["lanes"], state["seats"], strict=True):
            self._seats[lane] = self._make_seat(saved["session"], saved["num_envs"])
            self._seats[lane].load(saved)
            self._count_envs(saved["num_envs"])
        calls = {call.lane: call for call in self._desk.calls()}
        self._due, self._stuck = ([calls.pop(lane) for lane in state[kind]] for kind in ("due", "stuck"))
        for call in calls.values():
            self._receive(call)

    def close(self) -> None:
        """What fills no batch any more will not be trained on, either."""
        super().close()
        self.metrics.count("steps_dropped", self._packer.held)


def join(calls: Sequence[Call], states: Sequence[Nest]) -> tuple[Nest, Array, Nest]:
    """Requests and states side by side; a single request is used where it lies."""
    if len(calls) == 1:
        return calls[0].request.observation, calls[0].request.first, states[0]
    observation = optree.tree_map(lambda *leaves: np.concatenate(leaves), *(call.request.observation for call in calls))
    first = np.concatenate([call.request.first for call in calls])
    state = optree.tree_map(lambda *leaves: torch.cat(leaves), *states)
    return observation, first, state
