"""`pappus eval`: plays greedily with a trained policy."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from pappus import early
from pappus.arguments import TRUST_HELP, Parser, whole
from pappus.telemetry.terminal import STYLES, Terminal, style_of, terminal


def main(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus eval", description="Play greedily with a trained policy.")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--episodes", type=whole, default=20, help="episodes to play (default: 20)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of the envs (default: 0)")
    parser.add_argument("--checkpoint", choices=["latest", "best"], default="latest", help="which (default: latest)")
    parser.add_argument("--video", metavar="DIR", nargs="?", const="", help="record the episodes (default: RUN/videos)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object, and nothing else")
    arguments = parser.parse_args(words)
    early.check_weights(arguments.run, arguments.checkpoint, arguments.trust)
    with terminal(style_of([word for word in words if word in STYLES])[0]) as shown:
        return _shown(arguments, shown)


def _shown(arguments: Namespace, shown: Terminal) -> int:
    shown.title = arguments.run
    shown.say("loading torch")
    from pappus.api import evaluate

    shown.say(f"playing {arguments.episodes} episodes")
    video = None if arguments.video is None else Path(arguments.video or Path(arguments.run) / "videos")
    found = evaluate(
        arguments.run, arguments.episodes, arguments.seed, arguments.checkpoint, video, trust=arguments.trust
    )
    shown.clear()
    if shown.style == "json":
        shown.object("evaluation", run=arguments.run, **found.to_dict())
        return 0
    shown.print(str(found))
    if video is not None and shown.style == "shown":
        shown.print(f"  films           {video}/episode-0.mp4 … {video}/episode-{arguments.episodes - 1}.mp4")
    return 0
