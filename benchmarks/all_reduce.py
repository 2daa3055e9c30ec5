"""What does it cost that the gradients of two learners meet, and what could be gained by doing it during the backward
pass?

    python -m benchmarks.all_reduce
    python -m benchmarks.all_reduce --networks nature --rounds 300

Two processes, one thread each, repeat the all-reduce of buffers of the network's size; the fastest tenth counts. The
gradient is computed by one process alone and measured in CPU time, so that other load hardly matters. Overlapping them
could at best hide the shorter of the two: the last column is the longer one as a share of their sum.
"""

from __future__ import annotations

import argparse
import multiprocessing
import select
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.queue import RingQueue
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import UnrollTraining
from pappus.telemetry.metrics import Metrics
from pappus.transports.memory import HeapBlock, SharedBlock
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, leaves_of, unroll_spec

BACKENDS = ("memory", "gloo")
WARM_UP = 10
VECTOR, PICTURE = EnvSpec(ArraySpec((4,), "float32"), DiscreteAction(2)), EnvSpec(
    ArraySpec((84, 84), "uint8"), DiscreteAction(6), frame_stack=4
)
NETWORKS: dict[str, tuple[EnvSpec, NetworkConfig, int, int]] = {
    "mlp 2×64": (VECTOR, NetworkConfig(), 20, 64),
    "mlp 2×2048": (VECTOR, NetworkConfig(hidden_sizes=(2048, 2048)), 20, 64),
    "nature": (PICTURE, NetworkConfig(torso="nature"), 10, 16),
    "impala-deep": (PICTURE, NetworkConfig(torso="impala-deep"), 10, 16),
}
"""Env, network, unroll length and envs: the last two are the presets'."""


def gradient_seconds(env: EnvSpec, network: NetworkConfig, length: int, envs: int, rounds: int) -> tuple[float, int]:
    """Of one gradient, and how many parameters it has."""
    algorithm = VTrace(VTraceConfig(), env, network)
    built: Any = algorithm.build_network()
    spec = unroll_spec(env, algorithm.behaviour, built.state_spec, length, envs)
    queue = RingQueue("unrolls", spec, 1, 1, HeapBlock(*RingQueue.footprint(spec, 1, 1)))
    slot, random = queue.rings[0].slots[0], np.random.default_rng(0)
    for leaf in leaves_of(slot):
        leaf[...] = random.integers(0, 2, leaf.shape)
    slot.behaviour["log_prob"][:] = -1.0
    queue.sink(0).commit()
    gradient = GradientStep(Metrics("learner"), algorithm, LearnerSettings(OptimizerConfig(), 10**9, 1))
    gradient.objective = training = UnrollTraining(algorithm, queue.source(), gradient, 1)
    training.take()
    seconds = []
    for _ in range(WARM_UP + rounds):
        start = time.process_time()
        gradient.backward()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds[WARM_UP:])), gradient.flat.num_parameters


def meet(all_reduce: Any, index: int, size: int, rounds: int, answer: Any) -> None:
    """One member's rounds; the seconds of one of them."""
    torch.set_num_threads(1)
    member, flat = all_reduce.member(index), torch.zeros(size)
    seconds = []
    for _ in range(WARM_UP + rounds):
        start = time.perf_counter()
        member.bring(flat)
        while not member.collect(flat):
            select.select([member.fileno()], [], [])
            member.clear()
        seconds.append(time.perf_counter() - start)
    answer.put(float(np.percentile(seconds[WARM_UP:], 10)))


def all_reduce_seconds(backend: str, size: int, rounds: int) -> float:
    """Of one all-reduce of two processes."""
    edge = AllReduceEdge("others", 2, size, backend)
    block = edge.new_block(SharedBlock.create)
    all_reduce = edge.open(block)
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    members = [context.Process(target=meet, args=(all_reduce, i, size, rounds, answer)) for i in range(2)]
    for process in members:
        process.start()
    seconds = [answer.get() for _ in members]
    for process in members:
        process.join()
    block.close()
    return max(seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("network", "parameters", "gradient ms", *(f"{name} ms" for name in BACKENDS), "overlapped / not")
    for name in arguments.networks:
        gradient, size = gradient_seconds(*NETWORKS[name], arguments.rounds)
        memory_all_reduce = [all_reduce_seconds(backend, size, arguments.rounds) for backend in BACKENDS]
        best = max(gradient, min(memory_all_reduce)) / (gradient + min(memory_all_reduce))
        numbers = [f"{1e3 * seconds:.2f}" for seconds in (gradient, *memory_all_reduce)]
        table.add_row(name, f"{size:,}", *numbers, f"{best:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
