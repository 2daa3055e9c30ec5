"""Draw the return of runs against their steps and minutes.

    python -m benchmarks.plot_curve docs/results/figures/pong.png runs/impala-ALE-Pong-v5-1-…
    python -m benchmarks.plot_curve docs/results/figures/cartpole.png --evaluations kept/dqn-1 kept/dqn-2 kept/r2d2-1 …

With `--evaluations` it is the greedy policy's. Runs whose names differ in the last number alone have one colour.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--evaluations", action="store_true")
    arguments = parser.parse_args()
    name, what = ("charts/episodic_return", "mean return of 100 episodes")
    if arguments.evaluations:
        name, what = ("eval/episodic_return", "greedy return")
    figure, (by_step, by_minute) = plt.subplots(1, 2, figsize=(10, 3.5), sharey=True)
    colours: dict[str, str] = {}
    for run in arguments.runs:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        shown = [row for row in rows if row.get(name) is not None]
        if arguments.evaluations:  # each is told again until the next one
            shown = [row for before, row in zip([{}, *shown], shown, strict=False) if row[name] != before.get(name)]
        group = run.name.rpartition("-")[0] or run.name
        style = {"label": None if group in colours else group, "color": colours.setdefault(group, f"C{len(colours)}")}
        returns = [row[name] for row in shown]
        by_step.plot([row["step"] / 1e6 for row in shown], returns, **style)
        by_minute.plot([(row["time"] - rows[0]["time"]) / 60 for row in shown], returns, **style)
    by_step.set(xlabel="million agent steps", ylabel=what)
    by_minute.set(xlabel="minutes")
    for axes in (by_step, by_minute):
        axes.grid(alpha=0.3)
    if len(arguments.runs) > 1:
        by_step.legend()
    figure.tight_layout()
    figure.savefig(arguments.picture, dpi=90)


if __name__ == "__main__":
    main()
