"""The clients that we ship need nothing of Pappus, teach a run, and survive it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import trustme

import pappus
from pappus.config import WireConfig
from pappus.transports.grpc_request_server import GrpcRequestServer
from pappus.transports.memory import EventNotifier
from pappus.types import ArraySpec, ContinuousAction, EnvSpec, Request, request_spec
from tests.contracts.calls_contract import take
from tests.wire_tools import Listening

CLIENTS = Path(pappus.__file__).parent.parent / "clients"
NESTED = EnvSpec({"b": ArraySpec((2,), "int16"), "a": ArraySpec((), "float32")}, ContinuousAction((3,)))
Language = tuple[list[str], dict[str, str], Path]
"""How a script is started: command, environment, folder."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Language:
    """A Python that has grpcio and the standard library, and a folder with the client."""
    folder, packages = tmp_path_factory.mktemp("python"), tmp_path_factory.mktemp("packages")
    for name in ("grpc", "typing_extensions"):  # grpcio and all that it depends on
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        (packages / source.name).symlink_to(source)
    for file in (CLIENTS / "python").glob("*.py"):
        (folder / file.name).write_text(file.read_text().replace("patience=5.0", "patience=1.0"))
    return [sys.executable, "-S"], {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"]}, folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Language:
    """Node.js, and a folder with the client, its packages and the .proto file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on PATH; install Node.js to test its client")
    folder = tmp_path_factory.mktemp("node")
    for file in [*(CLIENTS / "node").glob("*.js*"), CLIENTS.parent / "pappus" / "transports" / "pappus.proto"]:
        (folder / file.name).write_text(file.read_text().replace("patience: 5}", "patience: 1}"))
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, capture_output=True, timeout=120)
    return ["node"], {"PATH": os.environ["PATH"]}, folder


@contextmanager
def running(language: Language, *words: str) -> Iterator[subprocess.Popen[str]]:
    command, environment, folder = language
    process = subprocess.Popen(
        [*command, *words], cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(directory: Path, spec: Path, target: float) -> Iterator[Listening]:
    words = ["seed-vtrace", "--env-spec", str(spec), "--target-return", str(target), "--run-dir", str(directory)]
    training = Listening(directory, "serve", *words, "--steps", "1000000000")
    try:
        yield training
    finally:
        training.end()


def assert_it_learns(
    language: Language, script: str, spec: Path, target: float, tmp_path: Path, metric: str
) -> None:
    with serving(tmp_path / "run", spec, target) as training, running(language, script, training.address()) as client:
        assert training.wait(90) == 0, training.output()
        summary = training.summary()
        assert summary["exit_reason"] == "target reached" and summary["solved_at_step"] > 0
        assert client.wait(20) == 0 and client.stdout is not None, "a client whose run is over ends at once"
        assert "the run is over: target reached" in client.stdout.read()
        measured = pappus.runs.load(training.directory)[metric]
        assert np.nanmax(measured) <= 1 and np.nanmax(measured) > np.nanmin(measured), "what the client measures"


def test_a_lander_in_python_learns_with_nothing_but_grpcio(python: Language, tmp_path: Path) -> None:
    command, environment, folder = python
    look = "import importlib.util as u; print([n for n in ('pappus', 'numpy', 'torch', 'google') if u.find_spec(n)])"
    found = subprocess.run([*command, "-c", look], cwd=folder, env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found
    assert_it_learns(python, "lander.py", CLIENTS / "python" / "lander.yaml", 0.3, tmp_path, "env/soft")


def test_catch_in_node_learns(node: Language, tmp_path: Path) -> None:
    assert_it_learns(node, "catch.js", CLIENTS / "node" / "catch.yaml", 0.8, tmp_path, "env/caught")


PYTHON_SCRIPT = """
import sys
from pappus_client import Client, Step
client = Client(sys.argv[1], {"b": ("int16", [2]), "a": ("float32", [])}, ("float32", [3]), 2, name="two parts")
def step(kind, reward):
    return Step({"a": [0.5], "b": [300, -1]}, kind, reward)
for kind, reward in (("first", 9.0), ("running", 1.0), ("truncated", 2.0), ("first", 9.0), ("terminated", -1.0)):
    print([[float(x) for x in row] for row in client.act([step("first", 0.0), step(kind, reward)])], flush=True)
    sys.stdin.readline()
"""
NODE_SCRIPT = """
const {Client} = require('./pappus-client.js');
const lines = require('node:readline').createInterface({input: process.stdin})[Symbol.asyncIterator]();
const observation = {b: ['int16', [2]], a: ['float32', []]};
const client = new Client(process.argv[2], observation, ['float32', [3]], {envs: 2, name: 'two parts'});
const step = (kind, reward) => ({observation: {a: [0.5], b: [300, -1]}, kind, reward});
(async () => {
  for (const [kind, reward] of [['first', 9], ['running', 1], ['truncated', 2], ['first', 9], ['terminated', -1]]) {
    const actions = await client.act([step('first', 0), step(kind, reward)]);
    console.log(JSON.stringify(actions.map((row) => row.map(Number))));
    await lines.next();
  }
  process.exit(0);
})();
"""
EXPECTED = [
    # first, reward, discount, valid, episode_return where one ended, episode_length
    (True, 0, 0, False, 0, 0), (False, 1, 1, True, 0, 0), (False, 2, 1, True, 3, 2), (True, 0, 0, False, 0, 0),
    (False, -1, 0, True, -1, 1),
]


def open_request_server(listen: str) -> GrpcRequestServer:
    notifier = EventNotifier(*EventNotifier.descriptors())
    wire, request = WireConfig(listen), request_spec(NESTED)
    return GrpcRequestServer("inference", wire, request, NESTED.action.array, (), "run", notifier)


def check_request(request: Request, first: bool, reward: float, discount: float, valid: bool, *episode: float) -> None:
    """The second env shows what the script says."""
    assert request.observation["a"].tolist() == [0.5, 0.5]
    assert request.observation["b"].tolist() == [[300, -1], [300, -1]]
    shown = (request.first[1], request.reward[1], request.discount[1], request.valid[1])
    assert shown == (first, reward, discount, valid)
    assert request.episode_length[1] == episode[1] and (not episode[1] or request.episode_return[1] == episode[0])


@pytest.mark.parametrize(("language", "file", "script"), [
    ("python", "script.py", PYTHON_SCRIPT), ("node", "script.js", NODE_SCRIPT),
], ids=["python", "node"])
def test_a_client_sends_what_the_protocol_says_and_outlives_a_run_that_goes_between_two_steps(
    language: str, file: str, script: str, request: pytest.FixtureRequest
) -> None:
    fixture: Language = request.getfixturevalue(language)
    (fixture[2] / file).write_text(script)
    request_server = open_request_server("127.0.0.1:0")
    address = request_server.address
    with running(fixture, file, address) as client:
        assert client.stdin is not None and client.stdout is not None
        for turn, expected in enumerate(EXPECTED):
            (call,) = take(request_server, 1)
            check_request(call.request, *expected)
            call.reply[...] = actions = np.arange(6).reshape(2, 3) / 2 + turn
            call.answer()
            assert json.loads(client.stdout.readline()) == actions.tolist()
            if turn in (1, 2):
                request_server.close()
                request_server = open_request_server(address)
            client.stdin.write("\n")
            client.stdin.flush()
        assert client.wait(10) == 0
    request_server.close()


PYTHON_TLS = """
import grpc, sys
from pappus_client import Client, Step
credentials = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
client = Client(sys.argv[1], {"b": ("int16", [2]), "a": ("float32", [])}, ("float32", [3]), credentials=credentials)
print(client.act([Step({"a": [0.5], "b": [300, -1]}, "first")]), flush=True)
"""
NODE_TLS = """
const fs = require('node:fs');
const grpc = require('@grpc/grpc-js');
const {Client} = require('./pappus-client.js');
const credentials = grpc.credentials.createSsl(fs.readFileSync(process.argv[3]));
const observation = {b: ['int16', [2]], a: ['float32', []]};
const client = new Client(process.argv[2], observation, ['float32', [3]], {credentials});
client.act([{observation: {a: [0.5], b: [300, -1]}, kind: 'first'}]).then((actions) => {
  console.log(JSON.stringify(actions));
  process.exit(0);
});
"""


@pytest.mark.parametrize(("language", "file", "script"), [
    ("python", "tls.py", PYTHON_TLS), ("node", "tls.js", NODE_TLS),
], ids=["python", "node"])
def test_a_client_joins_a_run_that_uses_tls(
    language: str, file: str, script: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fixture: Language = request.getfixturevalue(language)
    (fixture[2] / file).write_text(script)
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    server.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    server.private_key_pem.write_to_path(tmp_path / "server.key")
    wire = WireConfig("127.0.0.1:0", certificate=str(tmp_path / "server.pem"), key=str(tmp_path / "server.key"))
    notifier = EventNotifier(*EventNotifier.descriptors())
    asked, given = request_spec(NESTED), NESTED.action.array
    request_server = GrpcRequestServer("inference", wire, asked, given, (), "run", notifier)
    target = request_server.address.replace("127.0.0.1", "localhost")
    with running(fixture, file, target, str(tmp_path / "authority.pem")) as client:
        (call,) = take(request_server, 1)
        call.reply[...] = 0.5
        call.answer()
        assert client.stdout is not None and json.loads(client.stdout.readline()) == [[0.5, 0.5, 0.5]]
        assert client.wait(10) == 0
    request_server.close()
