"""The inference server of SEED: one network acts for all envs, and records their experience.

The base class of all inference servers; `cpu_inference`, `gpu_inference`, `replay_inference` and `gpu_replay_inference`
define where the network is and where experience goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import optree

from pappus.core import Call, RequestServer, Source, Waitable
from pappus.data.recorder import EpisodeRecorder, Recording
from pappus.recording.unrolls import UnrollWriter
from pappus.roles.batching import BatchBarrier, Batching
from pappus.roles.role import Role, WaitAny
from pappus.telemetry.accounts import RECEIVED
from pappus.types import ORIGIN, OWN, Array, Episodes, Nest, Request, Timestep, Unroll, leaves_of

RECENT_BATCHES = 200
"""Batches of which the median time is reported."""
BROKE_A_BATCH = (
    "its data made a loss or gradient that is not finite; send numbers of about one, and check the simulator"
)


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of the run that an inference server needs."""

    unroll_spec: Callable[[int], Unroll]
    """Specs of an unroll of so many envs."""
    unroll_length: int
    batch_size: int
    """Unrolls of one env each that make a training batch."""
    max_envs: int = 0
    """Envs that are answered at once; 0: chosen by measurement."""
    deadline: float | None = None
    """Batching deadline in seconds; None: chosen by measurement."""
    synchronous: bool = False
    """A batch holds data of one version of the weights, the newest: an unroll begins only for the batch under
    construction, and the next batch only when the learner has published what it learnt from the last."""
    ahead: int = 0
    """Synchronous batches that may be begun before that."""


class Network(Waitable, Protocol):
    """The network that acts, following published weights."""

    version: int

    def refresh(self) -> bool:
        """Use the newest weights; False while there are none."""
        ...


class EnvGroupState:
    """One env group at the server: what its envs did last."""

    def __init__(self, session: int, num_envs: int) -> None:
        self.session, self.num_envs = session, num_envs
        self.origins = np.full(num_envs, OWN)
        self.action: Array | None = None
        self.behaviour: dict[str, Array] = {}
        self.state: Nest = ()
        """Recurrent state of its envs, where the network does not keep it."""
        self.version = -1
        self.delivered = num_envs
        """Envs of the finished unroll that have been handed on."""
        self.begun = False
        """Whether columns of a synchronous batch are reserved for the unroll under construction."""
        self.recorder: EpisodeRecorder | None = None

    @property
    def full(self) -> bool:
        """Whether something must be handed on before the envs are answered."""
        return True

    def finish(self) -> None:
        """What is there is ready to be handed on."""

    def begin(self, request: Request) -> None:
        """Start to record, with what the envs show."""

    def append(self, request: Request) -> None:
        """Write down what the last actions led to."""
        raise NotImplementedError

    def record(self, request: Request, ended: Array) -> None:
        """Give what the last actions led to, or what the envs show at first, to the recorder, if there is one."""
        if self.recorder is None:
            return
        none = np.empty(0)
        first, reward, discount, valid = (leaf.copy() for leaf in request[1:5])  # the next one lies in the same memory
        episodes = Episodes(none, none, ended) if len(ended) else None
        timestep = Timestep(request.observation, first, reward, discount, valid, episodes)
        if self.action is None:
            self.recorder.begin(timestep)
        else:
            self.recorder.record(self.action, self.behaviour, timestep)

    def save(self) -> dict[str, Nest]:
        """What a successor needs to continue."""
        acted = {} if self.action is None else {"action": self.action, "behaviour": self.behaviour}
        return {
            "session": self.session, "num_envs": self.num_envs, "version": self.version, "delivered": self.delivered,
            "begun": self.begun, "state": leaves_of(self.state),
            "record": {} if self.recorder is None else self.recorder.save(), **acted,
        }

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned."""
        self.state = optree.tree_unflatten(optree.tree_structure(self.state), saved["state"])
        self.action, self.behaviour = saved.get("action"), saved.get("behaviour", {})
        self.version, self.delivered, self.begun = saved["version"], saved["delivered"], saved["begun"]
        if self.recorder is not None and saved.get("record"):
            self.recorder.load(saved["record"])

    def remember(self, action: Array, behaviour: dict[str, Array], version: int) -> None:
        """Keep the actions of the envs until it is known what they led to."""
        self.action, self.behaviour, self.version = action, behaviour, version

    def recorded_behaviour(self) -> dict[str, Array]:
        """What is written beside the actions: what the policy says of them, and whose envs they are for."""
        return {**self.behaviour, ORIGIN: self.origins}

    def undelivered(self) -> int:
        """Valid steps that have not been handed on."""
        raise NotImplementedError


class UnrollGroupState(EnvGroupState):
    """An env group that records unrolls, delivered when they are full."""

    unroll: Unroll

    def __init__(self, session: int, num_envs: int, unroll_length: int) -> None:
        super().__init__(session, num_envs)
        self.writer = UnrollWriter(unroll_length)

    @property
    def full(self) -> bool:
        return self.writer.full

    def finish(self) -> None:
        """Before the first action there is nothing to hand on."""
        self.delivered = self.num_envs if self.action is None else 0

    def undelivered(self) -> int:
        if self.delivered < self.num_envs:
            return int(np.count_nonzero(self.unroll.valid[:, self.delivered :]))
        return self.writer.held()


StateType = TypeVar("StateType", bound=EnvGroupState)


class InferenceServer(Role, Generic[StateType]):
    """request server ──requests──▶ network ──actions──▶ request server, and what happened ──unrolls──▶ `_outlet()`.

    A step receives the requests that have arrived and then answers those that are due, except that it ends with the
    delivery of a finished unroll: so in the inline runtime a learner sees a batch before the next action, as in IMPALA.
    """

    def __init__(
        self, name: str, request_server: RequestServer, network: Network, settings: InferenceSettings,
        recording: Recording | None = None, suspects: Source | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`recording` gets every step of every env, too. From `suspects` come the origins of clients that learners
        blame for a batch that is not finite."""
        super().__init__(name)
        self._recording, self._suspects = recording, suspects
        self._request_server, self._network = request_server, network
        self.metrics.measure(request_server.take_metrics)
        self._settings, self._clock = settings, clock
        self._batching = Batching(settings.max_envs, settings.deadline)
        self._measured = True
        """Whether the last batch took as long as others of its size will."""
        self._seconds: list[float] = []
        self._group_states: dict[Hashable, StateType] = {}
        self._connected = 0
        self._stuck: list[Call] = []
        """Requests of env-group states whose finished unroll waits for room."""
        self._due: list[Call] = []
        """Requests that can be answered."""
        self._barrier = BatchBarrier(settings.batch_size, settings.ahead) if settings.synchronous else None

    def step(self) -> Waitable | None:
        """Receive what has arrived, and answer what is due."""
        self.wake_at = None
        if self._suspects is not None:
            self._drop_suspects(self._suspects)
        left = self._request_server.left()
        arrived = self._request_server.calls()
        if arrived:
            self._batching.arrived(len(arrived), self._clock())
        delivered = any([self._receive(call) for call in arrived])
        for env_group in left:  # after its last request, which would bring it back
            self._remove(env_group)
        for line in self._request_server.news():
            self.metrics.event(line)
        if refused := self._request_server.refused():
            self.metrics.count("clients_refused", refused)
        if delivered or (self._stuck and self._deliver_stuck()):
            return None
        if not self._due:
            if self._barrier is not None and self._network.version < 0:
                return self._network
            return WaitAny(self._outlet(), self._request_server) if self._stuck else self._request_server
        if self._barrier is None and not self._network.refresh():
            return self._network
        env_groups_out = len(self._group_states) - len(self._due) - len(self._stuck)
        self.wake_at = self._batching.wait_until(envs_of(self._due), self._connected, env_groups_out)
        if self.wake_at is not None and self._clock() < self.wake_at:
            return self._request_server
        self._answer(self._batching.select(self._due, self._connected))
        return None

    def _drop_suspects(self, suspects: Source) -> None:
        while (found := suspects.take(1)) is not None:
            slot: Any = found[0]
            self._request_server.drop(int(slot), BROKE_A_BATCH)
            suspects.release()

    def _receive(self, call: Call) -> bool:
        """Write down what the env group's last actions led to; whether that delivered an unroll."""
        group_state = self._group_states.get(call.env_group)
        if group_state is None or group_state.session != call.session:
            group_state = self._admit(call)
        request = call.request
        ended = request.episode_length.nonzero()[0]
        group_state.record(request, ended)
        if group_state.action is not None:
            group_state.append(request)
            steps = int(np.count_nonzero(request.valid))
            self.account.words[RECEIVED] += steps
            self.metrics.count("steps_received", steps)
        if len(ended):
            self.metrics.episodes(request.episode_return[ended], request.episode_length[ended])
        if group_state.full:
            group_state.finish()
            return self._deliver(call, group_state)
        self._due.append(call)
        return False

    def _admit(self, call: Call) -> StateType:
        self._remove(call.env_group)
        group_state = self._group_states[call.env_group] = self._new_group_state(call.session, len(call.request.first))
        group_state.origins[:] = call.origin
        self._count_envs(group_state.num_envs)
        return group_state

    def _new_group_state(self, session: int, num_envs: int) -> StateType:
        group_state = self._make_group_state(session, num_envs)
        if self._recording is not None:
            group_state.recorder = self._recording.recorder(self.name, num_envs)
        return group_state

    def _count_envs(self, more: int) -> None:
        self._connected += more
        self.metrics.gauge("envs", self._connected)

    def _remove(self, env_group: Hashable) -> None:
        """Free the place of an env group that left; count its unfinished steps as dropped."""
        group_state = self._group_states.pop(env_group, None)
        if group_state is None:
            return
        self.drop(group_state.undelivered())
        if self._barrier is not None and group_state.begun:
            self._barrier.left(group_state.num_envs)
        self._stuck = [call for call in self._stuck if call.env_group != env_group]
        self._due = [call for call in self._due if call.env_group != env_group]
        self._count_envs(-group_state.num_envs)
        if self._recording is not None and group_state.recorder is not None:
            self._recording.abandon(group_state.recorder)
        self._clear(group_state)

    def _deliver_stuck(self) -> bool:
        stuck, self._stuck = self._stuck, []
        return any([self._deliver(call, self._group_states[call.env_group]) for call in stuck])

    def _answer(self, calls: Sequence[Call]) -> None:
        began = self._clock()
        group_states = [self._group_states[call.env_group] for call in calls]
        self._infer(calls, group_states)
        for call, group_state in zip(calls, group_states, strict=True):
            call.reply[...] = group_state.action
            call.answer()
        self._due = self._due[len(calls) :]
        seconds, envs = self._clock() - began, envs_of(calls)
        if self._measured:
            self._batching.answered(envs, seconds)
        self.metrics.mean("inference/batch_envs", envs)
        self.metrics.count("env_steps", envs)
        self.metrics.count("batches")
        self._report_seconds(seconds)

    def _report_seconds(self, seconds: float) -> None:
        self._seconds.append(seconds)
        if len(self._seconds) == RECENT_BATCHES:
            middle, late = np.percentile(self._seconds, (50, 99))
            self.metrics.gauge("inference/batch_ms_p50", 1e3 * float(middle))
            self.metrics.gauge("inference/batch_ms_p99", 1e3 * float(late))
            self._seconds.clear()

    def saved_groups(self) -> dict[str, Nest]:
        """All env groups, and whose requests are in which state."""
        return {
            "barrier": [] if self._barrier is None else self._barrier.save(),
            "env_groups": list(self._group_states), "states": [state.save() for state in self._group_states.values()],
            "due": [call.env_group for call in self._due], "stuck": [call.env_group for call in self._stuck],
        }

    def load_groups(self, state: Nest) -> None:
        """Continue from what `saved_groups` returned, with the requests in flight."""
        if self._barrier is not None:
            self._barrier.load(state["barrier"])
        for env_group, saved in zip(state["env_groups"], state["states"], strict=True):
            self._group_states[env_group] = self._new_group_state(saved["session"], saved["num_envs"])
            self._group_states[env_group].load(saved)
            self._count_envs(saved["num_envs"])
        calls = {call.env_group: call for call in self._request_server.calls()}
        self._due, self._stuck = ([calls.pop(env_group) for env_group in state[kind]] for kind in ("due", "stuck"))
        for call in calls.values():
            self._receive(call)

    def close(self) -> None:
        """Count what was not handed on as dropped."""
        self._request_server.close(self.over)
        if self._recording is not None:
            self._recording.close()
        for env_group in list(self._group_states):
            self._remove(env_group)

    def _outlet(self) -> Waitable:
        """What stuck requests wait for."""
        raise NotImplementedError

    def _make_group_state(self, session: int, num_envs: int) -> StateType:
        raise NotImplementedError

    def _clear(self, group_state: StateType) -> None:
        """Free what an env group held."""

    def _deliver(self, call: Call, group_state: StateType) -> bool:
        """Hand the finished unroll on and begin the next; False while there is no room for it."""
        handed_over = self._hand_over(group_state)
        if self._barrier is not None and group_state.begun and group_state.delivered == group_state.num_envs:
            self._barrier.ended(group_state.num_envs)
            group_state.begun = False
        if not handed_over or not self._may_begin(group_state):
            self._stuck.append(call)
            return False
        group_state.begin(call.request)
        self._due.append(call)
        return True

    def _may_begin(self, group_state: StateType) -> bool:
        """Whether the next unroll may begin: always, unless batches are synchronous."""
        barrier, num_envs = self._barrier, group_state.num_envs
        if barrier is None:
            return True
        if not barrier.busy:  # weights stay the same while unrolls are under construction
            self._network.refresh()
        group_state.begun = self._network.version >= 0 and barrier.begins(num_envs, self._network.version)
        return group_state.begun

    def _hand_over(self, group_state: StateType) -> bool:
        """Hand the finished unroll on, if there is one; False while there is no room for it, or for the next."""
        raise NotImplementedError

    def _infer(self, calls: Sequence[Call], group_states: Sequence[StateType]) -> None:
        """Actions, and all that must be remembered of them, for every env-group state."""
        raise NotImplementedError


def envs_of(calls: Sequence[Call]) -> int:
    """Envs that some requests are about."""
    return sum(len(call.request.first) for call in calls)
