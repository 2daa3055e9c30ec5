"""How long does an env wait for its action? SEED's comparison (Espeholt et al. 2019, section 4): a network in every
actor against one for all, over shared memory and over gRPC.

    python -m benchmarks.inference_latency
    python -m benchmarks.inference_latency --torsos mlp nature --actors 1 2 --seconds 3

Each actor has 16 synthetic envs in one env group and steps them as fast as it gets actions; nobody learns. The
overhead is the latency less the forward pass itself; beside it stand a bare eventfd ping and a bare gRPC echo of the
same sizes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.synthetic import frames, vectors
from pappus.accelerator import one_thread
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import EnvOptions, NetworkConfig, WireConfig
from pappus.edges.calls import SharedCalls
from pappus.edges.weights import FlatWeights
from pappus.envs.vector import make_env
from pappus.networks.flat import FlatParameters
from pappus.roles.acting import ActingNetwork, LocalPolicy
from pappus.roles.cpu_inference import CpuInference
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.seed_actor import write_request
from pappus.runtimes.waiting import Waiter, spin_for
from pappus.telemetry.processes import usable_cores
from pappus.transports.addresses import Address
from pappus.transports.memory import HeapBlock, SharedBlock
from pappus.types import Unroll, map_leaves, request_spec, unroll_spec

ENVS = 16
UNROLL = 20
WARMUP = 0.2
"""Share of the samples that is left out at the start."""
FORK = multiprocessing.get_context("fork")
PATHS = ("local", "shared memory", "gRPC, unix socket", "gRPC, TCP")


class Bin:
    """A sink that throws everything away."""

    name = "bin"

    def __init__(self, spec: Unroll) -> None:
        self._slot: Unroll = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)

    def acquire(self) -> Unroll:
        return self._slot

    def commit(self) -> None: ...

    def explain(self) -> str:
        return "always ready"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


class Timed(ActingNetwork):
    """Remembers how long its forward passes took."""

    def infer(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        result = super().infer(*arguments)
        self.seconds.append(time.perf_counter() - start)
        return result

    seconds: list[float]


class Bench:
    """One network and one kind of env."""

    def __init__(self, torso: str) -> None:
        self.make = vectors if torso == "mlp" else frames
        env = make_env(self.make, 1, 1, EnvOptions())
        self.spec = env.spec
        self.algorithm = VTrace(VTraceConfig(), env.spec, NetworkConfig(torso=torso))  # type: ignore[arg-type]
        network: Any = self.algorithm.build_network()
        self.state_spec = network.state_spec
        flat = FlatParameters(network)
        self.weights = FlatWeights("weights", flat.size, HeapBlock(*FlatWeights.footprint(flat.size)))
        self.weights.publish(flat.values.detach().numpy(), 0)

    def unrolls(self, num_envs: int) -> Unroll:
        return unroll_spec(self.spec, self.algorithm.behaviour, self.state_spec, UNROLL, num_envs)

    def measure(self, path: str, actors: int, seconds: float) -> tuple[list[float], list[float]]:
        """Latencies, and seconds of forward passes."""
        return self.local(actors, seconds) if path == "local" else self.central(path, actors, seconds)

    def local(self, actors: int, seconds: float) -> tuple[list[float], list[float]]:
        """Latencies of policies that live with their envs: the forward pass and nothing else."""

        def act(index: int, results: Connection) -> None:
            env = make_env(self.make, ENVS, index, EnvOptions())
            policy = LocalPolicy(self.algorithm, self.weights, ENVS, index)
            policy.refresh()
            timestep, latencies = env.reset(), []
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                start = time.perf_counter()
                action, _ = policy.act(timestep)
                latencies.append(time.perf_counter() - start)
                timestep = env.step(action)
            results.send(latencies)

        latencies = [latency for part in collect(act, actors, lambda: None) for latency in part]
        return latencies, latencies

    def central(self, path: str, actors: int, seconds: float) -> tuple[list[float], list[float]]:
        """Latencies of env groups, and seconds of the forward passes that served them."""
        request = map_leaves(lambda leaf: leaf.prefixed(ENVS), request_spec(self.spec))
        reply = self.spec.action.array.prefixed(ENVS)
        block = SharedBlock.create(*SharedCalls.footprint(request, reply, actors, 1))
        calls = SharedCalls("inference", request, reply, actors, 1, block)
        with tempfile.TemporaryDirectory() as folder:
            listen = f"unix:{folder}/wire" if "unix" in path else "127.0.0.1:0"
            address = FORK.Queue()

            def act(index: int, results: Connection) -> None:
                waiter = Waiter(spin_for(actors + 1, usable_cores()))
                results.send(self._act(index, seconds, self._request_client(path, calls, index, address), waiter))

            network = Timed(self.algorithm, self.weights, 1, "float32")
            network.seconds = []

            def serve() -> Callable[[], None]:
                """Begun when all children are forked: gRPC does not survive a fork."""
                request_server: Any = calls.server()
                if path.startswith("gRPC"):
                    from pappus.transports.grpc_request_server import GrpcRequestServer

                    request_server = GrpcRequestServer(
                        "inference", WireConfig(listen=listen), request_spec(self.spec), self.spec.action.array,
                        self.spec.action.choices, "latency", calls.asked,
                    )
                    for _ in range(actors):
                        address.put(request_server.address)
                settings = InferenceSettings(self.unrolls, UNROLL, ENVS)
                server = CpuInference("inference", request_server, network, [Bin(self.unrolls(ENVS))], settings)  # type: ignore[arg-type]

                waiter, idle = Waiter(spin_for(actors + 1, usable_cores())), os.eventfd(0)

                def step() -> None:
                    port = server.step()
                    if port is not None:
                        waiter.wait(port, idle, 0.05)

                return step

            parts = collect(act, actors, serve)
        return [latency for part in parts for latency in part], network.seconds

    def _request_client(self, path: str, calls: SharedCalls, index: int, address: Any) -> Any:
        if not path.startswith("gRPC"):
            return calls.client(index)
        from pappus.transports.grpc_request_client import GrpcRequestClient, Identity

        prefix = "tcp:" if "TCP" in path else ""
        return GrpcRequestClient(Address.parse(prefix + address.get()), self.spec, 1, ENVS, Identity(f"actor-{index}"))

    def _act(self, index: int, seconds: float, request_client: Any, waiter: Waiter) -> list[float]:
        env = make_env(self.make, ENVS, index, EnvOptions())
        (env_group,), latencies = request_client.env_groups, list[float]()
        timestep = env.reset()
        env_group.open()
        begin, deadline, idle = 0.0, 0.0, os.eventfd(0)
        while not begin or time.perf_counter() < deadline:
            start = time.perf_counter()
            write_request(env_group.request, timestep)
            env_group.send()
            while (action := env_group.reply()) is None:
                waiter.wait(request_client, idle, 1.0)
            latencies.append(time.perf_counter() - start)
            begin, deadline = (begin, deadline) if begin else (start, time.perf_counter() + seconds)
            timestep = env.step(np.array(action))
        if hasattr(request_client, "close"):
            request_client.close()
        return latencies


def collect(act: Callable[[int, Connection], None], actors: int, serve: Callable[[], Any]) -> list[list[float]]:
    """What every actor measured, while this process serves them."""
    pipes = [FORK.Pipe(duplex=False) for _ in range(actors)]
    processes = [FORK.Process(target=act, args=(i, send)) for i, (_, send) in enumerate(pipes)]
    for process in processes:
        process.start()
    step, results = serve(), list[list[float]]()
    waiting = [receive for receive, _ in pipes]
    while waiting:
        if step is not None:
            step()
        for receive in list(waiting):
            if receive.poll(0 if step is not None else 0.1):
                latencies = receive.recv()
                results.append(latencies[int(WARMUP * len(latencies)) :])
                waiting.remove(receive)
    for process in processes:
        process.join()
    return results


def eventfd_ping(nbytes: int, count: int = 20_000) -> float:
    """Median seconds of waking another process with nbytes, and being woken by it."""
    block = SharedBlock.create(nbytes, 2)
    there, back = block.notifiers
    payload = np.ones(nbytes, np.uint8)

    def echo() -> None:
        for _ in range(count):
            select.select([there.fileno()], [], [])
            there.clear()
            back.notify()

    process = FORK.Process(target=echo)
    process.start()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        block.memory[:] = payload
        there.notify()
        select.select([back.fileno()], [], [])
        back.clear()
        times.append(time.perf_counter() - start)
    process.join()
    return float(np.median(times))


def grpc_echo(nbytes: int, listen: str, count: int = 3000) -> float:
    """Median seconds of a bare gRPC round trip of nbytes there and 128 bytes back, in another process."""
    address = FORK.Queue()

    def echo() -> None:
        import asyncio

        import grpc.aio

        async def act(_: Any, context: Any) -> None:
            while (await context.read()) is not grpc.aio.EOF:
                await context.write(bytes(128))

        async def serve() -> None:
            server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
            handler = grpc.stream_stream_rpc_method_handler(act)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Act": handler}),))
            port = server.add_insecure_port(listen)
            await server.start()
            address.put(listen if listen.startswith("unix") else f"127.0.0.1:{port}")
            await server.wait_for_termination()

        asyncio.run(serve())

    process = FORK.Process(target=echo, daemon=True)
    process.start()
    receive, send = FORK.Pipe(duplex=False)

    def ask() -> None:
        import grpc

        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = grpc.insecure_channel(address.get()).stream_stream("/echo.Echo/Act")(iter(outgoing.get, None))
        message, times = bytes(nbytes), []
        for _ in range(count):
            start = time.perf_counter()
            outgoing.put(message)
            next(stream)
            times.append(time.perf_counter() - start)
        send.send(float(np.median(times)))
        os._exit(0)

    FORK.Process(target=ask).start()
    median = float(receive.recv())
    process.terminate()
    process.join()
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torsos", nargs="+", default=["mlp", "nature", "impala-deep"])
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    threading.excepthook = lambda hook: None  # reader threads of finished clients
    console, baselines = Console(width=130), Table(title="bare round trips, µs")
    for column in ("bytes", "eventfd ping", "gRPC echo, unix", "gRPC echo, TCP"):
        baselines.add_column(column, justify="right")
    table = Table(title=f"{ENVS} envs per actor, µs per step of all of them")
    for column in ("torso", "actors", "path", "p50", "p99", "forward p50", "overhead p50", "steps/s"):
        table.add_column(column, justify="left" if column in ("torso", "path") else "right", no_wrap=True)
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        for nbytes in (ENVS * 34, ENVS * (84 * 84 + 18)):
            echo = [grpc_echo(nbytes, listen) for listen in (f"unix:{folder}/{nbytes}", "127.0.0.1:0")]
            figures = (eventfd_ping(nbytes), *echo)
            baselines.add_row(f"{nbytes:,}", *(f"{1e6 * figure:.0f}" for figure in figures))
        console.print(baselines)
        for torso in arguments.torsos:
            bench = Bench(torso)
            for actors in arguments.actors:
                for path in arguments.paths:
                    latencies, forward = bench.measure(path, actors, arguments.seconds)
                    p50, p99 = (1e6 * float(np.percentile(latencies, q)) for q in (50, 99))
                    middle = 1e6 * float(np.median(forward[len(forward) // 5 :]))
                    rate = ENVS * len(latencies) / ((1 - WARMUP) * arguments.seconds)
                    table.add_row(
                        torso, str(actors), path, f"{p50:,.0f}", f"{p99:,.0f}", f"{middle:,.0f}",
                        f"{p50 - middle:,.0f}", f"{rate:,.0f}",
                    )
    console.print(table)
    with suppress(OSError):
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        console.print(f"commit {commit or 'unknown'}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
