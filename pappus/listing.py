"""`pappus systems`: the named systems and every pair in two tables, or one system with its figure."""

from __future__ import annotations

from pappus.errors import UserError
from pappus.names import registered_systems
from pappus.settings import differences
from pappus.systems import ALGORITHMS, SYSTEMS, TOPOLOGIES, find_system


def all_systems() -> str:
    """The named systems and those of installed packages, then which algorithm runs on which topology."""
    named = [_row(name) for name in (*SYSTEMS, *registered_systems())]
    pairs = pair_table()
    marks = [[algorithm, *map(_mark, pairs[algorithm].values())] for algorithm in ALGORITHMS]
    return "\n".join([
        *_rows([["system", "algorithm@topology", "for"], *named]), "",
        "Every algorithm on every topology: a name, ✓ (pappus train ALGORITHM@TOPOLOGY), or · (refused, with a reason)",
        "",
        *_rows([["", *TOPOLOGIES], *marks]), "",
        "pappus systems NAME shows one of them; pappus train NAME --env ID trains it.",
    ])


def one_system(name: str) -> str:
    """What a system is for, its paper, its figure, and its settings that differ from the defaults of a run."""
    system = find_system(name)
    lines = [f"{system.name}: {system.algorithm.name} on {system.topology.name}"]
    lines += [text for text in (system.purpose or system.algorithm.purpose, system.paper) if text]
    lines += ["", system.topology.figure, "", "Its settings, where they differ from the defaults:", ""]
    lines += [f"  --{option} {value}" for option, value in differences(system.defaults).items()]
    lines += ["", f"All options: pappus train {name} --help"]
    return "\n".join(lines)


def pair_table() -> dict[str, dict[str, str]]:
    """Of every algorithm and topology: the name of the system, the pair where it has none, or why it is refused."""
    table: dict[str, dict[str, str]] = {}
    for algorithm in ALGORITHMS:
        for topology in TOPOLOGIES:
            try:
                entry = find_system(f"{algorithm}@{topology}").name
            except UserError as error:
                entry = str(error)
            table.setdefault(algorithm, {})[topology] = entry
    return table


def _row(name: str) -> list[str]:
    try:
        system = find_system(name)
    except UserError as error:  # a package that registers what it does not have
        return [name, "", str(error)]
    return [name, system.pair, system.purpose or system.algorithm.purpose]


def _mark(entry: str) -> str:
    """An entry of `pair_table`: a reason is a sentence, a pair without a name has an @."""
    return "·" if " " in entry else "✓" if "@" in entry else entry


def _rows(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
