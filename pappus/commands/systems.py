"""`pappus systems`: every system, or one of them."""

from __future__ import annotations

from pappus import early
from pappus.arguments import Parser


def main(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus systems", description="List every system, or show one of them.")
    parser.add_argument("system", nargs="?", help="a name, ALGORITHM@TOPOLOGY, or module:name")
    name = parser.parse_args(words).system
    if name:
        early.check_name(name)
    from pappus import listing

    print(listing.one_system(name) if name else listing.all_systems())
    return 0
