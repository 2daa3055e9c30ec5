"""`pappus actor` joins a run, leaves it, survives it, and says in one sentence why it cannot."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from pappus.cli import main
from pappus.config import EnvOptions
from pappus.envs.vector import env_spec
from pappus.transports.addresses import free_port
from pappus.transports.codec import Hello, encode_env_group, layout
from pappus.types import Request, leaves_of, map_leaves, request_spec
from tests.process_tools import eventually
from tests.warm_processes import start
from tests.wire_tools import Line, Listening

SMALL = ["--envs-per-actor", "4", "--batch-size", "4", "--evaluation.episodes", "1", "--steps", "1000000000"]


class Actor:
    """A `pappus actor` in a process of its own."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log, self.process = log, start(log, "actor", *words)

    def end(self) -> None:
        """Make sure that a failed test leaves nothing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def test_an_actor_outlives_a_run_that_is_killed_and_teaches_it_when_it_is_resumed(tmp_path: Path) -> None:
    directory, address = tmp_path / "run", f"127.0.0.1:{free_port('127.0.0.1')}"
    words = ["--env", "CartPole-v1", "--run-dir", str(directory), "--checkpoint.every-seconds", "0.5", *SMALL]
    training = Listening(directory, "train", "seed-vtrace", *words, "--actors", "0", "--listen", address)
    actor = Actor(tmp_path / "actor.out", "--connect", address, "--env", "CartPole-v1", "--envs", "8")
    started = [training]  # the only envs are the actor's
    try:
        training.until_it_learns()
        eventually(lambda: list((directory / "checkpoints").glob("*")))
        training.known |= {training.process.pid: "main"}
        os.kill(training.process.pid, signal.SIGKILL)
        training.wait()
        training.nothing_is_left()
        eventually(lambda: "lost the connection" in actor.log.read_text())
        before = training.steps()
        started.append(Listening(directory, "train", "--resume", str(directory)))
        eventually(lambda: started[-1].steps() > before + 1000 or started[-1].process.poll() is not None, 60)
        assert started[-1].process.poll() is None and actor.process.poll() is None, started[-1].output()
        assert actor.log.read_text().count("connected to") == 2
        started[-1].interrupt()
        assert started[-1].wait() == 130
    finally:
        actor.end()
        for each in started:
            each.end()


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text("secret")
    return str(path)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, token: str) -> Iterator[Listening]:
    """A run with an actor of its own, which others may join."""
    directory = tmp_path_factory.mktemp("remote") / "run"
    training = Listening(
        directory, "train", "seed-vtrace", "--env", "CartPole-v1", "--listen", "127.0.0.1:0",
        "--run-dir", str(directory), "--topology.wire.token-file", token, "--topology.wire.max-envs", "100", *SMALL,
    )
    try:
        training.until_it_learns()
        yield training
    finally:
        training.end()


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a command does to its process stays within the test."""
    monkeypatch.setattr("pappus.remote.set_title", lambda _: None)
    monkeypatch.chdir(tmp_path)


def test_an_actor_joins_steps_and_leaves_with_ctrl_c_while_training_goes_on(
    training: Listening, token: str, tmp_path: Path
) -> None:
    words = ["--connect", training.address(), "--env", "CartPole-v1", "--envs", "6", "--env-groups", "2"]
    actor = Actor(tmp_path / "actor.out", *words, "--name", "guest", "--token-file", token)
    try:
        eventually(lambda: "guest (6 envs) joined" in training.output())
        eventually(lambda: '"inference/envs": 10.0' in (training.directory / "metrics.jsonl").read_text())
        actor.process.send_signal(signal.SIGINT)
        assert actor.process.wait(10) == 0, actor.log.read_text()
    finally:
        actor.end()
    eventually(lambda: "guest (6 envs) left" in training.output())
    said = actor.log.read_text()
    assert re.search(r"left after [1-9][\d,]* steps", said) and "lost the connection" not in said, said
    trained = training.steps()
    eventually(lambda: training.steps() > trained)
    assert training.process.poll() is None


def stranger(training: Listening, token: str, name: str) -> tuple[Line, Request]:
    """A client of two envs that has its first actions, and the request that it may send next."""
    spec = env_spec("CartPole-v1", EnvOptions())
    request: Request = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), request_spec(spec, 2))
    request.first[:] = True
    action = layout({"action": spec.action.array})[0]
    hello = Hello(layout(request_spec(spec)), action, 1, 2, name, Path(token).read_text())
    line = Line(training.address(), hello.encode(), encode_env_group(0, leaves_of(request)))
    line.hear()
    line.hear()
    request.first[:], request.valid[:], request.discount[:] = False, True, 1
    return line, request


@pytest.mark.parametrize("value", [0.9e15, np.nan, 50.0], ids=["overflows", "nan", "beyond the env's bounds"])
def test_a_client_whose_observations_cannot_be_true_is_dropped_and_the_run_goes_on(
    training: Listening, token: str, value: float
) -> None:
    name = f"evil-{value:g}"
    line, request = stranger(training, token, name)
    request.observation[:, 0] = value
    line.say(encode_env_group(0, leaves_of(request)))
    status, text = line.ending()
    assert status == "INVALID_ARGUMENT" and "observation" in text
    eventually(lambda: re.search(rf"{re.escape(name)} \(2 envs\) at ipv4:127.0.0.1:\d+ was refused", training.output()))
    eventually(lambda: "inference/clients_refused_per_second" in (training.directory / "metrics.jsonl").read_text())
    trained = training.steps()
    eventually(lambda: training.steps() > trained)
    assert training.process.poll() is None


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [("vtrace", []), ("ppo", []), ("dqn", ["--topology.replay.warm-up", "100", "--batch-size", "32"])],
)
def test_a_client_that_breaks_batches_within_the_bounds_is_dropped_and_the_run_goes_on(
    algorithm: str, words: list[str], tmp_path: Path, token: str
) -> None:
    directory = tmp_path / "run"
    training = Listening(
        directory, "train", f"tests.overflowing:{algorithm}@seed", "--env", "CartPole-v1", "--listen", "127.0.0.1:0",
        "--run-dir", str(directory), "--topology.wire.token-file", token, *SMALL, *words,
    )
    try:
        training.until_it_learns()
        line, request = stranger(training, token, "plausible")
        request.observation[:, 0], request.reward[:] = 4.0, 1.0  # within the bounds of the env
        status, text = "OK", ""
        while status == "OK":
            line.say(encode_env_group(0, leaves_of(request)))
            try:
                line.hear()
            except grpc.RpcError as error:
                status, text = error.code().name, error.details()
        assert status == "INVALID_ARGUMENT" and "not finite" in text
        eventually(lambda: re.search(r"plausible \(2 envs\) at \S+ was refused: its data made", training.output()))
        eventually(lambda: "the batch is skipped, and 1 client is to blame" in training.output())
        trained = training.steps()
        eventually(lambda: training.steps() > trained)
        training.interrupt()
        assert training.wait() == 130
        summary = training.summary()
        assert summary["clients_refused"] == 1 and summary["batches_skipped"] >= 1
    finally:
        training.end()


def test_an_actor_leaves_after_as_many_steps_as_it_was_told(
    training: Listening, token: str, in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["actor", "--connect", training.address(), "--env", "CartPole-v1", "--token-file", token, "--steps", "160"]
    assert main([*words, "--envs", "8", "--seed", "3"]) == 0
    said = capsys.readouterr().err
    left = re.search(r"left after ([\d,]+) steps", said)
    assert left is not None and 160 <= int(left[1].replace(",", "")) <= 168, said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--env", "Acrobot-v1"], r"refused the connection: tensor 0 is 'observation' float32 \[6\], and"),
        (["--env", "CartPole-v1", "--token-file", "wrong"], "refused the connection: the token is wrong"),
        (["--env", "CartPole-v1", "--token-file", ""], "refused the connection: a token is needed"),
        (["--env", "CartPole-v1", "--envs", "200"], "refused the connection: .* at most 100 may be"),
    ],
)
def test_an_actor_that_the_run_refuses_exits_with_2_and_the_reason(
    training: Listening, token: str, in_this_process: None, words: list[str], sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("wrong").write_text("guess")
    assert main(["actor", "--connect", training.address(), "--token-file", token, *words]) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said) and said.count("\n") == 1, said
    assert training.process.poll() is None


def test_an_actor_without_a_run_exits_with_1_after_its_patience(
    in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    assert main(["actor", "--connect", address, "--env", "CartPole-v1", "--patience", "0.3"]) == 1
    said = capsys.readouterr().err
    assert f"nobody answered at {address}" in said and said.count("\n") == 1, said


WRONG = [
    ("", "--connect"),
    ("--connect 127.0.0.1:1", "--env"),
    ("--connect nowhere --env CartPole-v1", "'nowhere' is neither HOST:PORT nor unix:PATH"),
    ("--connect 127.0.0.1:1 --env NoSuchEnv-v0", "NoSuchEnv"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --envs 3", "--env-groups 2 does not divide --envs 3"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --envs 0", "--env-groups 2 does not divide --envs 0"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --env-groups 0", "--env-groups 0 does not divide --envs 16"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --envs many", "--envs"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --token-file missing", "'missing' cannot be read"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --token-file .", "'.' cannot be read"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --token-file empty", "'empty' is empty; write a secret into it"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --authority missing", "'missing' cannot be read"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --authority empty", "TLS cannot use 'empty'"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --certificate empty", "--certificate and --key belong together"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --config missing.yaml", "config file 'missing.yaml' cannot be read"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --seed -1", "seed=-1 must not be negative"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --steps -1", "steps=-1 must not be negative"),
    ("--connect 127.0.0.1:1 --env CartPole-v1 --patience -1", "patience=-1.0 must not be negative"),
    ("--connect 127.0.0.1:1 --env spec:empty", "spec:empty"),
]


@pytest.mark.parametrize(("line", "sentence"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_words_for_an_actor_get_one_sentence_and_exit_code_2(
    line: str, sentence: str, in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").write_text("")
    assert main(["actor", *line.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1, said


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("seed-vtrace", "--env-spec is missing"),
        ("seed-vtrace --env-spec nowhere.yaml", "nowhere.yaml' cannot be read"),
        ("seed-vtrace --env-spec malformed.yaml", "action={'discrete': 0} is none of"),
        ("seed-vtrace --env-spec malformed.yaml --env CartPole-v1", "pappus serve has no envs"),
    ],
)
def test_wrong_words_for_serve_get_one_sentence_and_exit_code_2(
    line: str, sentence: str, in_this_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("malformed.yaml").write_text("observation: {shape: [3]}\naction: {discrete: 0}\n")
    assert main(["serve", *line.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1, said
