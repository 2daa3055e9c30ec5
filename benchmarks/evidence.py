"""Do the presets still do what their evidence says? Runs it again, with the same seeds, and compares.

    python -m benchmarks.evidence                     # what there is
    python -m benchmarks.evidence ppo-CartPole-v1 --jobs 2
    python -m benchmarks.evidence best.yaml           # a file that a sweep wrote

Exit code 0: the 95 % intervals of the means overlap. 1: they do not, or runs failed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pappus.errors import UserError, closest
from pappus.evidence import Evidence, evidence_of
from pappus.evidence_table import EVIDENCE
from pappus.members import members_of, seeds_of
from pappus.population import Population
from pappus.settings import load_file
from pappus.telemetry.files import git_hash
from pappus.telemetry.processes import usable_cores


def find(name: str) -> tuple[Evidence, list[str]]:
    """The evidence of that name or in that file, and the words that its runs need beyond its own."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name).resolve()
        return evidence_of(load_file(path).get("evidence"), name), ["--config", str(path)]
    known = {one.name: one for one in EVIDENCE}
    if name not in known:
        near = closest(name, list(known))
        raise UserError(f"no evidence is called {name!r}{near}; python -m benchmarks.evidence lists what there is")
    return known[name], []


def again(evidence: Evidence, words: Sequence[str], seeds: Sequence[int], jobs: int, directory: Path) -> Evidence:
    """The same runs, made now."""
    target = [] if evidence.target is None else ["--target-return", f"{evidence.target:g}"]
    options = ["--env", evidence.env, *target, *evidence.options, *words]
    members = members_of(evidence.system, options, seeds, {})
    population = Population(directory, members, jobs)
    if population.run():
        raise UserError(f"runs failed; see {directory}")
    summaries = [population.summary(member) for member in members]
    return Evidence(
        evidence.system, evidence.env, tuple(seeds), tuple(value_of(one, evidence) for one in summaries),
        time.strftime("%Y-%m-%d"), (git_hash() or "unknown")[:7], evidence.target, evidence.options,
        round(statistics.median(one["steps_per_second"] for one in summaries)),
        machine=f"{usable_cores()} cores", on_gpu=evidence.on_gpu,
    )


def value_of(summary: dict[str, Any], evidence: Evidence) -> float | None:
    value = summary["eval_return" if evidence.target is None else "solved_at_step"]
    return None if value is None else float(value)


def overlap(one: Evidence, other: Evidence) -> bool:
    """Whether the intervals of two means have a point in common; if one has no value, neither has the other."""
    if not one.known or not other.known:
        return one.known == other.known
    (low, high), (least, most) = one.range, other.range
    return low <= most and least <= high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="of the evidence, or a file that a sweep wrote")
    parser.add_argument("--seeds", help="others than the recorded ones, such as 11..15")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs there")
    arguments = parser.parse_args()
    if not arguments.name:
        print(*(f"{one.name:<40} {one}" for one in EVIDENCE), sep="\n")
        return 0
    try:
        evidence, words = find(arguments.name)
        seeds = seeds_of(arguments.seeds) if arguments.seeds else list(evidence.seeds)
        place = contextlib.nullcontext(arguments.keep) if arguments.keep else tempfile.TemporaryDirectory()
        with place as directory:
            found = again(evidence, words, seeds, arguments.jobs, Path(directory).resolve())
    except UserError as error:
        print(f"benchmarks.evidence: {error}")
        return 2
    print(f"recorded  {evidence}\nnow       {found}")
    same = overlap(evidence, found)
    print(f"the intervals {'overlap' if same else 'do not overlap'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
