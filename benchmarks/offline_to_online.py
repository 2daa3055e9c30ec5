"""Offline to online: does a policy from data reach the target in fewer env steps than one that begins from nothing?

    python -m benchmarks.offline_to_online --system td3 --env Pendulum-v1 --data DIR/replay --target -200

Per seed, `--system` learns from the data, then goes on with real envs and a share of each batch from data; and the same
system, and each of `--others`, begins from nothing. Printed are the env steps at the first greedy evaluation that
reaches the target, the score of the offline policy, the lowest score online, and after how many evaluations below the
offline score a run was back at it. With `--out`, a second call goes on where the first one was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import pappus
from pappus.ops.intervals import half_interval

Scores = list[tuple[int, float]]
"""Env steps, or updates, and the greedy return that was reached after them."""


def scores(run: Path) -> Scores:
    """The evaluations of a run, in their order. Lines repeat the last one until the next has ended."""
    found: dict[tuple[float, float], tuple[int, float]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if {"eval/step", "eval/episodic_return"} <= line.keys():
            began = (line["eval/step"], line["eval/seconds"])
            found[began] = (int(line["eval/step"]), float(line["eval/episodic_return"]))
    return list(found.values())


def runs(arguments: argparse.Namespace, seed: int, options: dict[str, Any]) -> dict[str, Scores]:
    """The scores of every run of a seed."""
    online = {
        "steps": arguments.steps, "seed": seed, "runtime": "inline",
        "evaluation": {"every_steps": arguments.every, "episodes": arguments.episodes},
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        first = pappus.train(
            f"{arguments.system}@offline", data=arguments.data, steps=arguments.updates, seed=seed,
            run_dir=Path(folder) / "offline",
            settings={"evaluation.every_steps": arguments.updates, "evaluation.episodes": 100, **options},
        )
        found = {"offline": scores(first.directory)}
        begun = {"init_from": first.directory, "data": arguments.data, "data_share": arguments.share}
        for name, system, more in (
            ("online", f"{arguments.system}@single", {**begun, **options}),
            ("scratch", f"{arguments.system}@single", options),
            *((other, other, {}) for other in arguments.others),
        ):
            result = pappus.train(system, arguments.env, settings={**online, **more}, run_dir=Path(folder) / name)
            found[name] = scores(result.directory)
            if result.summary.steps < arguments.steps:
                raise SystemExit(f"{name} with seed {seed} was stopped after {result.summary.steps} steps")
    return found


def reached(found: Scores, target: float) -> int | None:
    """Env steps at the first evaluation that reaches the target."""
    return next((step for step, score in found if score >= target), None)


def longest_dip(found: Scores, level: float) -> int:
    """The most evaluations one after the other that lie below a level."""
    longest = present = 0
    for _, score in found:
        present = present + 1 if score < level else 0
        longest = max(longest, present)
    return longest


def report(kept: dict[int, dict[str, Scores]], target: float) -> None:
    """A line per seed, and the mean number of steps where every seed reached the target."""
    names = [name for name in next(iter(kept.values())) if name != "offline"]
    for seed, found in kept.items():
        offline, online = found["offline"][-1][1], found["online"]
        steps = ", ".join(f"{name} {reached(found[name], target)}" for name in names)
        print(
            f"seed {seed}: offline {offline:.1f}; steps to {target:g}: {steps}; lowest online "
            f"{min(score for _, score in online):.1f}, evaluations below offline at most {longest_dip(online, offline)}"
        )
    for name in names:
        steps_of = [reached(found[name], target) for found in kept.values()]
        known = [float(steps) for steps in steps_of if steps is not None]
        spread = f"{mean(known):.0f} ± {half_interval(known):.0f} steps" if len(known) > 1 else ""
        print(f"{name:8} reached by {len(known)} of {len(steps_of)}  {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--system", default="td3", help="algorithm that learns from data, and goes on")
    parser.add_argument("--others", nargs="*", default=[], help="systems that begin from nothing, too")
    parser.add_argument("--target", type=float, default=-200.0)
    parser.add_argument("--share", type=float, default=0.5, help="of each batch, from data")
    parser.add_argument("--updates", type=int, default=10_000, help="from data")
    parser.add_argument("--steps", type=int, default=8_000, help="of the env")
    parser.add_argument("--every", type=int, default=1_000, help="steps between evaluations")
    parser.add_argument("--episodes", type=int, default=20, help="of an evaluation")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path, help="file of results")
    parser.add_argument("options", nargs="*", help="NAME=VALUE of further settings of the system")
    arguments = parser.parse_args()
    options = {name: json.loads(value) for name, value in (option.split("=", 1) for option in arguments.options)}
    lines = arguments.out.read_text().splitlines() if arguments.out and arguments.out.exists() else []
    kept: dict[int, dict[str, Scores]] = dict(map(json.loads, lines))
    for seed in arguments.seeds:
        if seed not in kept:
            kept[seed] = runs(arguments, seed, options)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps([seed, kept[seed]]) + "\n")
    report(kept, arguments.target)


if __name__ == "__main__":
    main()
