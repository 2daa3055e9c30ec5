"""`pappus replay-run`: repeats a traced run in one thread."""

from __future__ import annotations

from pathlib import Path

from pappus import early
from pappus.arguments import TRUST_HELP, Parser, whole
from pappus.trace.products import same_products


def main(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus replay-run", description="Repeat a traced run in one thread, update by update.")
    parser.add_argument("run", help="directory of a run that was trained with --trace")
    parser.add_argument("--until-update", type=whole, metavar="N", help="stop after update N (default: the last)")
    parser.add_argument("--break-at", type=whole, metavar="N", help="open the debugger (pdb) before update N")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    early.check_trace(arguments.run)
    same_products()
    from pappus.replay_run import Replay, Replaying

    Replay(Replaying(Path(arguments.run), arguments.until_update, arguments.break_at, arguments.trust)).run()
    return 0
