"""Do the costs that a run reports equal what the kernel says, and does a budget end it in time?

    python -m benchmarks.cost [--seconds 20] [--cases "impala;budget"]
    python -m benchmarks.cost --gpu [--seconds 40]

Every run is a command below this process, which adopts its orphans (PR_SET_CHILD_SUBREAPER) and adds up what the kernel
says (`wait4`) of the command, of all that it waited for, and of each orphan. The reported CPU seconds are those of
summary.json; they end a moment before the command does. The peak of memory is compared with the highest sum of the
processes' shares (PSS) that a look every 50 ms has seen. With `--gpu`, energy and busy seconds of the GPU, which the
run has for itself, are compared with what NVML tells this process: its counter before and after the command, and its
utilization every 20 ms.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from pappus.telemetry.nvml import Gpus, find_gpus
from pappus.telemetry.process_tree import held_bytes
from pappus.telemetry.usage import descendants

SUBREAPER = 36
LOOK_SECONDS, GPU_LOOK_SECONDS = 0.05, 0.02
COMPUTES = "import sys\nfor line in sys.stdin:\n    sum(range(20_000))\n    print(flush=True)\n"
"""What the child process of an env does for every step."""


class EnvWithChild(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole, of which each step has a child process compute."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._child = subprocess.Popen([sys.executable, "-c", COMPUTES], text=True, **pipes)

    def step(self, action: Any) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        self._child.stdout.readline()
        return super().step(action)

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        super().close()


def env_of_processes(env: str, num_envs: int) -> gym.vector.AsyncVectorEnv:
    """Envs in processes of their own."""
    return gym.vector.AsyncVectorEnv([lambda: gym.make(env)] * num_envs)


@dataclass(frozen=True)
class Case:
    """A run, and who is killed in it."""

    words: Sequence[str]
    kills: str = ""


CARTPOLE, CHILD = ("--env", "CartPole-v1"), ("--env", "benchmarks.cost:EnvWithChild", "--envs-per-actor", "4")
CASES = {
    "impala": Case(("impala", *CARTPOLE)),
    "apex-dqn": Case(("apex-dqn", *CARTPOLE, "--actors", "2")),
    "ppo, one thread": Case(("ppo", *CARTPOLE, "--runtime", "inline")),
    "impala, an actor is killed": Case(("impala", *CARTPOLE, "--actors", "2"), "pappus actor-0"),
    "envs with child processes": Case(("impala", *CHILD)),
    "… and their actor is killed": Case(("impala", *CHILD, "--actors", "2"), "pappus actor-0"),
    "the same in one thread": Case(("ppo", *CHILD, "--runtime", "inline")),
}
BUDGETS = {
    "budget": Case(("impala", *CARTPOLE)),
    "budget, one thread": Case(("ppo", *CARTPOLE, "--runtime", "inline")),
    "budget of money": Case(("apex-dqn", *CARTPOLE, "--price", "core-hour=1,gb=0.01")),
}


FRAMES = ("--env", "benchmarks.synthetic:frames", "--device", "cuda")
GPU_CASES = {"impala": Case(("impala", *FRAMES)), "seed-vtrace": Case(("seed-vtrace", *FRAMES))}


@dataclass(frozen=True)
class Measured:
    """What the kernel says of a command, and what its run does."""

    cpu_seconds: float
    peak: int
    wall_seconds: float
    cost: dict[str, Any]
    exit_reason: str


def measured(words: Sequence[str], kills: str = "", kill_after: float = 0.0) -> Measured:
    """Run `pappus train` and wait for all that it leaves."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--run-dir", f"{folder}/run", "--steps", "1000000000"]
        command = [sys.executable, "-m", "pappus", "train", *words, *options]
        before, began = _waited(), time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peaks = [0]
        threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True).start()
        if kills:
            _kill_one(process.pid, kills, began + kill_after)
        process.wait()
        wall = time.monotonic() - began
        _wait_for_orphans()
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
        return Measured(_waited() - before, peaks[0], wall, summary["cost"], summary["exit_reason"])


def _waited() -> float:
    """CPU seconds of all children that this process has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_for_orphans() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _watch(pid: int, peaks: list[int]) -> None:
    while below := [pid, *descendants(pid)]:
        sizes = [held_bytes(one) for one in below]
        if not sizes[0]:
            return
        peaks[0] = max(peaks[0], sum(sizes))
        time.sleep(LOOK_SECONDS)


class GpuWatch(threading.Thread):
    """What NVML says of the first GPU from its start until `stop`."""

    def __init__(self, gpus: Gpus) -> None:
        super().__init__(daemon=True)
        self._gpus, self._over = gpus, threading.Event()
        self.busy_seconds, self._joules = 0.0, gpus.joules() or 0.0

    def run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(GPU_LOOK_SECONDS):
            now = time.monotonic()
            self.busy_seconds += (now - before) * (self._gpus.utilization() or 0.0)
            before = now

    def stop(self) -> float:
        """Joules since it was made."""
        self._over.set()
        self.join()
        return (self._gpus.joules() or 0.0) - self._joules


def gpu_costs(seconds: float) -> Iterator[list[str]]:
    """A row for each run of `seconds` with a GPU."""
    gpus = find_gpus([0])
    if gpus is None:
        raise SystemExit("--gpu needs a GPU that NVML knows; leave it out on this machine")
    for name, case in GPU_CASES.items():
        watch = GpuWatch(gpus)
        watch.start()
        found = measured([*case.words, "--seconds", str(seconds)])
        joules = watch.stop()
        ours = [found.cost[what] for what in ("cpu_seconds", "gpu_seconds", "joules")]
        pairs = zip((found.cpu_seconds, watch.busy_seconds, joules), ours, strict=True)
        cells = ([f"{told:.1f}", f"{own:.1f}", f"{own / told:.3f}"] for told, own in pairs)
        yield [name, *(cell for row in cells for cell in row)]


def _kill_one(pid: int, title: str, at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
    for one in descendants(pid):
        if Path(f"/proc/{one}/cmdline").read_bytes().rstrip(b"\0").decode() == title:
            os.kill(one, signal.SIGKILL)
            return
    raise SystemExit(f"there is no process {title!r} to kill")


def costs(cases: Sequence[str], seconds: float) -> Iterator[list[str]]:
    """A row for each run of `seconds`."""
    for name in cases:
        case = CASES[name]
        found = measured([*case.words, "--seconds", str(seconds)], case.kills, kill_after=seconds / 2 + 5)
        cpu, peak = found.cost["cpu_seconds"], found.cost["peak_memory_bytes"]
        yield [
            name, f"{found.cpu_seconds:.2f}", f"{cpu:.2f}", f"{cpu / found.cpu_seconds:.3f}",
            f"{found.peak / 2**20:.0f}", f"{peak / 2**20:.0f}", f"{peak / found.peak:.3f}",
        ]


def budgets(cases: Sequence[str], seconds: float) -> Iterator[list[str]]:
    """A row for each run with a budget of about `seconds` of both cores."""
    for name in cases:
        case, cores = BUDGETS[name], 1 if "inline" in BUDGETS[name].words else 1.7
        limit = cores * seconds / 3600
        unit = "money" if "--price" in case.words else "core-hours"
        found = measured([*case.words, "--budget", f"{unit}={limit:.5f}"])
        spent, after = found.cost["budget"][unit], found.cost["after_training"]["core_hours"]
        by_kernel = found.cpu_seconds / 3600 - after if unit == "core-hours" else float("nan")
        yield [
            name, found.exit_reason, f"{found.wall_seconds:.0f}", f"{limit:.5f}", f"{spent['spent'] / limit:.4f}",
            f"{by_kernel / limit:.4f}", f"{after * 3600:.1f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of training in each run")
    parser.add_argument("--cases", default="", help="some of them, by how they begin, such as impala;budget")
    parser.add_argument("--gpu", action="store_true", help="GPU seconds and energy instead")
    arguments = parser.parse_args()
    if arguments.gpu:
        heads = ["run"]
        for what in ("CPU s", "GPU s", "J"):
            heads += [f"kernel or NVML, {what}", f"reported, {what}", f"{what}, ratio"]
        _table(heads, lambda: gpu_costs(arguments.seconds))
        return

    def chosen(names: dict[str, Case]) -> list[str]:
        asked = arguments.cases.split(";") if arguments.cases else [""]
        return [name for name in names if any(name.startswith(one) for one in asked)]

    heads = [
        "run", "kernel, CPU s", "reported, CPU s", "CPU, ratio", "looked, MiB", "reported, MiB", "memory, ratio"
    ]
    _table(heads, lambda: costs(chosen(CASES), arguments.seconds))
    heads = ["run", "ended as", "s", "limit", "reported / limit", "kernel / limit", "after training, CPU s"]
    _table(heads, lambda: budgets(chosen(BUDGETS), max(30.0, arguments.seconds)))


def _table(heads: Sequence[str], rows: Callable[[], Iterator[list[str]]]) -> None:
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)
    for row in rows():
        print(f"| {' | '.join(row)} |", flush=True)
    print()


if __name__ == "__main__":
    np.random.seed(0)
    main()
