"""`pappus verify`: re-runs a part of a run, and compares."""

from __future__ import annotations

from pathlib import Path

from pappus import early
from pappus.arguments import TRUST_HELP, Parser


def main(words: list[str], began: float) -> int:
    parser = Parser(
        prog="pappus verify", description="Re-run a run from one checkpoint to the next, and compare all state.",
        epilog="Exit code 0: all state is equal. 1: something differs, and the first difference is named. 2: it cannot "
        "be compared; the reason is printed.",
    )
    parser.add_argument("run", help="run directory")
    parser.add_argument(
        "--from", dest="start", default="", metavar="CHECKPOINT",
        help="name of the checkpoint to begin with, or `start` (default: the last but one, or the start)",
    )
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    early.check_run(arguments.run, resume=True)
    early.check_resumable(arguments.run, arguments.trust)
    from pappus.verifying import verify_run

    verdict = verify_run(Path(arguments.run).resolve(), arguments.start, arguments.trust, print)
    print(verdict.text)
    return verdict.exit_code
