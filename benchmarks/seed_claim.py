"""SEED's claim: central inference costs less than networks in the actors, the more so the larger the network is.

    python -m benchmarks.seed_claim --env ALE/Pong-v5 --seconds 40
    python -m benchmarks.seed_claim --env benchmarks.synthetic:frames --seconds 20 --networks nature --chart claim.png

Runs `impala` and `seed-vtrace` in turn with the same network, envs and batches, and reports what a million frames (four
to a step) cost: cores, use of the GPU, and money at the prices given. The paper's table 3 compares the same (Espeholt
et al. 2019, section 4.2). Start and end of a run do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.time_to_score import GpuMeter
from pappus.config import NetworkConfig
from pappus.networks.build import build_actor_critic
from pappus.networks.modules import Encoder
from pappus.networks.torsos import ImpalaDeep
from pappus.telemetry.processes import usable_cores
from pappus.types import EnvSpec

FRAMES_PER_STEP = 4
SYSTEMS = ("impala", "seed-vtrace")
NETWORKS = {
    "nature": ["--network.torso", "nature"],
    "deep": ["--network.torso", "impala-deep"],
    "wide": ["--network.factory", "benchmarks.seed_claim:wide"],
}


class WideDeep(ImpalaDeep):
    """Four times as many planes: sixteen times the work."""

    planes = (64, 128, 128)


def wide(env: EnvSpec, config: NetworkConfig) -> nn.Module:
    """The usual actor-critic, with the wide torso."""
    network = build_actor_critic(env, NetworkConfig(torso="impala-deep"))
    stack = network.frame_stack
    assert stack is not None, "pictures that are stacked"
    network.torso = Encoder([WideDeep(stack.output_spec)], None)
    return network


@dataclass(frozen=True)
class Cost:
    """What one run took, per million frames."""

    steps_per_second: float
    cores: float
    gpu_use: float
    inference_ms: float
    bytes_per_step: float

    def seconds(self, share: float) -> float:
        """Seconds of something that is in use by this share, or this many of it, per million frames."""
        return share * 1e6 / FRAMES_PER_STEP / self.steps_per_second

    def money(self, core_hour: float, gpu_hour: float) -> float:
        """Price of a million frames, for the cores that computed and the whole GPU."""
        return self.seconds(self.cores * core_hour + gpu_hour) / 3600


def measure(words: list[str], directory: Path) -> Cost:
    """One run, without its first half: graphs are captured, and caches are warm."""
    command = [sys.executable, "-m", "pappus", "train", *words, "--run-dir", str(directory)]
    with GpuMeter() as meter:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows: list[dict[str, Any]] = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"]]
    begin, end = rows[len(rows) // 2], rows[-1]
    seconds, steps = end["time"] - begin["time"], end["step"] - begin["step"]
    summary = json.loads((directory / "summary.json").read_text())
    busiest = sorted(use for use, _ in meter.samples)[-max(1, int(seconds)) :]  # it idles at the start and at the end
    return Cost(
        steps / seconds, (end["cost/cpu_seconds"] - begin["cost/cpu_seconds"]) / seconds,
        sum(busiest) / max(1, len(busiest)), end.get("inference/batch_ms_p50", float("nan")),
        sum(summary["bytes_moved"].values()) / max(1, summary["steps"]),
    )


def draw(costs: dict[tuple[str, str], Cost], picture: Path) -> None:
    """Steps and core seconds by network, both systems side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    networks = list(dict.fromkeys(network for network, _ in costs))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for i, system in enumerate(SYSTEMS):
        places = [place + 0.4 * i - 0.2 for place in range(len(networks))]
        found = [costs[network, system] for network in networks]
        axes[0].bar(places, [cost.steps_per_second for cost in found], 0.4, label=system)
        axes[1].bar(places, [cost.seconds(cost.cores) for cost in found], 0.4, label=system)
    axes[0].set(ylabel="steps/s", yscale="log")
    axes[1].set(ylabel="core seconds per million frames", yscale="log")
    for axis in axes:
        axis.set_xticks(range(len(networks)), networks)
        axis.grid(alpha=0.3, axis="y")
    axes[1].legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--core-hour", type=float, default=0.04, help="dollars for an hour of one core")
    parser.add_argument("--gpu-hour", type=float, default=3.0, help="dollars for an hour of the GPU")
    parser.add_argument("--actors", type=int, default=max(1, usable_cores() - 2))
    parser.add_argument("--envs-per-actor", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--options", default="", help="further options of all runs, in one word")
    parser.add_argument("--chart", type=Path, help="a picture of steps/s and core seconds")
    arguments = parser.parse_args()
    sizes = ["--actors", str(arguments.actors), "--envs-per-actor", str(arguments.envs_per_actor)]
    sizes += ["--batch-size", str(arguments.batch_size)]
    prices = f"per million frames, a core hour at ${arguments.core_hour:g}, a GPU hour at ${arguments.gpu_hour:g}"
    table = Table(title=f"{arguments.env}: {prices}")
    costs = ("core s", "GPU s in use", "$")
    for column in ("network", "system", "steps/s", "cores", "GPU %", "inference ms", "bytes/step", *costs):
        table.add_column(column, justify="left" if column in ("network", "system") else "right")
    found: dict[tuple[str, str], Cost] = {}
    for network, system in product(arguments.networks, SYSTEMS):
        with tempfile.TemporaryDirectory() as parent:
            words = [system, "--env", arguments.env, "--seconds", f"{arguments.seconds:g}", "--steps", "1000000000"]
            words += ["--evaluation.max-seconds", "1", *sizes, *NETWORKS[network], *arguments.options.split()]
            cost = found[network, system] = measure(words, Path(parent) / "run")
        table.add_row(
            network, system, f"{cost.steps_per_second:,.0f}", f"{cost.cores:.1f}", f"{cost.gpu_use:.0f}",
            f"{cost.inference_ms:.2f}", f"{cost.bytes_per_step:,.0f}", f"{cost.seconds(cost.cores):,.0f}",
            f"{cost.seconds(cost.gpu_use / 100):,.1f}", f"{cost.money(arguments.core_hour, arguments.gpu_hour):.3f}",
        )
    Console(width=120).print(table)
    if arguments.chart is not None:
        draw(found, arguments.chart)


if __name__ == "__main__":
    main()
