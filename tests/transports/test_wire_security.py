"""Who may connect, and through which door."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from pappus.cli import main
from pappus.config import WireConfig
from pappus.errors import PappusError, RunError, UserError
from pappus.transports.addresses import Address, check_free, check_wire, nearest, read_token, socket_beside
from pappus.transports.codec import Welcome
from pappus.transports.grpc_request_client import GrpcRequestClient, Identity
from pappus.transports.grpc_request_server import GrpcRequestServer
from tests.contracts.calls_contract import ENV, ENVS, answer, ask, open_all, reply, take, wait_for
from tests.wire_tools import Line, hello, open_request_server, request_server_at


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("sésame\n")
    return str(path)


def failure_of(request_client: GrpcRequestClient) -> PappusError:
    """What the client gives up with."""
    try:
        wait_for(request_client, lambda: request_client._failure)
        with pytest.raises(PappusError) as raised:
            request_client.check()
        return raised.value
    finally:
        request_client.close()


def assert_works(request_client: GrpcRequestClient, request_server: GrpcRequestServer) -> None:
    try:
        open_all(request_client)
        ask(request_client, 0, 3)
        answer(take(request_server, 1), 2)
        assert reply(request_client, 0).tolist() == [2] * ENVS
        request_client.check()
    finally:
        request_client.close()


def test_only_the_right_token_opens(token_file: str) -> None:
    with request_server_at(token_file=token_file) as request_server:
        line = Line(request_server.address, hello(token="sésame").encode())
        assert Welcome.decode(line.hear()).run == "run"
        for token in ("Sésame", "sésame ", "sésamesésame", "x" * 10_000):
            ending = Line(request_server.address, hello(token=token).encode()).ending()
            assert ending == ("UNAUTHENTICATED", "the token is wrong")
        assert Line(request_server.address, hello().encode()).ending() == ("UNAUTHENTICATED", "a token is needed")
        assert "ésame" not in " ".join(request_server.news())
        line.close()


def test_an_actor_reads_its_token_from_a_file(token_file: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("open")
    with request_server_at(token_file=token_file) as request_server:
        address = Address.parse(f"tcp:{request_server.address}")
        assert_works(GrpcRequestClient(address, ENV, 1, ENVS, Identity(token_file=token_file)), request_server)
        failure = failure_of(GrpcRequestClient(address, ENV, 1, ENVS, Identity(token_file=str(wrong))))
        assert isinstance(failure, UserError) and "the token is wrong" in str(failure)


def test_the_unix_socket_beside_asks_for_the_token_too(token_file: str) -> None:
    with request_server_at(token_file=token_file) as request_server:
        target = nearest(Address.parse(request_server.address), tls=False)
        assert target.startswith("unix:")
        assert Line(target, hello().encode()).ending() == ("UNAUTHENTICATED", "a token is needed")


@dataclass
class Certificates:
    """Files of an authority, of what it signed, and of another authority that nobody trusts."""

    authority: str
    server: tuple[str, str]
    client: tuple[str, str]
    stranger: str
    strangers_client: tuple[str, str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")

    def write(name: str, blob: trustme.Blob) -> str:
        blob.write_to_path(folder / name)
        return str(folder / name)

    def pair(name: str, authority: trustme.CA) -> tuple[str, str]:
        made = authority.issue_cert("127.0.0.1", "localhost")
        return write(f"{name}.pem", made.cert_chain_pems[0]), write(f"{name}.key", made.private_key_pem)

    ours, other = trustme.CA(), trustme.CA()
    return Certificates(
        write("authority.pem", ours.cert_pem), pair("server", ours), pair("client", ours),
        write("stranger.pem", other.cert_pem), pair("strangers_client", other),
    )


def tls(certificates: Certificates, mutual: bool) -> dict[str, str]:
    certificate, key = certificates.server
    authority = {"client_authority": certificates.authority} if mutual else {}
    return {"certificate": certificate, "key": key, **authority}


def request_client_with(address: str, authority: str, pair: tuple[str, str] = ("", "")) -> GrpcRequestClient:
    identity = Identity("test", "", authority, *pair)
    return GrpcRequestClient(Address.parse(address), ENV, 1, ENVS, identity, patience=0.3)


def test_tls_works_with_the_right_authority_and_no_other(certificates: Certificates) -> None:
    with request_server_at(**tls(certificates, mutual=False)) as request_server:
        assert_works(request_client_with(request_server.address, certificates.authority), request_server)
        failure = failure_of(request_client_with(request_server.address, certificates.stranger))
        assert isinstance(failure, RunError) and "certificate" in str(failure).lower()
        assert request_server.explain().startswith("0 clients")


def test_a_server_with_tls_takes_nobody_without(certificates: Certificates) -> None:
    with request_server_at(**tls(certificates, mutual=False)) as request_server:
        assert Line(request_server.address, hello().encode()).ending()[0] == "UNAVAILABLE"
        assert not [line for line in request_server.news() if "joined" in line]


def test_mutual_tls_takes_clients_that_the_authority_signed_and_no_other(certificates: Certificates) -> None:
    with request_server_at(**tls(certificates, mutual=True)) as request_server:
        client = request_client_with(request_server.address, certificates.authority, certificates.client)
        assert_works(client, request_server)
        request_server.news()
        for pair in [("", ""), certificates.strangers_client]:
            failure = failure_of(request_client_with(request_server.address, certificates.authority, pair))
            assert isinstance(failure, RunError) and "nobody answered" in str(failure)
        assert not request_server.news(), "they were turned away before they could say anything"


def test_with_tls_there_is_no_unix_socket_beside(certificates: Certificates) -> None:
    with request_server_at(**tls(certificates, mutual=False)) as request_server:
        port = Address.parse(request_server.address).port
        assert not os.path.exists(socket_beside("127.0.0.1", port))


def test_certificates_that_tls_cannot_use_are_refused_with_a_sentence(
    certificates: Certificates, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    certificate, key = certificates.server
    for files in [(str(broken), key, ""), (certificate, certificates.client[1], ""), (certificate, key, str(broken))]:
        with pytest.raises(UserError, match=r"TLS cannot use .*give PEM files that belong together"):
            check_wire(WireConfig("127.0.0.1:0", "", *files))


OPEN = ["0.0.0.0:0", "[::]:0", "192.0.2.1:5000", "some.where:5000", "tcp:0.0.0.0:0"]
PRIVATE = ["127.0.0.1:0", "127.3.2.1:5", "localhost:0", "[::1]:0", "unix:/tmp/x", "tcp:127.0.0.1:0", ""]


@pytest.mark.parametrize("listen", OPEN)
def test_listening_to_other_machines_needs_a_token_or_signed_clients_or_the_word_insecure(
    listen: str, token_file: str, certificates: Certificates
) -> None:
    with pytest.raises(UserError, match=r"anybody could join; give --topology\.wire\.token-file"):
        check_wire(WireConfig(listen=listen))
    with pytest.raises(UserError, match="anybody could join"):
        check_wire(WireConfig(listen=listen, **tls(certificates, mutual=False)))
    check_wire(WireConfig(listen=listen, insecure=True))
    check_wire(WireConfig(listen=listen, token_file=token_file))
    check_wire(WireConfig(listen=listen, **tls(certificates, mutual=True)))


@pytest.mark.parametrize("listen", PRIVATE)
def test_listening_to_this_machine_needs_nothing(listen: str) -> None:
    check_wire(WireConfig(listen=listen))


def test_files_that_cannot_be_used_are_named(tmp_path: Path, token_file: str) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff\xfe\xff")
    here = "127.0.0.1:0"
    for wire, sentence in [
        (WireConfig(here, token_file=str(empty)), "is empty; write a secret into it"),
        (WireConfig(here, token_file=str(binary)), "cannot be read"),
        (WireConfig(here, token_file=str(tmp_path / "missing")), "cannot be read; give a file that exists"),
        (WireConfig(here, token_file=str(tmp_path)), "cannot be read; give a file that exists"),
        (WireConfig(here, certificate=token_file), "belong together; give both"),
        (WireConfig(here, key=token_file), "belong together; give both"),
        (WireConfig(here, certificate=token_file, key=str(tmp_path / "missing")), "cannot be read"),
        (WireConfig(here, certificate=str(tmp_path), key=token_file), "cannot be read"),
        (WireConfig(here, client_authority=token_file), "needs a certificate of the server's own"),
    ]:
        with pytest.raises(UserError, match=sentence):
            check_wire(wire)
    with pytest.raises(UserError, match="cannot be read"):
        read_token(str(tmp_path / "missing"))


@pytest.mark.parametrize("text", ["", "5000", ":5000", "host:", "host:port", "host:70000", "unix:", "tcp:", "tcp:host"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is neither HOST:PORT nor unix:PATH"):
        Address.parse(text)


def test_the_unix_socket_beside_a_port_is_for_its_user_alone_and_goes_with_the_request_server() -> None:
    with request_server_at() as request_server:
        beside = Path(socket_beside("127.0.0.1", Address.parse(request_server.address).port))
        assert stat.S_ISSOCK(beside.stat().st_mode)
        assert stat.S_IMODE(beside.parent.stat().st_mode) == 0o700 and beside.parent.stat().st_uid == os.getuid()
    assert not beside.exists()


def test_the_nearest_way_is_the_unix_socket_unless_tcp_or_tls_is_asked_for() -> None:
    with request_server_at() as request_server:
        port = Address.parse(request_server.address).port
        for host in ("127.0.0.1", "localhost"):
            assert nearest(Address.parse(f"{host}:{port}"), tls=False) == f"unix:{socket_beside('127.0.0.1', port)}"
        assert nearest(Address.parse(f"tcp:127.0.0.1:{port}"), tls=False) == f"127.0.0.1:{port}"
        assert nearest(Address.parse(f"127.0.0.1:{port}"), tls=True) == f"127.0.0.1:{port}"
        assert nearest(Address.parse(f"192.0.2.1:{port}"), tls=False) == f"192.0.2.1:{port}"
    assert nearest(Address.parse(f"127.0.0.1:{port}"), tls=False) == f"127.0.0.1:{port}"


def test_runs_at_one_port_of_several_addresses_are_told_apart() -> None:
    with request_server_at("127.0.0.1:0") as one:
        port = Address.parse(one.address).port
        with request_server_at(f"127.0.0.2:{port}") as other:
            assert nearest(Address.parse(one.address), tls=False) == f"unix:{socket_beside('127.0.0.1', port)}"
            assert nearest(Address.parse(other.address), tls=False) == f"unix:{socket_beside('127.0.0.2', port)}"


def test_a_run_that_listens_everywhere_is_reached_by_its_socket(tmp_path: Path) -> None:
    with request_server_at("0.0.0.0:0", insecure=True) as request_server:
        port = Address.parse(request_server.address).port
        assert nearest(Address.parse(f"127.0.0.1:{port}"), tls=False) == f"unix:{socket_beside('0.0.0.0', port)}"


def left_behind(path: str) -> None:
    """A unix socket of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which `socket_beside` puts sockets, which does not exist yet."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"pappus-{os.getuid()}"


def test_a_socket_that_a_killed_run_left_beside_a_port_is_not_chosen(own_folder: Path) -> None:
    left_behind(socket_beside("127.0.0.1", 5000))
    assert nearest(Address.parse("127.0.0.1:5000"), tls=False) == "127.0.0.1:5000"


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_somebody_else_prepared_gets_no_socket(own_folder: Path, kind: str) -> None:
    if kind == "open to others":
        own_folder.mkdir()
        own_folder.chmod(0o777)
    elif kind == "a link":
        (own_folder.parent / "elsewhere").mkdir(mode=0o700)
        own_folder.symlink_to("elsewhere")
    else:
        own_folder.write_text("")
    with request_server_at() as request_server:
        assert socket_beside("127.0.0.1", 5000) == ""
        assert nearest(Address.parse(request_server.address), tls=False) == request_server.address
        line = Line(request_server.address, hello().encode())
        assert Welcome.decode(line.hear()).run == "run"
        line.close()


def test_a_unix_socket_is_for_its_user_alone_and_replaces_only_what_a_killed_run_left(tmp_path: Path) -> None:
    path = tmp_path / "wire"
    left_behind(str(path))
    with request_server_at(f"unix:{path}") as request_server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(UserError, match="is in use by another process"):
            open_request_server(f"unix:{path}")
        line = Line(request_server.address, hello().encode())
        assert Welcome.decode(line.hear()).run == "run"
        line.close()
    path.write_text("precious")
    with pytest.raises(UserError, match="is no socket"):
        open_request_server(f"unix:{path}")
    assert path.read_text() == "precious"


def test_an_address_is_tried_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with request_server_at() as request_server:
        with pytest.raises(UserError, match="cannot be opened: Address already in use; give a free port"):
            check_free(request_server.address)
        for settings in (["--listen", request_server.address], ["--topology.wire.listen", request_server.address]):
            words = ["--env", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *settings]
            began = main(["train", "seed-vtrace", *words])
            said = capsys.readouterr().err
            assert began == 2 and not (tmp_path / "run").exists() and len(said.splitlines()) == 1
            assert f"listen='{request_server.address}' cannot be opened: Address already in use" in said
    for free in (request_server.address, "127.0.0.1:0", "localhost:0", f"unix:{tmp_path}/wire", ""):
        check_free(free)
    with pytest.raises(UserError, match=r"listen='192\.0\.2\.1:5000' cannot be opened"):
        check_free("192.0.2.1:5000")


def test_limits_that_cannot_work_are_refused() -> None:
    for changes, sentence in [
        ({"max_message_mib": 0}, "max-message-mib=0 must be at least 1"),
        ({"max_envs": 0}, "max-envs=0 must be at least 1"),
        ({"max_client_mib": -1}, "max-client-mib=-1 must not be negative"),
        ({"unusual_factor": float("nan")}, "unusual-factor=nan must not be negative"),
    ]:
        with pytest.raises(UserError, match=sentence):
            check_wire(WireConfig("127.0.0.1:0", **changes))


def test_addresses_that_cannot_be_opened_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with request_server_at() as request_server, pytest.raises(UserError, match=r"opened \(is the port in use"):
        open_request_server(request_server.address)
    with pytest.raises(UserError, match=r"opened \(is its folder missing"):
        open_request_server(f"unix:{tmp_path}/missing/wire")
