"""Where a run listens and who may connect: addresses, tokens and certificates."""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import os
import random
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from pappus.config import PageConfig, WireConfig
from pappus.errors import UserError, install_line
from pappus.transports.private_folder import private_path

OWN_PORTS, PORTS_TRIED = range(20_000, 32_000), 20
"""The kernel gives these to no connection by itself: one that is free is still free when torch has been loaded."""


@dataclass(frozen=True)
class Address:
    """HOST:PORT, or a unix socket. With `literal`, HOST:PORT is used even where a unix socket would be nearer."""

    host: str
    port: int
    path: str = ""
    literal: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """`127.0.0.1:5000`, `[::1]:5000`, `name:5000`, `unix:/path`, or `tcp:` before the former."""
        if text.startswith("unix:") and text != "unix:":
            return cls("", 0, os.path.abspath(text.removeprefix("unix:")))
        host, colon, port = text.removeprefix("tcp:").rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise UserError(f"address {text!r} is neither HOST:PORT nor unix:PATH; write for example 127.0.0.1:5000")
        return cls(host.strip("[]"), int(port), literal=text.startswith("tcp:"))

    @property
    def private(self) -> bool:
        """Whether only this machine reaches it."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_wire(wire: WireConfig, prefix: str = "--topology.wire.") -> None:
    """Raise `UserError` for what cannot work or would leave a door open; options are named with their prefix."""
    for name in ("max_envs", "max_message_mib"):
        if getattr(wire, name) < 1:
            raise UserError(f"{prefix}{name.replace('_', '-')}={getattr(wire, name)} must be at least 1")
    for name in ("max_client_mib", "max_clients_mib", "unusual_factor"):
        if not getattr(wire, name) >= 0:
            raise UserError(f"{prefix}{name.replace('_', '-')}={getattr(wire, name)} must not be negative")
    if not wire.listen:
        return
    if importlib.util.find_spec("grpc") is None:
        raise UserError(f"listen={wire.listen!r} needs grpcio, which is not installed; run {install_line('grpc')}")
    address = Address.parse(wire.listen)
    if wire.client_authority and not wire.certificate:
        raise UserError(f"{prefix}client-authority needs a certificate of the server's own; give certificate, key")
    check_files(wire.token_file, wire.certificate, wire.key, wire.client_authority, prefix)
    read_token(wire.token_file)
    guarded = wire.token_file or wire.client_authority
    if not address.private and not guarded and not wire.insecure:
        raise UserError(
            f"listen={wire.listen!r} is open to other machines, and anybody could join; give "
            f"{prefix}token-file or {prefix}client-authority, or say {prefix}insecure"
        )


def check_page(page: PageConfig, prefix: str = "--page-server.") -> None:
    """Raise `UserError` for a page that no browser could reach, or that anybody could."""
    check_files(page.token_file, page.certificate, page.key, "", prefix)
    read_token(page.token_file)
    if not page.listen:
        return
    address = Address.parse(page.listen)
    if address.path:
        raise UserError(
            f"{prefix}listen={page.listen!r} is not an address that a browser can open; give HOST:PORT, "
            "such as 127.0.0.1:8000"
        )
    if not address.private and not page.token_file:
        raise UserError(
            f"{prefix}listen={page.listen!r} is open to other machines, and anybody could see the run; give "
            f"{prefix}token-file"
        )


def check_free(listen: str) -> None:
    """Raise `UserError` for an address at which this machine cannot listen now; it is free again afterwards."""
    address = Address.parse(listen) if listen else None
    if address is None or address.path:
        if address is not None:
            make_way(address.path)
        return
    try:
        family, kind, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: it may follow a run that ended
            probe.bind(where)
            probe.listen(1)  # two may bind with that option, but not listen
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"listen={listen!r} cannot be opened: {reason}; give a free port of this machine") from None


def check_files(token_file: str, certificate: str, key: str, authority: str, prefix: str) -> None:
    """Raise `UserError` for files that cannot be read, or that TLS cannot use; empty ones are not given."""
    if bool(certificate) != bool(key):
        raise UserError(f"{prefix}certificate and {prefix}key belong together; give both")
    for path in filter(None, (token_file, certificate, key, authority)):
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise UserError(f"{path!r} cannot be read; give a file that exists")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if certificate:
            context.load_cert_chain(certificate, key, password="")
        if authority:
            context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        files = ", ".join(repr(path) for path in (certificate, key, authority) if path)
        raise UserError(f"TLS cannot use {files}: {error}; give PEM files that belong together") from None


def read_token(path: str) -> str:
    """The secret in a file; empty without a file."""
    if not path:
        return ""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"token file {path!r} cannot be read: {error}") from None
    if not token:
        raise UserError(f"token file {path!r} is empty; write a secret into it")
    return token


def socket_beside(ip: str, port: int) -> str:
    """The unix socket through which a run that listens there is reached from its own machine, by its own user."""
    return private_path(f"{'any' if ip in ('0.0.0.0', '::') else ip}-{port}.sock")


def ips_of(host: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)))
    except OSError:
        return []


def answers(path: str) -> bool:
    """Whether somebody listens on a unix socket; what a killed run leaves behind answers no more."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def make_way(path: str) -> None:
    """Remove the unix socket that a killed run left behind, and nothing else."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise UserError(f"listen='unix:{path}' names something that is no socket; give another path")
    if answers(path):
        raise UserError(f"listen='unix:{path}' is in use by another process; give another path")
    os.unlink(path)


def is_here(host: str) -> bool:
    """Whether a host is this machine: one can only bind to addresses of one's own."""
    try:
        free_port(host, socket.SOCK_DGRAM)
    except OSError:
        return False
    return True


def free_port(host: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of this machine that is free now; OSError if the host is elsewhere."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=kind)[0]
    for port in (*random.SystemRandom().sample(OWN_PORTS, PORTS_TRIED), 0):
        with socket.socket(family, kind) as probe:
            try:
                probe.bind((address[0], port, *address[2:]))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            return int(probe.getsockname()[1])
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def nearest(address: Address, tls: bool) -> str:
    """How gRPC should reach an address: by unix socket where both ends share a machine, unless TLS names the host."""
    if address.path:
        return f"unix:{address.path}"
    if not tls and not address.literal and is_here(address.host):
        for ip in (*ips_of(address.host), "0.0.0.0"):  # a run that listens everywhere listens there, too
            beside = socket_beside(ip, address.port)
            if beside and answers(beside):
                return f"unix:{beside}"
    return str(address)


def with_port(listen: str) -> str:
    """The address with port 0 replaced by one that is free now."""
    if not listen or Address.parse(listen).path or Address.parse(listen).port:
        return listen
    host = Address.parse(listen).host
    try:
        return str(Address(host, free_port(host)))
    except OSError as error:
        text = f"listen={listen!r} cannot be opened: {error.strerror}; give an address of this machine"
        raise UserError(text) from None
