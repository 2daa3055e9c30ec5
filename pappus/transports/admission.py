"""Which clients may join a run: who knows its token, has its layout, and finds room."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from pappus.config import WireConfig
from pappus.transports import codec
from pappus.transports.addresses import read_token
from pappus.transports.grpc_server import Refusal
from pappus.types import Nest

GROUP_BYTES = 8 << 10
"""What an env group takes beside its tensors, about."""


class Taken(NamedTuple):
    """What connected clients have."""

    envs: int
    nbytes: int


class Admission:
    """Judges Hellos. `steps_held`: how many steps of an env are kept until they are learned from. `memory` is that of
    this machine, of which clients may take a part where `wire` does not say how much."""

    def __init__(
        self, wire: WireConfig, request: Nest, welcome: codec.Welcome, steps_held: int = 1, memory: int = 16 << 30
    ) -> None:
        self._wire, self._welcome, self._steps_held = wire, welcome, steps_held
        self._token = read_token(wire.token_file)
        self._env_bytes = sum(spec.nbytes for spec in codec.env_group_specs(request, 1))
        self._of_all = wire.max_clients_mib << 20 or memory // 2
        self._of_one = min(wire.max_client_mib << 20 or memory // 4, self._of_all)

    def check(self, hello: codec.Hello, taken: Taken) -> None:
        """Raise a `Refusal`, unless the client may join."""
        if hello.protocol != codec.PROTOCOL:
            text = f"the client speaks protocol {hello.protocol}, and this server speaks {codec.PROTOCOL}"
            raise Refusal("FAILED_PRECONDITION", text)
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise Refusal("UNAUTHENTICATED", "the token is wrong" if hello.token else "a token is needed")
        difference = codec.describe_difference(hello.tensors, self._welcome.tensors)
        if not difference and hello.action != self._welcome.action:
            difference = f"the action is {hello.action}, and the run's is {self._welcome.action}"
        if difference:
            raise Refusal("INVALID_ARGUMENT", difference)
        if hello.env_groups < 1 or hello.envs < 1:
            raise Refusal("INVALID_ARGUMENT", f"env groups={hello.env_groups} and envs={hello.envs} must be at least 1")
        self._check_envs(hello, taken)
        self._check_memory(hello, taken)

    def nbytes(self, hello: codec.Hello) -> int:
        """What a client's envs may take: for each a request, and all steps that are held."""
        env = self._env_bytes * (1 + self._steps_held)
        return hello.env_groups * (GROUP_BYTES + env * hello.envs)

    def _check_envs(self, hello: codec.Hello, taken: Taken) -> None:
        more = hello.env_groups * hello.envs
        if taken.envs + more > self._wire.max_envs:
            passing = more <= self._wire.max_envs  # connected clients may leave
            raise Refusal(
                "UNAVAILABLE" if passing else "RESOURCE_EXHAUSTED",
                f"{taken.envs} envs are connected, {more} more are too many: at most {self._wire.max_envs} may be",
            )

    def _check_memory(self, hello: codec.Hello, taken: Taken) -> None:
        most, size, more = self._wire.max_message_mib, self._env_bytes * hello.envs, self.nbytes(hello)
        if size > most << 20:
            text = f"an env group of {_mib(size)} MiB is too large; use more env groups: max_message_mib is {most}"
            raise Refusal("RESOURCE_EXHAUSTED", text)
        if more > self._of_one:
            raise Refusal(
                "RESOURCE_EXHAUSTED", f"{hello.env_groups * hello.envs} envs would take {_mib(more)} MiB, and those of "
                f"a client at most {_mib(self._of_one)}; use fewer, or raise max_client_mib"
            )
        if taken.nbytes + more > self._of_all:
            raise Refusal(
                "UNAVAILABLE", f"clients take {_mib(taken.nbytes)} MiB, {_mib(more)} more are too many: at most "
                f"{_mib(self._of_all)} may be"
            )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f}"
