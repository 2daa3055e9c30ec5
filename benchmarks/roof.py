"""What share of a GPU's roof does central inference reach? The roof and the system are measured in one call.

    python -m benchmarks.roof                              # the Nature CNN and the deep IMPALA network
    python -m benchmarks.roof --networks nature --seconds 30 --options "--actors 12"

A system that infers and trains on every step on one device makes at most 1 / (1/inference + 1/training) steps per
second. Both are measured alone, as captured graphs of our own networks in bfloat16, with the batches that the system
uses. The system is `seed-vtrace` on frames that cost nothing to make (`benchmarks.synthetic`), learning on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pappus.accelerator import WARMUP_CALLS, Accelerator, CapturedGraph
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import EnvOptions, NetworkConfig
from pappus.data.specs import spec_of
from pappus.networks.flat import FlatParameters

ENV = "benchmarks.synthetic:frames"
ENVS, UNROLL, BATCH = 2_048, 40, 256
"""Envs of the system, steps of an unroll and unrolls of a batch."""
INFERRED = 1_024
"""Envs that one forward pass answers."""
TIMES = 20


def per_second(work: Callable[[], Any], rows: int, accelerator: Accelerator) -> float:
    """Rows per second of work that is captured into a graph where the device has graphs."""
    captured = CapturedGraph(accelerator, work, print)
    for _ in range(WARMUP_CALLS + 2):
        captured()
    accelerator.wait()
    began = time.perf_counter()
    for _ in range(TIMES):
        captured()
    accelerator.wait()
    return TIMES * rows / (time.perf_counter() - began)


def roof(torso: str, device: str, inferred: int, trained: int) -> tuple[float, float]:
    """Steps per second of inference alone, and of training alone: stacks of frames that lie on the device."""
    accelerator = Accelerator(device)
    with accelerator.on(accelerator.stream()):
        config: Any = NetworkConfig(torso=torso)
        network: Any = VTrace(VTraceConfig(), spec_of(ENV, EnvOptions()), config).build_network()
        flat = FlatParameters(network, device=device)
        (parameters,) = flat.trainable()
        optimizer = torch.optim.Adam([parameters], 1e-4, fused=True, capturable=accelerator.real)
        shapes = ((1, rows, 4, 84, 84) for rows in (inferred, trained))
        seen, batch = (torch.randint(0, 255, shape, dtype=torch.uint8, device=device) for shape in shapes)

        def forward(stacks: torch.Tensor) -> Any:
            first = torch.zeros(stacks.shape[:2], dtype=torch.bool, device=device)
            with torch.autocast(accelerator.device.type, torch.bfloat16, cache_enabled=False):
                return network(stacks, first, (None, ()))

        @torch.no_grad()
        def infer() -> Any:
            return forward(seen).policy

        def train() -> None:
            flat.gradient.zero_()
            output = forward(batch)
            (output.policy.float().square().mean() + output.value.float().square().mean()).backward()
            optimizer.step()

        return per_second(infer, inferred, accelerator), per_second(train, trained, accelerator)


def measured(torso: str, seconds: float, options: list[str]) -> float:
    """Steps per second of the system, without its first half."""
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        words = [
            "seed-vtrace", "--env", ENV, "--network.torso", torso, "--steps", "1000000000", "--seconds", f"{seconds:g}",
            "--actors", "8", "--envs-per-actor", str(ENVS // 8), "--batch-size", str(BATCH), "--unroll-length",
            str(UNROLL), "--evaluation.max-seconds", "1", "--run-dir", str(run), *options,
        ]
        subprocess.run([sys.executable, "-m", "pappus", "train", *words], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"]]
    begin, end = rows[len(rows) // 2], rows[-1]
    return float((end["step"] - begin["step"]) / (end["time"] - begin["time"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["nature", "impala-deep"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--options", default="", help="further options of the system, in one word")
    arguments = parser.parse_args()
    options = ["--device", arguments.device, *arguments.options.split()]
    table = Table(title=f"steps per second, {ENVS} envs, updates of {BATCH * UNROLL:,} steps")
    for column in ("network", "inference", "training", "roof", "measured", "of the roof"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for torso in arguments.networks:
        inference, training = roof(torso, arguments.device, INFERRED, BATCH * UNROLL)
        both, reached = 1 / (1 / inference + 1 / training), measured(torso, arguments.seconds, options)
        figures = (inference, training, both, reached)
        table.add_row(torso, *(f"{figure:,.0f}" for figure in figures), f"{reached / both:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
