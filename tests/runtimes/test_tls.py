"""TLS between the nodes of a run (to the driver, between node agents, to replay), for nodes of one authority alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from pappus.config import ClusterConfig
from pappus.errors import RunError, UserError
from pappus.recording.shared import SharedReplay
from pappus.runtimes.connections import ConnectionListener, StreamConnection
from pappus.transports.tls import Tls, tls_of
from tests.config_tools import check
from tests.contracts.queue_contract import put
from tests.contracts.replay_tools import Background
from tests.process_tools import eventually
from tests.recording.test_ports import Registered, spec
from tests.runtimes.test_node_agent import Cluster, take_all

HELLO = {"token": "secret", "group": "actor-0"}


def issued(folder: Path, authority: trustme.CA, name: str) -> Tls:
    made = authority.issue_cert("127.0.0.1")
    paths = [folder / f"{name}.{ending}" for ending in ("pem", "key", "ca")]
    for path, blob in zip(paths, (made.cert_chain_pems[0], made.private_key_pem, authority.cert_pem), strict=True):
        blob.write_to_path(path)
    return Tls(*map(str, paths))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return issued(tmp_path_factory.mktemp("tls"), trustme.CA(), "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return issued(tmp_path_factory.mktemp("tls"), trustme.CA(), "others")


@pytest.fixture
def listener(tls: Tls) -> Iterator[ConnectionListener]:
    made = ConnectionListener("127.0.0.1", "secret", tls)
    yield made
    made.close()


def joined(listener: ConnectionListener, tls: Tls) -> tuple[StreamConnection, StreamConnection]:
    """Both ends of a connection."""
    connecting = Background(lambda: StreamConnection.connect(listener.address, HELLO, tls))
    ((hello, ours),) = eventually(lambda: listener.arrivals(time.monotonic()), 10)
    assert hello == HELLO
    return ours, connecting.result()


def test_messages_arrive_whole_and_in_order_and_what_follows_a_hello_too(
    listener: ConnectionListener, tls: Tls
) -> None:
    ours, theirs = joined(listener, tls)
    sent = [{"number": i, "text": "ü\n" * 1000 * i} for i in range(50)]
    heard: list[dict[str, Any]] = []
    for message in sent:
        theirs.send(message)
        heard += ours.receive()
    eventually(lambda: heard.extend(ours.receive()) or heard == sent, 10)
    ours.send({"stop": True})
    assert eventually(theirs.receive, 10) == [{"stop": True}]
    theirs.close()
    with pytest.raises(OSError, match=r"closed|reset"):
        eventually(lambda: ours.receive() and False, 10)


def test_what_is_said_cannot_be_read_on_the_way(tls: Tls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tap:
        asking = Background(lambda: StreamConnection.connect(tap.getsockname()[:2], HELLO, tls))
        end, _ = tap.accept()
        seen = end.recv(1 << 16)
        end.close()
    assert seen and b"secret" not in seen and b"actor" not in seen
    with pytest.raises(RunError, match="presents no certificate"):
        asking.result()


def test_strangers_are_not_heard_and_do_not_hold_up_others(listener: ConnectionListener, tls: Tls, others: Tls) -> None:
    silent, plain = (socket.create_connection(listener.address) for _ in range(2))
    plain.sendall(b'{"token": "secret", "group": "actor-0"}\n' + b"[" * 100_000)
    foreign = Background(lambda: StreamConnection.connect(listener.address, HELLO, others))
    ours, theirs = joined(listener, tls)
    with pytest.raises(RunError, match="presents no certificate that this node trusts"):
        foreign.result()
    theirs.send({"report": 1})
    assert eventually(ours.receive, 10) == [{"report": 1}]
    assert not listener.arrivals(time.monotonic())
    for one in (silent, plain):
        one.close()


def test_the_token_is_asked_for_all_the_same(listener: ConnectionListener, tls: Tls) -> None:
    asking = Background(lambda: StreamConnection.connect(listener.address, {**HELLO, "token": "wrong"}, tls))
    eventually(lambda: listener.arrivals(time.monotonic()) or asking.done, 10)
    eventually(lambda: listener.arrivals(time.monotonic()) or not listener._unidentified, 10)
    asking.result().close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    for node_agent in made.node_agents.values():
        node_agent.close()


def test_node_agents_of_one_authority_carry_edges(cluster: Cluster, tls: Tls) -> None:
    cluster.open("a", "b", tls=tls)
    cluster.place("items", "a", _0="a", _1="b")
    put(cluster.queue("b"), 1, 7)
    assert take_all(cluster.queue("a"), 1) == [7]


@pytest.mark.parametrize("with_tls", [True, False], ids=["of another authority", "without TLS"])
def test_other_node_agents_get_no_stream(cluster: Cluster, tls: Tls, others: Tls, with_tls: bool) -> None:
    cluster.open("a", tls=tls)
    cluster.open("b", tls=others if with_tls else None)
    cluster.place("items", "a", _0="a", _1="b")
    put(cluster.queue("b"), 1, 7)
    troubles = cluster.node_agents["b"]._streams.troubles
    eventually(lambda: "has not answered yet" not in troubles().get("items", "has not answered yet"), 10)
    assert cluster.queue("a").source().take(1) is None


def test_replay_on_another_node_is_reached_by_nodes_of_the_authority_alone(
    tmp_path: Path, tls: Tls, others: Tls
) -> None:
    (tmp_path / "token").write_text("secret")
    places: dict[str, tuple[str, str]] = {}
    near, far, foreign, bare = (
        SharedReplay(
            spec(str(tmp_path / f"{node}.sock")), np.zeros(1, np.int64), "replay",
            Registered(node, str(tmp_path / "token"), places, files),
        )
        for node, files in (("a", tls), ("b", tls), ("c", others), ("d", None))
    )
    host = near.host()
    host.open()
    try:
        session = far._reach()
        assert session.info("replay")["size"] == 0
        session.close()
        for stranger in (foreign, bare):
            with pytest.raises(RunError, match="no replay service answers"):
                stranger._reach()
    finally:
        host.close()


def test_files_belong_together_and_must_be_usable(tls: Tls, others: Tls) -> None:
    def refused(**cluster: str) -> str:
        with pytest.raises(UserError) as raised:
            check("impala", "CartPole-v1", {"runtime": "ray", "cluster": cluster})
        return str(raised.value)

    assert "give all three" in refused(certificate=tls.certificate, key=tls.key)
    assert "cannot be read" in refused(certificate="no.pem", key=tls.key, authority=tls.authority)
    assert "TLS cannot use" in refused(certificate=tls.certificate, key=others.key, authority=tls.authority)
    assert tls_of(ClusterConfig()) is None
