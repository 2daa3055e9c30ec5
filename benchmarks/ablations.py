"""Do the parts of Ape-X and R2D2 matter, and in the right direction?

    python -m benchmarks.ablations                     # all three, three seeds each, in one thread per run
    python -m benchmarks.ablations priorities --seeds 1 2 3 4 5 --jobs 2

    priorities   a blind cliff walk that is explored at random, so that one transition in 16,000 has a reward:
                 prioritized against uniform replay
    actors       a longer one with milestones: 1, 4 and 8 actors of the ε ladder with the same learner
    memory       a cue must be named 10 steps later, from sequences of 10 of which the last begins right behind the cue:
                 stored state and burn-in against zero state

What is measured is the number of updates until it is learnt. Every run is deterministic (inline runtime). Results go
into a table, and with --plot FILE into a picture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Ablation:
    """Variants of one run, and what is measured of each."""

    title: str
    system: str
    env: str
    target: float
    shared: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]


WHAT = "updates until learnt"
CLIFF = {
    "runtime": "inline", "envs_per_actor": 1, "batch_size": 32, "algorithm.n_step": 1, "algorithm.target_every": 100,
    "topology.replay.warm_up": 200, "topology.replay.capacity": 20_000, "evaluation.every_steps": 500,
    "evaluation.episodes": 1, "optimizer.learning_rate": 1e-3,
}
RECALL = {
    "runtime": "inline", "env_options.kwargs": {"delay": 10}, "algorithm.length": 10, "algorithm.period": 1,
    "algorithm.n_step": 10, "batch_size": 32, "algorithm.target_every": 100, "topology.replay.samples_per_insert": 16,
    "topology.replay.capacity": 2_000, "steps": 100_000, "evaluation.every_steps": 2_500, "evaluation.episodes": 100,
}
ABLATIONS = {
    "priorities": Ablation(
        "prioritized against uniform replay, blind cliff walk of 13", "apex-dqn", "tests.envs.sparse_envs:cliff", 0.99,
        {
            **CLIFF, "env_options.kwargs": {"length": 13}, "envs_per_actor": 8, "steps": 400_000,
            "algorithm.target_every": 20, "topology.replay.samples_per_insert": 1, "topology.replay.capacity": 100_000,
            "algorithm.epsilon.schedule": "linear", "algorithm.epsilon.end": 1.0,
        },
        {"prioritized": {}, "uniform": {"topology.replay.priority_exponent": 0.0}},
    ),
    "actors": Ablation(
        "actors on the ladder, cliff walk of 32 with milestones", "apex-dqn", "tests.envs.sparse_envs:cliff", 3.9,
        {**CLIFF, "env_options.kwargs": {"length": 32, "every": 8}, "algorithm.target_every": 20},
        {
            f"{actors} actor{'s' * (actors > 1)}": {
                "actors": actors, "topology.replay.samples_per_insert": 16 / actors, "steps": 60_000 * actors,
                "evaluation.every_steps": 200 * actors,  # a look every 100 updates, 30,000 of which there may be
            }
            for actors in (1, 4, 8)
        },
    ),
    "memory": Ablation(
        "where sequences begin, a cue named 10 steps later", "r2d2", "tests.envs.memory_envs:delayed_recall", 0.97,
        RECALL,
        {
            "stored state, burn-in": {"algorithm.burn_in": 1},
            "stored state, no burn-in": {"algorithm.burn_in": 0},
            "zero state, burn-in": {"algorithm.burn_in": 1, "algorithm.stored_state": False},
            "zero state, no burn-in": {"algorithm.burn_in": 0, "algorithm.stored_state": False},
        },
    ),
}


def run(ablation: Ablation, variant: str, seed: int) -> dict[str, Any]:
    """The summary of one run."""
    settings = {**ablation.shared, **ablation.variants[variant], "seed": seed, "target_return": ablation.target}
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        command = [sys.executable, "-m", "pappus", "train", ablation.system, "--env", ablation.env]
        subprocess.run([*command, *_words(settings), "--run-dir", str(directory)], check=True, capture_output=True)
        summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
        return summary


def _words(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            head, _, last = option.rpartition(".")
            words.append(option if value else f"{head}.no-{last}")
        elif isinstance(value, Mapping):
            words += [option, *(str(word) for pair in value.items() for word in pair)]
        else:
            words += [option, str(value)]
    return words


def updates_needed(summary: Mapping[str, Any]) -> float:
    """Infinity where the target was not reached."""
    return float(summary["updates"]) if summary["solved_at_step"] is not None else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*ABLATIONS, []], help="which (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--plot", metavar="FILE", help="draw the results into this picture")
    arguments = parser.parse_args()
    found = {}
    for name in arguments.names or ABLATIONS:
        ablation = ABLATIONS[name]
        tasks = [(variant, seed) for variant in ablation.variants for seed in arguments.seeds]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            values = list(pool.map(lambda task, a=ablation: updates_needed(run(a, *task)), tasks))  # type: ignore[misc]
        found[name] = {
            variant: [value for (which, _), value in zip(tasks, values, strict=True) if which == variant]
            for variant in ablation.variants
        }
        Console(width=120).print(_grid(ablation, found[name], arguments.seeds))
    if arguments.plot:
        plot(found, Path(arguments.plot))


def _grid(ablation: Ablation, results: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> Table:
    grid = Table(title=f"{ablation.title}: {WHAT}")
    for column in ("variant", *(f"seed {seed}" for seed in seeds), "median"):
        grid.add_column(column, justify="left" if column == "variant" else "right")
    for variant, values in results.items():
        grid.add_row(variant, *(f"{value:,.2f}".removesuffix(".00") for value in (*values, float(np.median(values)))))
    return grid


def plot(found: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """A panel for each ablation, a dot for each run, a cross where the target was not reached; a bar at the median."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(found), figsize=(4.5 * len(found), 3.2), squeeze=False)
    for panel, (name, results) in zip(panels[0], found.items(), strict=True):
        most = max((value for values in results.values() for value in values if np.isfinite(value)), default=1.0)
        for row, values in enumerate(results.values()):
            shown = [value if np.isfinite(value) else 1.15 * most for value in values]
            for value, at in zip(values, shown, strict=True):
                panel.plot(at, row, "o" if np.isfinite(value) else "x", color=f"C{row}")
            panel.plot(np.median(shown), row, "k|", markersize=16)
        panel.set_yticks(range(len(results)), list(results))
        panel.invert_yaxis()
        panel.set_title(ABLATIONS[name].title, fontsize=8)
        panel.set_xlabel(WHAT)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
