"""Do offline systems stand to each other, and to the policies behind the data, as they must?

    python -m benchmarks.offline_data cartpole DIR
    python -m benchmarks.offline_relations --data DIR/replay DIR/medium DIR/expert --steps 5000 --out DIR/results.jsonl

Every system learns from every data set with every seed, for the same number of updates. A table shows returns of the
last greedy evaluation, mean ± half of the 95 % interval, and updates per second. Relations between systems of the run
are judged: they hold, fail, or are open where the interval of the difference contains 0, and the runs of one side do
not all lie above those of the other, which five of each do by chance once in 252 times. With `--out`, a second call
goes on where the first one was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pappus
from pappus.data.dataset import lengths_and_returns, open_dataset
from pappus.ops.intervals import half_interval

BEHAVIOUR = "behaviour"
"""In relations: the mean return of the data."""
RARE = 100
"""Orders of the runs of both sides, of which one alone has all of one side above all of the other."""
SYSTEMS = ("bc", "filtered-bc", "cql-dqn", "dqn@offline")


class Relation(NamedTuple):
    """What must hold on a data set."""

    data: str
    better: str
    worse: str
    strictly: bool = True
    """Above; otherwise, not below."""


RELATIONS = (
    Relation("replay", "filtered-bc", "bc"),
    Relation("replay", "cql-dqn", BEHAVIOUR, strictly=False),
    Relation("replay", "cql-dqn", "bc"),
    Relation("medium", "cql-dqn", BEHAVIOUR, strictly=False),
    Relation("medium", "cql-dqn", "dqn@offline"),
    Relation("expert", "cql-dqn", "dqn@offline"),
    *(Relation("replay", system, BEHAVIOUR, strictly=False) for system in ("iql", "td3-bc", "cql", "awac")),
    *(Relation("replay", system, "bc") for system in ("iql", "td3-bc", "cql", "awac")),
    Relation("medium", "td3-bc", "td3@offline"),
)


class Cell(NamedTuple):
    """Returns and updates per second, one of each per seed."""

    returns: list[float]
    speeds: list[float]


def train(
    system: str, data: Path, seed: int, steps: int, options: dict[str, Any], env: str = ""
) -> tuple[float, float]:
    """Return of the last evaluation, and updates per second."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        settings = {"evaluation.every_steps": steps, **options}
        result = pappus.train(
            system, env, settings, data=data, seed=seed, steps=steps, run_dir=Path(folder) / "run"
        )
        summary = json.loads((result.directory / "summary.json").read_text())
    if summary["eval_return"] is None:
        raise SystemExit(f"{system} on {data.name} with seed {seed} was stopped before its evaluation")
    return float(summary["eval_return"]), float(summary["steps_per_second"])


class Results:
    """What was measured, in a file of JSON lines where one is given."""

    def __init__(self, path: Path | None, env: str = "") -> None:
        self._path, self._env = path, env
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._known = {tuple(key): tuple(measured) for key, measured in map(json.loads, lines)}

    def get(self, system: str, data: Path, seed: int, steps: int, options: dict[str, Any]) -> tuple[float, float]:
        """Return and updates per second of a run, which is made now if it was not before."""
        key = (system, str(data), seed, steps, json.dumps(options))
        if key not in self._known:
            self._known[key] = train(system, data, seed, steps, options, self._env)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]


def judged(relation: Relation, cells: dict[tuple[str, str], Cell], behaviour: dict[str, float]) -> str:
    """A line about a relation, or nothing where one of its sides was not run."""
    sides = []
    for system in (relation.better, relation.worse):
        if system == BEHAVIOUR and relation.data in behaviour:
            sides.append([behaviour[relation.data]])
        elif (relation.data, system) in cells:
            sides.append(cells[relation.data, system].returns)
    if len(sides) < 2:
        return ""
    high, low = map(mean, sides)
    margin = math.hypot(*(half_interval(side) if len(side) > 1 else 0.0 for side in sides))
    ranked = min(sides[0]) > max(sides[1]) and math.comb(len(sides[0]) + len(sides[1]), len(sides[0])) >= RARE
    holds = ranked or (high - low > margin if relation.strictly else high - low >= -margin)
    verdict = "holds" if holds else "open" if high - low > -margin else "FAILS"
    sign = ">" if relation.strictly else "≥"
    return (
        f"{verdict:5}  {relation.data}: {relation.better} {sign} {relation.worse}   "
        f"({high:.1f} − {low:.1f} = {high - low:.1f} ± {margin:.1f})"
    )


def read(text: str) -> Any:
    """A value as JSON has it, such as 5e-4 or true; any other text is itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=5_000, help="updates")
    parser.add_argument("--out", type=Path, help="file of results")
    parser.add_argument("--env", default="", help="of the data, to be given where it is code of your own")
    parser.add_argument("options", nargs="*", help="NAME=VALUE of further settings")
    arguments = parser.parse_args()
    options = {name: read(value) for name, value in (option.split("=", 1) for option in arguments.options)}
    results, cells, behaviour = Results(arguments.out, arguments.env), {}, {}
    for data in arguments.data:
        lengths, earned = lengths_and_returns(open_dataset(data))
        behaviour[data.name] = float(earned.mean())
        print(f"{data.name}: {len(earned)} episodes, {lengths.sum():,} steps, returns {earned.mean():.1f} on average")
        for system in arguments.systems:
            pairs = [results.get(system, data, seed, arguments.steps, options) for seed in arguments.seeds]
            cell = cells[data.name, system] = Cell(*(list(column) for column in zip(*pairs, strict=True)))
            returns = f"{mean(cell.returns):8.1f} ± {half_interval(cell.returns):5.1f}"
            print(f"  {system:14} {returns}   {mean(cell.speeds):8.0f} updates/s", flush=True)
    for line in filter(None, (judged(relation, cells, behaviour) for relation in RELATIONS)):
        print(line)


if __name__ == "__main__":
    main()
