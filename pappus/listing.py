"""`pappus systems`: the named systems and every pair in two tables, or one system with its figure."""

from __future__ import annotations

import dataclasses

from pappus.config import RunConfig
from pappus.systems import ALGORITHMS, SYSTEMS, TOPOLOGIES, find_system, pair_table


def all_systems() -> str:
    """The named systems, then which algorithm runs on which topology."""
    named = [[name, system.pair, system.purpose] for name, system in SYSTEMS.items()]
    pairs = pair_table()
    marks = [
        [algorithm, *("·" if " " in pairs[algorithm][topology] else _mark(pairs[algorithm][topology])
                      for topology in TOPOLOGIES)]
        for algorithm in ALGORITHMS
    ]
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
    lines += ["", system.topology.figure.strip(), "", "Its settings, where they differ from the defaults:", ""]
    plain = RunConfig(type(system.algorithm.config)(), topology=type(system.topology.config)())
    lines += [f"  --{option} {value}" for option, value in _differences(system.defaults, plain).items()]
    lines += ["", f"All options: pappus train {name} --help"]
    return "\n".join(lines)


def _differences(config: object, plain: object, prefix: str = "") -> dict[str, object]:
    """Settings of `config` that `plain` has otherwise, by option name."""
    found: dict[str, object] = {}
    for item in dataclasses.fields(config):  # type: ignore[arg-type]
        one, other = getattr(config, item.name), getattr(plain, item.name)
        option = prefix + item.name.replace("_", "-")
        if dataclasses.is_dataclass(one):
            found |= _differences(one, other, f"{option}.")
        elif one != other and option != "system":
            found[option] = one
    return found


def _mark(name: str) -> str:
    return "✓" if "@" in name else name


def _rows(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
