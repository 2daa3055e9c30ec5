"""Does it learn, from every seed, how fast, and does it stay learnt?

    python -m benchmarks.learning --env CartPole-v1 --target 475 --seeds 1 2 3 4 5
    python -m benchmarks.learning --env CartPole-v1 --target 475 --seeds 1 2 3 4 5 -- --core lstm
    python -m benchmarks.learning --env CartPole-v1 --target 475 --seeds 1 2 3 4 5 --stay 10

`--stay K` trains again, without a target, for K times the steps that were needed, and reports the lowest mean return
(over 100 episodes) after the target had been reached first. `--keep DIR` keeps the runs there, as SYSTEM-SEED, for
`benchmarks.plot_curve`. Words behind `--` are options of `pappus train`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def train(directory: Path, *words: str) -> dict[str, Any]:
    """The summary of one `pappus train`."""
    command = [sys.executable, "-m", "pappus", "train", *words, "--run-dir", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


def lowest_after(directory: Path, target: float) -> float:
    """The lowest mean return that was logged after the target had been reached first."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    returns = [row["charts/episodic_return"] for row in rows if row.get("charts/episodic_return") is not None]
    reached = next((i for i, value in enumerate(returns) if value >= target), None)
    return min(returns[reached:]) if reached is not None else float("-inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="impala")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--stay", type=int, default=0, metavar="K")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.system} on {arguments.env}: {arguments.target:g} {' '.join(arguments.options)}")
    for column in ("seed", "reached at step", "training s", "wall s", "steps/s", "greedy return", "lowest later"):
        table.add_column(column, justify="right")
    for seed in arguments.seeds:
        words = [arguments.system, "--env", arguments.env, "--seed", str(seed), *arguments.options]
        keep = arguments.keep
        with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory() as parent:
            run = Path(parent) / f"{arguments.system}-{seed}"
            summary = train(run, *words, "--target-return", str(arguments.target))
            lowest = "–"
            if arguments.stay and summary["solved_at_step"]:
                steps = str(arguments.stay * summary["solved_at_step"])
                train(run.with_suffix(".longer"), *words, "--steps", steps)
                lowest = f"{lowest_after(run.with_suffix('.longer'), arguments.target):.1f} of {int(steps):,} steps"
        reached = f"{summary['solved_at_step']:,}" if summary["solved_at_step"] else f"not in {summary['steps']:,}"
        table.add_row(
            str(seed), reached, f"{summary['train_seconds']:.1f}", f"{summary['wall_seconds']:.1f}",
            f"{summary['steps_per_second']:,.0f}", f"{summary['eval_return']:.1f}", lowest,
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
