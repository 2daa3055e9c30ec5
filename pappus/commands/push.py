"""`pappus push`: a run as a folder that a model hub takes."""

from __future__ import annotations

from pathlib import Path

from pappus import early
from pappus.arguments import Parser

CHECKPOINTS = ["latest", "best"]


def main(words: list[str], began: float) -> int:
    """Write a run to a folder that a hub takes."""
    parser = Parser(prog="pappus push", description="Write a run to a folder in the layout of a model hub.")
    parser.add_argument("run", help="run directory")
    parser.add_argument("folder", help="the folder, such as a clone of a hub's repository")
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="latest", help="which (default: latest)")
    arguments = parser.parse_args(words)
    early.check_run(arguments.run)
    from pappus.hub.folder import push as push_run

    names = push_run(Path(arguments.run), Path(arguments.folder), arguments.checkpoint)
    print(f"pushed to {arguments.folder}: {', '.join(names)}; check the files before you publish them")
    return 0
