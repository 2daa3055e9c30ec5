"""`pappus doctor RUN`: what limits a run, and the one change that would make it faster."""

from __future__ import annotations

import json
from pathlib import Path

from pappus.arguments import Parser
from pappus.telemetry.doctor_file import read_doctor, report


def main(words: list[str], began: float) -> int:
    """Print the report of a live or finished run."""
    parser = Parser(prog="pappus doctor", description="What limits a run, and the one change that would help.")
    parser.add_argument("run", help="run directory, of a live or finished run")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, with its evidence")
    arguments = parser.parse_args(words)
    run = Path(arguments.run)
    if arguments.json:
        print(json.dumps(read_doctor(run), indent=2))
    else:
        print(*report(run), sep="\n")
    return 0
