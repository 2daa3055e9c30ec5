"""A client that breaks the protocol loses its own stream, learns why, and disturbs nobody."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree
import pytest

from benchmarks.fuzz import mutate
from pappus.transports import grpc_request_server, grpc_server
from pappus.transports.admission import GROUP_BYTES, Taken
from pappus.transports.codec import EnvGroupReader, Hello, Tensor, encode_env_group, env_group_specs
from pappus.transports.grpc_request_server import GrpcRequestServer, Stream
from pappus.transports.grpc_server import Ration, Refusal, understood
from pappus.transports.plausible import Plausibility
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Request, request_spec
from tests.contracts.calls_contract import ENVS, REQUEST, take, wait_for
from tests.wire_tools import (
    TENSORS,
    Line,
    Witness,
    hello,
    other_tensor,
    request_server_at,
    size_of_env_group,
    steps,
    with_observation,
)

MAX_ENVS = 64
SIZE = size_of_env_group()
INVALID = "INVALID_ARGUMENT"


@pytest.fixture(scope="module")
def request_server() -> Iterator[GrpcRequestServer]:
    with request_server_at(max_envs=MAX_ENVS) as request_server:
        yield request_server


@pytest.fixture(scope="module")
def open_all_along(request_server: GrpcRequestServer) -> Iterator[Witness]:
    witness = Witness(request_server)
    yield witness
    witness.close()


@pytest.fixture
def witness(request_server: GrpcRequestServer, open_all_along: Witness) -> Iterator[Witness]:
    """A stream that was open before the test and must work after it."""
    wait_for(request_server, lambda: request_server.explain().startswith("1 clients"))
    open_all_along.round_trip()
    yield open_all_along
    open_all_along.round_trip()


WRONG_HELLOS = {
    "protocol": (hello(protocol=2), "FAILED_PRECONDITION", "protocol 2, and this server speaks 1"),
    "no protocol": (hello(protocol=0), "FAILED_PRECONDITION", "protocol 0"),
    "a token nobody asked for": (hello(token="guess"), "UNAUTHENTICATED", "token"),
    "name": (hello(tensors=other_tensor(0, name="observation/z")), INVALID, "tensor 0 is 'observation/z'"),
    "shape": (hello(tensors=other_tensor(0, shape=(3, 2))), INVALID, "float32 [3, 2], and the run expects"),
    "dtype": (hello(tensors=other_tensor(3, dtype="float64")), INVALID, "tensor 3 is 'reward' float64 []"),
    "order": (hello(tensors=TENSORS[::-1]), INVALID, "tensor 0 is 'episode_length'"),
    "too few": (hello(tensors=TENSORS[:-1]), INVALID, "7 tensors were announced, and the run expects 8"),
    "too many": (hello(tensors=TENSORS * 2), INVALID, "16 tensors were announced"),
    "none": (hello(tensors=()), INVALID, "0 tensors were announced"),
    "action": (hello(action=Tensor("action", (2,), "float32")), INVALID, "'action' float32 [2], and the run"),
    "no env groups": (hello(env_groups=0), INVALID, "env groups=0 and envs=4 must be at least 1"),
    "no envs": (hello(envs=0), INVALID, "envs=0 must be at least 1"),
    "too many envs": (hello(env_groups=16), "UNAVAILABLE", "4 envs are connected, 64 more are too many"),
    "absurdly many": (hello(env_groups=2**32 - 1, envs=2**32 - 1), "RESOURCE_EXHAUSTED", "at most 64 may be"),
    "endless names": (hello(tensors=other_tensor(0, name="x" * 50_000)), INVALID, "tensor 0 is 'xxxx"),
    "large": (hello(name="x" * 262_500), "RESOURCE_EXHAUSTED", "a Hello of 262"),
}


@pytest.mark.parametrize(("wrong", "status", "sentence"), WRONG_HELLOS.values(), ids=WRONG_HELLOS)
def test_a_wrong_hello_is_refused(
    request_server: GrpcRequestServer, witness: Witness, wrong: Hello, status: str, sentence: str
) -> None:
    line = Line(request_server.address, wrong.encode())
    code, text = line.ending()
    assert code == status and sentence in text, text


def test_steps_before_hello_are_refused(request_server: GrpcRequestServer, witness: Witness) -> None:
    code, text = Line(request_server.address, steps()).ending()
    assert code == INVALID and "where Hello was due" in text


def setting(name: str, value: float) -> Callable[[Any], object]:
    return lambda request: getattr(request, name).__setitem__(1, value)


def as_byte(name: str, value: int) -> Callable[[Any], object]:
    return lambda request: getattr(request, name).view(np.uint8).__setitem__(1, value)


WRONG_STEPS = {
    "another env group": (steps(env_group=2), INVALID, "env group 2 was not announced: env groups are 0 to 1"),
    "a second hello": (hello().encode(), INVALID, "another message came where Steps was due"),
    "too short": (encode_env_group(0, [np.zeros(SIZE - 1, np.uint8)]), INVALID, f"{SIZE - 1} bytes of tensors"),
    "too long": (encode_env_group(0, [np.zeros(SIZE + 1, np.uint8)]), INVALID, f"layout of the handshake has {SIZE}"),
    "empty": (b"", INVALID, "where Steps was due"),
    "cut off": (steps()[:-1], INVALID, "the message is cut off"),
    "oversized": (bytes(1 << 20), "RESOURCE_EXHAUSTED", "larger than max"),
    "reward nan": (steps(change=setting("reward", np.nan)), INVALID, "'reward' is not finite"),
    "reward absurd": (steps(change=setting("reward", 3e38)), INVALID, "beyond ±1e+08"),
    "observation absurd": (steps(change=with_observation("a", -3e38)), INVALID, "from -1e+08 to 1e+08 is allowed"),
    "reward inf": (steps(change=setting("reward", np.inf)), INVALID, "'reward' is not finite"),
    "return nan": (steps(change=setting("episode_return", np.nan)), INVALID, "'episode_return' is not finite"),
    "discount 2": (steps(change=setting("discount", 2)), INVALID, "'discount' lies outside 0 to 1"),
    "discount nan": (steps(change=setting("discount", np.nan)), INVALID, "or is not finite"),
    "first 2": (steps(change=as_byte("first", 2)), INVALID, "'first' holds bytes other than 0 and 1"),
    "valid 255": (steps(change=as_byte("valid", 255)), INVALID, "'valid' holds bytes other than 0 and 1"),
    "length -1": (steps(change=setting("episode_length", -1)), INVALID, "'episode_length' is negative"),
    "observation nan": (steps(change=with_observation("a", np.nan)), INVALID, "an observation is not finite"),
    "observation inf": (steps(change=with_observation("a", -np.inf)), INVALID, "an observation is not finite"),
}


@pytest.mark.parametrize(("wrong", "status", "sentence"), WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_wrong_steps_end_the_stream(
    request_server: GrpcRequestServer, witness: Witness, wrong: bytes, status: str, sentence: str
) -> None:
    line = Line(request_server.address, hello(env_groups=2).encode())
    line.hear()
    line.say(wrong)
    code, text = line.ending()
    assert code == status and sentence in text, text
    assert not request_server.calls(), "nobody answers what was refused"


def test_sending_out_of_turn_ends_the_stream(request_server: GrpcRequestServer, witness: Witness) -> None:
    line = Line(request_server.address, hello().encode(), steps(), steps())
    code, text = line.ending()
    assert code == "FAILED_PRECONDITION" and text == "env group 0 sent again before its actions came"
    take(request_server, 1)


def test_a_stream_without_hello_is_ended(
    request_server: GrpcRequestServer, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "HANDSHAKE_SECONDS", 0.05)
    code, text = Line(request_server.address).ending()
    assert code == "DEADLINE_EXCEEDED" and "no Hello came within" in text


def test_envs_that_leave_make_room_for_others(request_server: GrpcRequestServer, witness: Witness) -> None:
    for _ in range(3):
        full = Line(request_server.address, hello(env_groups=15).encode())
        full.hear()
        assert Line(request_server.address, hello().encode()).ending()[0] == "UNAVAILABLE"
        request_server.left()
        full.close()
        left = wait_for(request_server, request_server.left)
        assert len(left) == 15 and len(set(left)) == 15


def test_clients_that_join_at_once_do_not_exceed_the_limit_together(
    request_server: GrpcRequestServer, witness: Witness
) -> None:
    request_server.news()
    lines, news = [Line(request_server.address, hello().encode()) for _ in range(40)], list[str]()

    def all_have_come() -> bool:
        news.extend(request_server.news())
        return sum("joined" in line or "refused" in line for line in news) == len(lines)

    wait_for(request_server, all_have_come)
    assert sum("joined" in line for line in news) == MAX_ENVS // ENVS - 1, "the witness is one of those who may"
    for line in lines:
        line.close()


def test_whoever_joins_is_told_of_in_one_line(request_server: GrpcRequestServer, witness: Witness) -> None:
    request_server.news()
    line = Line(request_server.address, hello(name="a\nb\x1b[2J" + "c" * 1000).encode())
    line.hear()
    (news,) = wait_for(request_server, request_server.news)
    assert news.startswith("a?b?[2Jccc") and news.endswith("(4 envs) joined") and len(news) < 150
    line.close()
    (news,) = wait_for(request_server, request_server.news)
    assert news.endswith("left")


def test_whoever_is_refused_is_told_of(request_server: GrpcRequestServer, witness: Witness) -> None:
    request_server.news()
    Line(request_server.address, hello(env_groups=0).encode()).ending()
    (news,) = wait_for(request_server, request_server.news)
    assert "127.0.0.1" in news and "was refused: env groups=0" in news


def test_a_client_that_is_dropped_for_its_data_is_named_and_counted(
    request_server: GrpcRequestServer, witness: Witness
) -> None:
    request_server.news()
    request_server.refused()
    line = Line(request_server.address, hello(name="sim-7").encode())
    line.hear()
    line.say(steps(change=with_observation("a", 0.9e15)))
    assert line.ending()[0] == INVALID
    news = wait_for(request_server, lambda: [text for text in request_server.news() if "refused" in text])
    assert news[0].startswith("sim-7 (4 envs) at ipv4:127.0.0.1:") and "holds 9e+14" in news[0]
    assert request_server.refused() == 1 and request_server.refused() == 0
    Line(request_server.address, hello(token="wrong").encode()).ending()
    assert request_server.refused() == 0, "a stranger is no client"


def test_a_client_that_a_learner_blames_is_dropped_named_and_counted_once(
    request_server: GrpcRequestServer, witness: Witness
) -> None:
    request_server.news()
    request_server.refused()
    line = Line(request_server.address, hello(name="sim-8").encode(), steps())
    (call,) = take(request_server, 1)
    for _ in range(2):
        request_server.drop(call.origin, "it overflows")
    line.hear()
    assert line.ending() == (INVALID, "it overflows")
    wait_for(request_server, request_server.left)
    news = [text for text in request_server.news() if "refused" in text]
    assert len(news) == 1 and news[0].startswith("sim-8 (4 envs) at ipv4:127.0.0.1:") and "it overflows" in news[0]
    request_server.drop(call.origin, "it overflows")
    witness.round_trip()
    assert request_server.refused() == 1 and "refused" not in " ".join(request_server.news())


def test_a_client_that_has_left_is_named_and_counted_all_the_same(
    request_server: GrpcRequestServer, witness: Witness
) -> None:
    line = Line(request_server.address, hello(name="sim-9").encode(), steps())
    (call,) = take(request_server, 1)
    line.close()
    wait_for(request_server, lambda: call.origin in [origin for origin, _ in request_server.left()])
    request_server.news()
    request_server.refused()
    for _ in range(2):
        request_server.drop(call.origin, "it overflows")
    request_server.drop(call.origin + 1000, "of a server before this one")
    (news,) = wait_for(request_server, lambda: [text for text in request_server.news() if "refused" in text])
    assert re.match(r"sim-9 \(4 envs\) at \S+, which has left, counts as refused: it overflows", news)
    assert request_server.refused() == 1


def test_nobody_may_take_more_memory_than_there_is_for_clients() -> None:
    env = SIZE / ENVS
    with request_server_at(max_message_mib=1, max_client_mib=2, max_clients_mib=3) as server:
        code, text = Line(server.address, bytes(2 << 20)).ending()
        assert code == "RESOURCE_EXHAUSTED" and "larger than max" in text, "who it is has not even been asked"
        per_mib = int(((1 << 20) - GROUP_BYTES) / env / 2)  # a request and the step that is held
        code, text = Line(server.address, hello(envs=3 * per_mib).encode()).ending()
        assert code == "RESOURCE_EXHAUSTED" and "use more env groups: max_message_mib is 1" in text
        code, text = Line(server.address, hello(env_groups=3, envs=per_mib).encode()).ending()
        assert code == "RESOURCE_EXHAUSTED" and "those of a client at most 2.0; use fewer, or raise max_client" in text
        first = Line(server.address, hello(env_groups=2, envs=per_mib).encode())
        first.hear()
        code, text = Line(server.address, hello(env_groups=2, envs=per_mib).encode()).ending()
        assert code == "UNAVAILABLE" and "at most 3.0 may be" in text
        first.close()


def test_of_too_many_streams_that_say_nothing_the_oldest_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_request_server, "MAX_STRANGERS", 3)
    with request_server_at() as server:
        silent = [Line(server.address) for _ in range(4)]
        news = wait_for(server, lambda: [text for text in server.news() if "no Hello came" in text])
        assert len(news) == 1
        Witness(server).round_trip()
        for line in silent:
            line.close()


def test_refusals_are_rationed() -> None:
    now = 0.0
    ration = Ration(2, lambda: now)
    assert [ration.passes() for _ in range(5)] == [(True, 0), (True, 0), (False, 0), (False, 0), (False, 0)]
    now = 61.0
    assert [ration.passes() for _ in range(3)] == [(True, 3), (True, 0), (False, 0)]


def test_a_request_server_that_closes_tells_its_clients_to_come_again() -> None:
    with request_server_at() as request_server:
        line = Line(request_server.address, hello().encode())
        line.hear()
    assert line.ending()[0] == "UNAVAILABLE"


def test_a_bool_observation_holds_zeros_and_ones(request_server: GrpcRequestServer) -> None:
    flags = np.array([0, 2], np.uint8).view(bool)
    zeros = np.zeros(2, np.float32)
    request = Request(flags, zeros > 0, zeros, zeros, zeros > 0, zeros, zeros.astype(np.int32))
    spec = request_spec(EnvSpec(ArraySpec((), "bool"), DiscreteAction(2)))
    assert "bool observation" in Plausibility(spec, 0.0).complaint(request)


def accepts(act: Callable[[bytes], object], message: bytes) -> bool:
    """Whether a message is accepted; any other end than a refusal fails the test."""
    try:
        act(message)
    except Refusal as refusal:
        assert refusal.text and refusal.text.isprintable(), refusal.text
        return False
    return True


def test_150_000_mutated_steps_are_understood_or_refused(request_server: GrpcRequestServer, witness: Witness) -> None:
    rng, readers = random.Random(1), [EnvGroupReader(env_group_specs(REQUEST, ENVS)) for _ in range(2)]
    requests = [optree.tree_unflatten(optree.tree_structure(REQUEST), reader.arrays) for reader in readers]
    stream = Stream(0, "fuzz", 2, ENVS, readers, requests, None, request_server._loop)
    originals = [steps(env_group) for env_group in range(2)]
    accepted = 0
    for turn in range(150_000):
        mutated = mutate(rng, originals[turn % 2])
        accepted += accepts(lambda message: request_server._understand(stream, message), mutated)
    assert 1000 < accepted < 140_000, "the mutations reach both ends"


def test_50_000_mutated_hellos_are_understood_or_refused(request_server: GrpcRequestServer, witness: Witness) -> None:
    rng, original = random.Random(2), hello(env_groups=3, token="", name="fuzz").encode()
    check, accepted = request_server._admission.check, 0
    for _ in range(50_000):
        mutated = mutate(rng, original)
        accepted += accepts(lambda message: check(understood(Hello.decode, message), Taken(0, 0)), mutated)
    assert 100 < accepted < 45_000, "the mutations reach both ends"


def test_300_mutated_conversations_over_the_socket_end_with_a_status(
    request_server: GrpcRequestServer, witness: Witness
) -> None:
    rng = random.Random(3)
    documented = {INVALID, "FAILED_PRECONDITION", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
    for turn in range(300):
        first = mutate(rng, hello().encode()) if turn % 3 == 0 else hello().encode()
        line = Line(request_server.address, first, mutate(rng, steps()), mutate(rng, steps()), steps(), steps())
        assert line.ending()[0] in documented, "whatever came before, the last Steps come out of turn"
        line.close()
        request_server.calls()
        request_server.left()
