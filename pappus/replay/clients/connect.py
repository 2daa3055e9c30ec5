"""Connects to a service: through shared memory on this machine, through gRPC otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pappus.replay.clients.client import Client
from pappus.transports.addresses import Address, answers, ips_of, is_here, socket_beside

if TYPE_CHECKING:
    from pappus.transports.grpc_request_client import Identity


def connect(address: str, identity: Identity | None = None) -> Client:
    """A client of the service at HOST:PORT or unix:PATH; `tcp:HOST:PORT` uses gRPC even on the same machine."""
    where = Address.parse(address)
    near_by = [] if where.literal else [path for path in _near_sockets(where) if answers(path)]
    if near_by:
        from pappus.replay.wire.sockets import connect as near

        return Client(lambda: near(near_by[0], identity.name if identity is not None else ""))
    from pappus.replay.wire.grpc_wire import connect as far

    return Client(lambda: far(address, identity))


def near_socket(address: str) -> str:
    """The unix socket for processes of the same machine and user, beside a service's address; or empty."""
    return next(iter(_near_sockets(Address.parse(address))), "")


def _near_sockets(where: Address) -> list[str]:
    if where.path:
        return [f"{where.path}.near"]
    if not is_here(where.host):
        return []
    beside = [socket_beside(ip, where.port) for ip in (*ips_of(where.host), "0.0.0.0")]
    return [f"{path}.near" for path in beside if path]
