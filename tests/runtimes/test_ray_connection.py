"""What is compared between nodes, and how deaths are told."""

from __future__ import annotations

import socket

import pytest

from pappus.errors import UserError
from pappus.telemetry.files import versions

ray = pytest.importorskip("ray")

from pappus.runtimes.ray_connection import cause, refuse_other_versions, refuse_where_nobody_listens  # noqa: E402


def test_the_same_versions_of_another_build_are_let_in() -> None:
    ours = versions()
    theirs = {**ours, "torch": ours["torch"].partition("+")[0] + "+cu130", "python": ours["python"] + "1"}
    refuse_other_versions(theirs, "10.0.0.2")


@pytest.mark.parametrize(("package", "other"), [("torch", "1.0.0"), ("pappus", "0.0.0"), ("python", "3.9.1")])
def test_another_version_is_refused_with_node_package_and_both(package: str, other: str) -> None:
    with pytest.raises(UserError, match=rf"node 10.0.0.2 has {package} {other[:3]}.*, and the driver has "):
        refuse_other_versions({**versions(), package: other}, "10.0.0.2")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits with connection error code 2. End of file.",
         "Worker exits with connection error code 2"),
        ("RpcError: RPC error: Socket closed rpc_code: 14", "its process is gone"),
    ],
)
def test_a_death_is_told_in_a_few_words(said: str, told: str) -> None:
    assert cause(ray.exceptions.ActorUnavailableError(said, None)) == told


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        refuse_where_nobody_listens(address)
    with pytest.raises(UserError, match=rf"{address}'.* nobody listens there .*ray start --head"):
        refuse_where_nobody_listens(address)
    with pytest.raises(UserError, match="neither HOST:PORT"):
        refuse_where_nobody_listens("head-node")
    refuse_where_nobody_listens("auto")
