"""`pappus pull`: a run directory of such a folder."""

from __future__ import annotations

from pathlib import Path

from pappus.arguments import Parser

CHECKPOINTS = ["latest", "best"]


def main(words: list[str], began: float) -> int:
    """Make a run directory of such a folder."""
    parser = Parser(prog="pappus pull", description="Make a run directory from a folder that pappus push wrote.")
    parser.add_argument("folder", help="the folder, such as a clone of a hub's repository")
    parser.add_argument("run", help="run directory to create")
    arguments = parser.parse_args(words)
    from pappus.hub.folder import pull as pull_run

    checkpoint = pull_run(Path(arguments.folder), Path(arguments.run))
    print(f"pulled {checkpoint.name} to {arguments.run}; play it with pappus eval {arguments.run}")
    return 0
