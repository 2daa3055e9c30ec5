"""A request server for inference servers that the test holds, and requests that it makes by hand."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pappus.types import OWN, EnvSpec, Request, leaves_of, map_leaves, request_spec


@dataclass(eq=False)
class FakeCall:
    env_group: Hashable
    request: Request
    reply: np.ndarray
    session: int = 1
    answered: bool = False
    origin: int = OWN

    def answer(self) -> None:
        """From now on the next request may be written there."""
        self.answered = True
        for leaf in leaves_of(self.request):
            leaf.fill(99)


@dataclass(eq=False)
class FakeRequestServer:
    env: EnvSpec
    name: str = "requests"
    arriving: list[FakeCall] = field(default_factory=list)
    leaving: list[Hashable] = field(default_factory=list)
    closed: bool = False
    dropped: list[int] = field(default_factory=list)

    def ask(
        self, env_group: Hashable, mark: float, num_envs: int = 1, first: bool = False, session: int = 1,
        origin: int = OWN,
    ) -> FakeCall:
        """A request that arrives with the next look: `mark` is what all envs show, and their reward."""
        request: Request = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), request_spec(self.env, num_envs))
        request.observation[:] = mark
        request.first[:] = first
        request.valid[:] = not first
        request.reward[:] = 0 if first else mark
        request.discount[:] = not first
        call = FakeCall(env_group, request, np.full(num_envs, -1), session, origin=origin)
        self.arriving.append(call)
        return call

    def calls(self) -> list[FakeCall]:
        arrived, self.arriving = self.arriving, []
        return arrived

    def left(self) -> list[Hashable]:
        gone, self.leaving = self.leaving, []
        return gone

    def news(self) -> list[str]:
        return []

    def refused(self) -> int:
        return 0

    def drop(self, origin: int, reason: str) -> None:
        self.dropped.append(origin)

    def memory(self) -> list[Any]:
        return []

    def take_metrics(self) -> dict[str, tuple[float, float]]:
        return {}

    def close(self, over: str = "") -> None:
        self.closed = True

    def explain(self) -> str:
        return "nobody asks"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...
