"""One request server for the env groups of this machine and for whoever connects."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pappus.core import Call
from pappus.transports.calls import SharedRequestServer
from pappus.transports.grpc_request_server import GrpcRequestServer
from pappus.types import Array


class CombinedRequestServer:
    """The request server of this machine's env groups and the wire's, as one; they share a notifier."""

    def __init__(self, here: SharedRequestServer, elsewhere: GrpcRequestServer) -> None:
        self.name = here.name
        self._here, self._elsewhere = here, elsewhere
        self.fileno, self.clear, self.sleep = here.fileno, here.clear, elsewhere.sleep

    def calls(self) -> Sequence[Call]:
        return [*self._here.calls(), *self._elsewhere.calls()]

    def left(self) -> Sequence[Hashable]:
        return self._elsewhere.left()

    def news(self) -> list[str]:
        return self._elsewhere.news()

    def memory(self) -> Sequence[Array]:
        return self._here.memory()

    def explain(self) -> str:
        return f"{self._here.explain()}; {self._elsewhere.explain()}"

    def close(self) -> None:
        self._elsewhere.close()
