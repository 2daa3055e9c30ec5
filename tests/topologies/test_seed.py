from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.api import configure, describe
from pappus.config import EnvOptions, NetworkConfig, WireConfig
from pappus.edges.calls import CallsEdge
from pappus.edges.loan import LoanEdge
from pappus.edges.queue import QueueEdge, RingQueue
from pappus.edges.weights import FlatWeights
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.networks.flat import FlatParameters
from pappus.roles.acting import ActingNetwork, LocalPolicy
from pappus.roles.cpu_inference import CpuInference
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.seed_actor import write_request
from pappus.runtimes.waiting import Waiter
from pappus.topologies.seed import seed
from pappus.topologies.seed_replay import build_gpu_replay_inference, seed_replay
from pappus.transports.addresses import Address
from pappus.transports.grpc_request_client import GrpcRequestClient, Identity
from pappus.transports.grpc_request_server import GrpcRequestServer
from pappus.transports.memory import EventNotifier, HeapBlock
from pappus.types import Unroll, request_spec, unroll_spec
from tests.config_tools import check
from tests.contracts.calls_contract import reply

SIZES = {"actors": 2, "envs_per_actor": 6, "unroll_length": 5, "batch_size": 8, "topology": {"env_groups": 3}}


def program(**settings: Any) -> Any:
    return seed(describe(configure("seed-vtrace", "CartPole-v1", {**SIZES, **settings}), "CartPole-v1"))


def test_the_program_is_the_papers_figure() -> None:
    built = program()
    assert [node.name for node in built.roles] == ["actor-0", "actor-1", "inference", "learner", "evaluator"]
    assert [node.group for node in built.roles] == ["actor-0", "actor-1", "inference", "learner", "evaluator"]
    calls, batches = built.edges["inference"], built.edges["batches"]
    assert isinstance(calls, CallsEdge) and (calls.clients, calls.env_groups, calls.envs) == (2, 3, 2)
    assert isinstance(batches, QueueEdge) and batches.spec.reward.shape == (5, 8) and not batches.device
    ends = {spec.name: set(map(str, spec.ends())) for spec in built.roles}
    assert ends["actor-1"] == {"inference.client(1)"}, "an actor holds envs and a port, and no weights"
    assert ends["inference"] == {"inference.server()", "batches.sink(0)", "weights.reader()"}
    assert ends["learner"] == {"batches.source()", "weights.writer()"}


def test_many_learners_share_one_inference_server_that_deals_batches_out() -> None:
    built = program(learners=2, batch_size=0)
    ends = {spec.name: set(map(str, spec.ends())) for spec in built.roles}
    assert {"batches.sink(0)", "batches-1.sink(0)"} < ends["inference"]
    assert ends["learner-1"] == {"batches-1.source()", "other learners.member(1)"}
    assert built.edges["batches"].spec.reward.shape == (5, 6), "each takes its half of all 12 envs"


def test_beside_the_learner_there_are_the_papers_three_kinds_of_thread() -> None:
    built = program(topology={"env_groups": 3, "inference_in": "learner"})
    assert [node.name for node in built.groups()["learner"]] == ["inference", "prefetch", "learner"]
    assert isinstance(built.edges["unrolls"], LoanEdge) and built.edges["batches"].device == "cpu"
    assert built.edges["nearby weights"].device == "cpu"


@pytest.mark.parametrize(("device", "place"), [("cpu", "inference"), ("cuda", "learner")])
def test_with_replay_inference_is_a_thread_of_the_learners_process_on_a_device(device: str, place: str) -> None:
    config = configure("dqn@seed", "CartPole-v1", {**SIZES, "device": device})
    built = seed_replay(describe(config, "CartPole-v1"))
    (inference,) = (spec for spec in built.groups()[place] if spec.name == "inference")
    assert (inference.build is build_gpu_replay_inference) == (device == "cuda")
    assert ("nearby weights" in built.edges) == (device == "cuda")


def test_with_replay_inference_beside_the_learner_trains(tmp_path: Path) -> None:
    settings = {**SIZES, "topology.inference_in": "learner", "topology.replay.warm_up": 100, "runtime": "local"}
    result = pappus.train("dqn@seed", "CartPole-v1", {**settings, "steps": 2_000}, run_dir=tmp_path / "run")
    assert result.summary.steps >= 2_000 and result.summary.updates > 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"topology": {"env_groups": 4}}, r"topology.env_groups=4 does not divide envs_per_actor=6; use 1, 2, 3, 6"),
        ({"topology": {"env_groups": -1}}, r"topology.env_groups=-1 does not divide"),
        ({"topology": {"env_groups": 3, "max_inference_envs": -1}}, "must not be negative"),
        ({"learners": 2, "topology": {"env_groups": 3, "inference_in": "learner"}}, "it runs in the process of one"),
        ({"learners": 2, "device": "cuda"}, "learners=2 share one inference server, but with device='cuda'"),
        ({"actors": 0}, "leaves no env to learn from; give --listen"),
        ({"listen": "127.0.0.1:0", "runtime": "inline"}, "the inline runtime has none"),
        ({"listen": "here"}, "neither HOST:PORT nor unix:PATH"),
        ({"listen": "0.0.0.0:5000"}, "is open to other machines"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check("seed-vtrace", "CartPole-v1", {**SIZES, **settings})


@pytest.mark.parametrize("runtime", ["inline", "local"])
@pytest.mark.parametrize("placement", ["process", "learner"])
def test_every_step_is_trained_on_or_counted_as_dropped(tmp_path: Path, placement: str, runtime: str) -> None:
    settings = {**SIZES, "topology": {"env_groups": 3, "inference_in": placement}, "runtime": runtime, "steps": 3000}
    pappus.train("seed-vtrace", "CartPole-v1", run_dir=tmp_path / "run", **{"evaluation.episodes": 2}, **settings)
    import json

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    accounts = summary["accounts"]
    assert accounts["trained"] == summary["steps"] >= 3000
    assert accounts["balanced"] and accounts["received"] == accounts["trained"] + accounts["dropped"]


def test_an_actor_elsewhere_needs_no_torch() -> None:
    code = "import sys, pappus.remote; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Server(threading.Thread):
    """An inference server with an LSTM, for whoever connects over a unix socket."""

    def __init__(self, folder: Path, algorithm: VTrace, weights: FlatWeights, envs: int) -> None:
        super().__init__(daemon=True)
        network: Any = algorithm.build_network()

        def spec(num_envs: int) -> Unroll:
            return unroll_spec(algorithm.env, algorithm.behaviour, network.state_spec, 1000, num_envs)

        queue = RingQueue("batches", spec(envs), 1, 1, HeapBlock(*RingQueue.footprint(spec(envs), 1, 1)))
        notifier = EventNotifier(*EventNotifier.descriptors())
        env, wire = algorithm.env, WireConfig(listen=f"unix:{folder}/wire")
        action = env.action
        self.request_server = GrpcRequestServer(
            "inference", wire, request_spec(env), action.array, action.choices, "run", notifier
        )
        acting = ActingNetwork(algorithm, weights, 5, "float32")
        settings = InferenceSettings(spec, 1000, envs)
        self.role = CpuInference("inference", self.request_server, acting, [queue.sink(0)], settings)
        self.stopped = False

    def run(self) -> None:
        waiter, idle = Waiter(0.0), os.eventfd(0)
        while not self.stopped:
            port = self.role.step()
            if port is not None:
                waiter.wait(port, idle, 0.05)
        self.role.close()


def test_a_recurrent_policy_over_the_wire_acts_as_it_does_in_process(tmp_path: Path) -> None:
    envs, steps = 4, 60
    here, there = (make_env("CartPole-v1", envs, 3, EnvOptions()) for _ in range(2))
    algorithm = VTrace(VTraceConfig(), here.spec, NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=8))
    flat = FlatParameters(algorithm.build_network())
    weights = FlatWeights("weights", flat.size, HeapBlock(*FlatWeights.footprint(flat.size)))
    weights.publish(flat.values.detach().numpy(), 0)
    policy = LocalPolicy(algorithm, weights, envs, 5)
    policy.refresh()
    server = Server(tmp_path, algorithm, weights, envs)
    server.start()
    request_client = GrpcRequestClient(Address.parse(f"unix:{tmp_path}/wire"), there.spec, 1, envs, Identity("test"))
    local, remote = here.reset(), there.reset()
    for _ in range(steps):
        action, _ = policy.act(local)
        write_request(request_client.env_groups[0].request, remote)
        request_client.env_groups[0].send()
        answered = reply(request_client, 0)
        assert np.array_equal(action, answered)
        local, remote = here.step(action), there.step(answered)
    request_client.close()
    server.stopped = True
    server.join(10)
    assert not server.is_alive()
