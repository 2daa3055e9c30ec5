"""`pappus export`: the policy of a run as a file for other programs."""

from __future__ import annotations

from pathlib import Path

from pappus import early
from pappus.arguments import TRUST_HELP, Parser
from pappus.errors import UserError
from pappus.hub.files import FORMATS, check_folder, check_format

CHECKPOINTS = ["latest", "best"]


def main(words: list[str], began: float) -> int:
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
        raise UserError(f"--observations {arguments.observations} must be at least 1")
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
