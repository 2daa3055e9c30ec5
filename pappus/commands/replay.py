"""`pappus replay serve`: tables of experience for whoever connects."""

from __future__ import annotations

from pappus.arguments import Parser
from pappus.errors import UserError


def main(words: list[str], began: float) -> int:
    if not words or words[0] != "serve":
        raise UserError(f"pappus replay {' '.join(words[:1]) or '(nothing)'} is no command; use pappus replay serve")
    from pappus.replay.serve.command import main as serve_replay

    return serve_replay(words[1:], Parser("pappus replay serve", description="Serve replay tables."))
