"""An actor and a learner in one thread, whose gradients are applied elsewhere: Gorila's bundle, A3C's worker.

    bundle:  actor ──items──▶ replay memory ──batch──▶ learner ──gradient──▶ channel ──weights──▶ both
    worker:  actor ──one unroll───────────────────────▶ learner ──gradient──▶ channel ──weights──▶ both
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pappus.core import GradientChannel, Waitable
from pappus.roles.replay_server import ReplayServer
from pappus.roles.role import Role, WaitAny
from pappus.telemetry.accounts import Account
from pappus.types import Array, Nest, Unroll, leaves_of, map_leaves


class Bundle(Role):
    """Actor and learner take turns, as the rate limiter of their replay memory allows."""

    def __init__(self, name: str, actor: Role, learner: Role, memory: ReplayServer | None = None) -> None:
        """`memory` is the replay memory, where it is their own."""
        super().__init__(name)
        self._parts: dict[str, Role] = {"memory": memory} if memory is not None else {}
        self._parts |= {"actor": actor, "learner": learner}
        """In the order in which they are loaded: what an actor writes belongs to its memory."""
        self._actor, self._learner = actor, learner
        learner.metrics.measures_of(actor.metrics)
        self.metrics = actor.metrics = learner.metrics
        self.metrics.role = name
        actor.account = learner.account = self.account

    def keep_account(self, account: Account) -> None:
        """Both count in one row: nothing is handed to others."""
        super().keep_account(account)
        self._actor.account = self._learner.account = account

    def step(self) -> Waitable | None:
        if self._learner.step() is None:
            return None
        actor = self._actor.step()
        if actor is None:
            return None
        learner = self._learner.step()  # an actor that must wait may have handed over what the learner waited for
        return None if learner is None else WaitAny(learner, actor)

    def save(self) -> Nest | None:
        """All parts, or None where one of them cannot continue."""
        states = {name: part.save() for name, part in self._parts.items()}
        self.afresh = next((self._parts[name].afresh for name, state in states.items() if state is None), "")
        return None if self.afresh else states

    def load(self, state: Nest) -> None:
        for name, part in self._parts.items():
            part.load(state[name])
            self.lost = part.lost
            if self.lost:
                return

    def stored_in(self, directory: Path) -> None:
        for part in self._parts.values():
            part.stored_in(directory)

    def committed(self) -> None:
        for part in self._parts.values():
            part.committed()

    def close(self) -> None:
        self._actor.close()
        self._learner.close()


class UnrollSlot:
    """One unroll, which the actor writes and the learner reads, both in one thread. It can be written again when the
    channel has room: then new weights contain its gradient."""

    name = "its last gradient"

    def __init__(self, spec: Unroll, channel: GradientChannel) -> None:
        self._unroll: Unroll = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
        self._channel = channel
        self.explain, self.fileno, self.clear = channel.explain, channel.fileno, channel.clear
        self.filled = False

    def acquire(self) -> Unroll | None:
        """The slot, unless the last gradient is still being applied."""
        port = self._channel.full()
        if port is None:
            return self._unroll
        self.explain, self.fileno, self.clear = port.explain, port.fileno, port.clear
        return None

    def commit(self, steps: int = 0) -> None:
        self.filled = True

    def handed_on(self) -> int:
        """The slot stays within the worker."""
        return 0

    def take(self, count: int) -> Sequence[Unroll] | None:
        """The slot, if it holds an unroll."""
        return [self._unroll] if self.filled else None

    def release(self) -> None:
        self.filled = False

    def depth(self) -> int:
        return int(self.filled)

    def save(self) -> Nest:
        return {"unroll": [leaf.copy() for leaf in leaves_of(self._unroll)], "filled": self.filled}

    def load(self, saved: Nest) -> None:
        for into, leaf in zip(leaves_of(self._unroll), saved["unroll"], strict=True):
            into[...] = leaf
        self.filled = saved["filled"]


class OwnWeights:
    """The weights of a learner as its actor reads them: both get new ones whenever the actor looks for them."""

    def __init__(self, channel: GradientChannel, flat: Array) -> None:
        self._channel, self._flat = channel, flat
        self.name, self.version = channel.name, channel.version
        self.explain, self.fileno, self.clear = channel.explain, channel.fileno, channel.clear

    def read(self, into: Array) -> int:
        """Read the newest version into the learner's weights, and copy it."""
        version = self._channel.read(self._flat)
        into[:] = self._flat
        return version


class Worker(Bundle):
    """Actor and learner take turns: one fills the slot between them, the other trains on it."""

    def __init__(self, name: str, actor: Role, learner: Role, slot: UnrollSlot) -> None:
        super().__init__(name, actor, learner)
        self._slot = slot

    def step(self) -> Waitable | None:
        """One step of every env or, when the unroll is full, one gradient."""
        return self._learner.step() if self._slot.filled else self._actor.step()

    def save(self) -> Nest | None:
        state = super().save()
        return None if state is None else {**state, "slot": self._slot.save()}

    def load(self, state: Nest) -> None:
        self._slot.load(state["slot"])
        super().load(state)
