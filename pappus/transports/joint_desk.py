"""One desk for the lanes of this machine and for whoever connects."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pappus.core import Call
from pappus.transports.calls import SharedDesk
from pappus.transports.grpc_desk import GrpcDesk
from pappus.types import Array


class JointDesk:
    """The desk of this machine's lanes and the wire's, as one; they share a bell."""

    def __init__(self, here: SharedDesk, elsewhere: GrpcDesk) -> None:
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
