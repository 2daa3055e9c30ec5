"""`pappus completion`: prints a completion script for a shell."""

from __future__ import annotations

from pappus.arguments import Parser


def main(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus completion", description="Print a completion script for a shell.")
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")
    shell = parser.parse_args(words).shell
    from pappus.completion import script

    print(script(shell), end="")
    return 0
