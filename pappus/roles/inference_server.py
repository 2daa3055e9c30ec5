"""The inference server of SEED: one network answers all envs, and keeps what they experience."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import optree
import torch

from pappus.core import Call, Desk, Sink, Waitable
from pappus.replay.writers import BatchPacker, UnrollWriter
from pappus.roles.batching import Batching
from pappus.roles.policy import ActingNetwork
from pappus.roles.role import Role
from pappus.types import Array, Nest, Timestep, Unroll, leaves_of, map_leaves


@dataclass(frozen=True)
class InferenceSettings:
    """What an inference server needs to know of the run."""

    unroll_spec: Callable[[int], Unroll]
    """Specs of an unroll of so many envs."""
    unroll_length: int
    batch_size: int
    """Unrolls of one env each that make a training batch."""
    max_envs: int = 0
    """Envs that are answered at once; 0: chosen by measurement."""
    deadline: float | None = None
    """Seconds that a request may wait for others; None: chosen by measurement."""


class Seat:
    """One lane at the server: its envs' recurrent state, what they did last, and the unroll under construction."""

    def __init__(self, session: int, num_envs: int, settings: InferenceSettings, state: Nest) -> None:
        self.session, self.num_envs = session, num_envs
        spec = settings.unroll_spec(num_envs)
        self.unroll: Unroll = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
        self.writer = UnrollWriter(settings.unroll_length)
        self.state = state
        self.action: Array | None = None
        self.behaviour: dict[str, Array] = {}
        self.version = -1
        self.delivered = self.num_envs
        """Envs of the finished unroll that are in a training batch already."""

    def undelivered(self) -> int:
        """Valid steps that are in no training batch yet."""
        if self.delivered < self.num_envs:  # a finished unroll, of which some envs may be packed
            return int(np.count_nonzero(self.unroll.valid[:, self.delivered :]))
        return self.writer.held()

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


class InferenceServer(Role):
    """desk ──requests──▶ network ──actions──▶ desk, and what happened ──unrolls──▶ packer ──batches──▶ sink.

    A step receives what has arrived and then answers what is due, except that it ends with the delivery of a finished
    unroll: so in the inline runtime a learner sees a batch before the next action is taken, as in IMPALA.
    """

    def __init__(
        self, name: str, desk: Desk, network: ActingNetwork, sink: Sink, settings: InferenceSettings,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(name)
        self._desk, self._network, self._sink, self._settings, self._clock = desk, network, sink, settings, clock
        self._packer = BatchPacker(sink, settings.batch_size)
        self._batching = Batching(settings.max_envs, settings.deadline)
        self._seats: dict[Hashable, Seat] = {}
        self._stuck: list[Call] = []
        """Requests of seats whose finished unroll waits for room."""
        self._due: list[Call] = []
        """Requests that can be answered."""

    def step(self) -> Waitable | None:
        """Receive what has arrived, or answer what is due, or say what is missing."""
        self.wake_at = None
        for lane in self._desk.left():
            self._remove(lane)
        for line in self._desk.news():
            self.metrics.event(line)
        arrived = self._desk.calls()
        if arrived:
            self._batching.arrived(len(arrived), self._clock())
        if any([self._receive(call) for call in arrived]) or (self._stuck and self._deliver_stuck()):
            return None
        if not self._due:
            return self._sink if self._stuck else self._desk
        if not self._network.refresh():
            return self._network
        waiting = len(self._seats) - len(self._due) - len(self._stuck)
        self.wake_at = self._batching.wait_until(self._envs(self._due), waiting)
        if self.wake_at is not None and self._clock() < self.wake_at:
            return self._desk
        self._answer(self._batching.select(self._due, self._envs))
        return None

    @staticmethod
    def _envs(calls: Sequence[Call]) -> int:
        return sum(len(call.request.first) for call in calls)

    def _receive(self, call: Call) -> bool:
        """Write down what the lane's last actions led to; whether that delivered an unroll."""
        seat = self._seats.get(call.lane)
        if seat is None or seat.session != call.session:
            seat = self._admit(call)
        request = call.request
        timestep = Timestep(*request[:5])
        if seat.action is not None:
            seat.writer.append(seat.action, seat.behaviour, seat.version, timestep)
            self.metrics.count("steps_received", int(np.count_nonzero(timestep.valid)))
        self._report_episodes(request.episode_return, request.episode_length)
        if seat.writer.full:
            seat.delivered = seat.num_envs if seat.action is None else 0
            return self._deliver(call, seat)
        self._due.append(call)
        return False

    def _admit(self, call: Call) -> Seat:
        self._remove(call.lane)
        seat = self._seats[call.lane] = self._seat(call.session, len(call.request.first))
        self.metrics.gauge("envs", sum(seat.num_envs for seat in self._seats.values()))
        return seat

    def _seat(self, session: int, num_envs: int) -> Seat:
        return Seat(session, num_envs, self._settings, self._network.initial_state(num_envs))

    def _remove(self, lane: Hashable) -> None:
        """Free the place of a lane that has gone; what it had not finished is dropped, and counted."""
        seat = self._seats.pop(lane, None)
        if seat is None:
            return
        self.metrics.count("steps_dropped", seat.undelivered())
        self._stuck = [call for call in self._stuck if call.lane != lane]
        self._due = [call for call in self._due if call.lane != lane]
        self.metrics.gauge("envs", sum(seat.num_envs for seat in self._seats.values()))

    def _deliver(self, call: Call, seat: Seat) -> bool:
        """Pack the finished unroll and begin the next; False while there is no room for it."""
        seat.delivered = self._packer.pack(seat.unroll, seat.delivered, seat.num_envs)
        if seat.delivered < seat.num_envs:
            self._stuck.append(call)
            return False
        state = optree.tree_map(lambda leaf: leaf.numpy(), seat.state)
        seat.writer.begin(seat.unroll, Timestep(*call.request[:5]), state)
        self._due.append(call)
        return True

    def _deliver_stuck(self) -> bool:
        stuck, self._stuck = self._stuck, []
        return any([self._deliver(call, self._seats[call.lane]) for call in stuck])

    def _answer(self, calls: Sequence[Call]) -> None:
        """One forward pass for all of them."""
        began = self._clock()
        seats = [self._seats[call.lane] for call in calls]
        observation, first, state = _join(calls, seats)
        action, behaviour, state = self._network.infer(observation, first, state)
        for call, seat, here in zip(calls, seats, _slices(seats), strict=True):
            seat.action, seat.version = action[here], self._network.version
            seat.behaviour = {key: leaf[here] for key, leaf in behaviour.items()}
            seat.state = optree.tree_map(lambda leaf: leaf[here], state)  # noqa: B023
            call.reply[...] = seat.action
            call.answer()
        self._due = self._due[len(calls) :]
        seconds = self._clock() - began
        self._batching.answered(len(first), seconds)
        self.metrics.mean("inference/batch_envs", len(first))
        self.metrics.mean("inference/batch_ms", 1e3 * seconds)
        self.metrics.count("env_steps", len(first))

    def _report_episodes(self, returns: Array, lengths: Array) -> None:
        ended = lengths.nonzero()[0]
        if len(ended):
            self.metrics.episodes(returns[ended], lengths[ended])

    def save(self) -> Nest:
        """The network in use, all seats, and whose requests are in which state."""
        return {
            "network": self._network.save(), "filled": self._packer.filled, "held": self._packer.held,
            "lanes": list(self._seats), "seats": [seat.save() for seat in self._seats.values()],
            "due": [call.lane for call in self._due], "stuck": [call.lane for call in self._stuck],
        }

    def load(self, state: Nest) -> None:
        """Go on with the requests in flight."""
        self._network.load(state["network"])
        self._packer.filled, self._packer.held = state["filled"], state["held"]
        for lane, saved in zip(state["lanes"], state["seats"], strict=True):
            self._seats[lane] = self._seat(saved["session"], saved["num_envs"])
            self._seats[lane].load(saved)
        calls = {call.lane: call for call in self._desk.calls()}
        self._due, self._stuck = ([calls[lane] for lane in state[kind]] for kind in ("due", "stuck"))

    def close(self) -> None:
        """Whatever is under way now will not be trained on."""
        self._desk.close()
        for lane in list(self._seats):
            self._remove(lane)
        self.metrics.count("steps_dropped", self._packer.held)


def _join(calls: Sequence[Call], seats: Sequence[Seat]) -> tuple[Nest, Array, Nest]:
    """Requests and states side by side; a single request is used where it lies."""
    if len(calls) == 1:
        return calls[0].request.observation, calls[0].request.first, seats[0].state
    observation = optree.tree_map(lambda *leaves: np.concatenate(leaves), *(call.request.observation for call in calls))
    first = np.concatenate([call.request.first for call in calls])
    state = optree.tree_map(lambda *leaves: torch.cat(leaves), *(seat.state for seat in seats))
    return observation, first, state


def _slices(seats: Sequence[Seat]) -> list[slice]:
    ends = list(accumulate(seat.num_envs for seat in seats))
    return [slice(end - seat.num_envs, end) for seat, end in zip(seats, ends, strict=True)]
