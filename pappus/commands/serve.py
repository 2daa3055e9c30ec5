"""`pappus serve`: train on external simulators that connect."""

from __future__ import annotations

from pathlib import Path

from pappus.commands import train
from pappus.commands.words import asks_for_help, taken, value_of
from pappus.errors import UserError

SERVE_USAGE = """\
pappus serve SYSTEM --env-spec FILE [--listen ADDRESS] [options of pappus train SYSTEM]

Train on external simulators that connect (docs/guide/external-simulators.md). FILE is YAML:

{spec}
"""


def main(words: list[str], began: float) -> int:
    if asks_for_help(words):
        from pappus.envs import external

        print(SERVE_USAGE.format(spec=(external.__doc__ or "").strip()), end="")
        return 0
    given, words = taken(words, "--env-spec")
    spec = given["--env-spec"]
    if value_of(words, "--env") or value_of(words, "--actors"):
        raise UserError("pappus serve has no envs and no actors of its own; use pappus train, which can --listen too")
    if spec is None and not value_of(words, "--resume"):
        raise UserError("--env-spec is missing; give a file that says what envs show and accept: pappus serve --help")
    if spec is not None:
        from pappus.envs.external import external_spec

        words += ["--env", f"spec:{Path(spec).resolve()}", "--actors", "0"]
        external_spec(words[-3])
        listens = value_of(words, "--listen") or value_of(words, "--topology.wire.listen")
        words += [] if listens else ["--listen=127.0.0.1:0"]
    return train.main(words, began)
