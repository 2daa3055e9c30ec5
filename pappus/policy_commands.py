"""`pappus export`, `push` and `pull`: a trained policy goes elsewhere. Wrong input: one sentence, exit code 2."""

from __future__ import annotations

from pathlib import Path

from pappus import early
from pappus.arguments import TRUST_HELP, Parser
from pappus.errors import UserError
from pappus.hub.files import FORMATS, check_folder, check_format

CHECKPOINTS = ["latest", "best"]


def export(words: list[str]) -> int:
    """Write a policy as a file for other programs."""
    parser = Parser(prog="pappus export", description="Export a trained policy for other programs, and check it.")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--format", choices=list(FORMATS), default="onnx", help="what to write (default: onnx)")
    parser.add_argument("--out", metavar="DIR", help="folder for the policy, a note and a card (default: RUN/export)")
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="latest", help="which (default: latest)")
    parser.add_argument(
        "--observations", type=int, default=4096, metavar="N", help="observations to check it on (default: 4096)"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    if arguments.observations < 1:
        raise UserError(f"--observations {arguments.observations} checks nothing; use 1 or more")
    out = None if arguments.out is None else Path(arguments.out)
    if out is not None:
        check_folder(out)
    early.check_weights(arguments.run, arguments.checkpoint, arguments.trust)
    check_format(arguments.format)
    from pappus.hub.exported import Export, export_policy

    print(export_policy(Export(
        Path(arguments.run), arguments.format, out, arguments.checkpoint, arguments.observations, arguments.trust
    )))
    return 0


def push(words: list[str]) -> int:
    """Write a run to a folder that a hub takes."""
    parser = Parser(prog="pappus push", description="Write a run to a folder in the layout of a model hub.")
    parser.add_argument("run", help="run directory")
    parser.add_argument("folder", help="the folder, such as a clone of a hub's repository")
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="latest", help="which (default: latest)")
    arguments = parser.parse_args(words)
    early.check_run(arguments.run)
    from pappus.hub.folder import push as push_run

    names = push_run(Path(arguments.run), Path(arguments.folder), arguments.checkpoint)
    print(f"pushed to {arguments.folder}: {', '.join(names)}; look before you publish")
    return 0


def pull(words: list[str]) -> int:
    """Make a run directory of such a folder."""
    parser = Parser(prog="pappus pull", description="Make a run directory of what pappus push wrote.")
    parser.add_argument("folder", help="the folder, such as a clone of a hub's repository")
    parser.add_argument("run", help="run directory to make")
    arguments = parser.parse_args(words)
    from pappus.hub.folder import pull as pull_run

    checkpoint = pull_run(Path(arguments.folder), Path(arguments.run))
    print(f"pulled {checkpoint.name} to {arguments.run}; play it with pappus eval {arguments.run}")
    return 0
