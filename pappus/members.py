"""The members of a population: which runs `--seeds` and `--vary` ask for."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pappus.errors import UserError


@dataclass(frozen=True)
class Member:
    """One run of a population."""

    name: str
    setting: str
    """What it was varied by, apart from the seed; empty where nothing is."""
    words: tuple[str, ...]
    """Of its command line, from the system on."""


MOST_SEEDS = 10_000


def seeds_of(text: str) -> list[int]:
    """`1..5` or `1,2,7`."""
    seeds = []
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        wanted = range(int(match[1]), int(match[2]) + 1)
        if wanted[MOST_SEEDS:]:
            raise UserError(f"--seeds {text} are more than {MOST_SEEDS:,} runs; name fewer")
        seeds = list(wanted)
    elif re.fullmatch(r"\d+(,\d+)*", text):
        seeds = [int(word) for word in text.split(",")]
    if seeds and len(set(seeds)) == len(seeds):
        return seeds
    raise UserError(f"--seeds {text} names no seeds; write for example 1..5 or 1,2,7, each seed once")


def members_of(
    system: str, words: Sequence[str], seeds: Sequence[int], varied: Mapping[str, Sequence[str]]
) -> list[Member]:
    """Every combination of values, with every seed."""
    members = []
    for values in itertools.product(*varied.values()):
        pairs = list(zip(varied, values, strict=True))
        setting = ", ".join(f"{name}={value}" for name, value in pairs)
        options = [word for name, value in pairs for word in (f"--{name}", value)]
        for seed in seeds:
            name = "-".join([*(f"{name.rpartition('.')[2]}-{value}" for name, value in pairs), f"seed-{seed}"])
            command = (system, *words, *options, "--seed", str(seed))
            members.append(Member(re.sub(r"[^\w.+-]", "_", name), setting, command))
    names = Counter(member.name for member in members)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UserError(f"--vary makes {names[twice[0]]} runs of one name, {twice[0]!r}; give each value once")
    return members


def varied_by(texts: Iterable[str]) -> dict[str, list[str]]:
    """`NAME=VALUE,VALUE` as a name and its values."""
    varied: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        found = [value for value in values.split(",") if value]
        if not equals or not name or not found:
            raise UserError(f"--vary {text} names no values; write for example --vary unroll-length=20,40")
        name = name.removeprefix("--").replace("_", "-")
        if name in varied:
            raise UserError(f"--vary {name} is given twice; give all its values at once: --vary {name}=VALUE,VALUE")
        varied[name] = found
    return varied
