"""`pappus compare`: its arguments, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pappus.arguments import Parser
from pappus.comparing.comparison import Question, compare
from pappus.comparing.costs import costs_of, lines_of, plain
from pappus.comparing.plots import check_matplotlib, plot
from pappus.comparing.references import references
from pappus.comparing.report import json_of, text_of
from pappus.comparing.runs import find_runs, groups_of
from pappus.comparing.scores import measure_of, scored
from pappus.errors import UserError
from pappus.telemetry.files import jsonable


def main(words: Sequence[str]) -> int:
    """Compare finished runs; the exit code."""
    parser = Parser(
        prog="pappus compare",
        description="Aggregate finished runs: means, probabilities of improvement, performance profiles, curves.",
    )
    parser.add_argument("runs", nargs="+", help="run directories, populations, or folders of them")
    parser.add_argument(
        "--score", choices=["auto", "greedy", "training"], default="auto",
        help="greedy: last greedy evaluation; training: mean of the last 100 training episodes (default: greedy, "
        "if all runs have it)",
    )
    parser.add_argument("--at-step", type=int, metavar="N", help="score at step N (default: at the end)")
    parser.add_argument(
        "--target", type=float, metavar="RETURN",
        help="compare the costs of reaching this return (default: the --target-return of each run)",
    )
    parser.add_argument(
        "--reference", default="", metavar="known|none|FILE",
        help="returns that are normalised to 0 and 1, built in or from a YAML file (default: known for several envs)",
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="level of the intervals (default: 0.95)")
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples (default: 10,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--plots", metavar="DIR", help="also write plots to this folder (needs matplotlib)")
    arguments = parser.parse_args(words)
    if not 0 < arguments.confidence < 1:
        raise UserError(f"--confidence {arguments.confidence:g} must be between 0 and 1, such as 0.95")
    if arguments.resamples < 1 or arguments.seed < 0 or (arguments.at_step is not None and arguments.at_step < 1):
        raise UserError("--resamples and --at-step must be at least 1, and --seed at least 0")
    if arguments.plots:
        check_matplotlib()
    asked = arguments.reference
    known = references(asked) if asked else None
    runs, notes = find_runs(arguments.runs)
    measure = measure_of(arguments.score, arguments.at_step, runs)
    runs, left_out = scored(runs, measure)
    if known is None:
        known = references("known" if len({run.env for run in runs}) > 1 else "none")
    question = Question(measure, known, arguments.confidence, arguments.resamples, arguments.seed)
    comparisons, remarks = compare(runs, question)
    notes = [*(f"left out: {text}" for text in (*notes, *left_out)), *remarks]
    costs = costs_of(groups_of(runs), measure.kind, arguments.target)
    if arguments.json:
        content = json_of(comparisons, question, notes) | {"costs": [plain(one) for one in costs]}
        print(json.dumps(jsonable(content), indent=1, allow_nan=False))
    else:
        print(text_of(comparisons, question, notes, lines_of(costs, arguments.target)))
    if arguments.plots:
        paths = plot(comparisons, Path(arguments.plots))
        if not arguments.json:
            print(f"\npictures: {', '.join(map(str, paths))}")
    return 0
