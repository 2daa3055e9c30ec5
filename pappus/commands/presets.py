"""`pappus presets`: settings per env, and the runs that show that they work. It needs no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pappus.arguments import Parser
from pappus.errors import UserError
from pappus.evidence import evidence_of, plain
from pappus.light import light_system
from pappus.names import check_system
from pappus.presets import PRESETS, evidence_for, evidence_on, presets_for
from pappus.settings import load_file
from pappus.system import Preset, System
from pappus.telemetry.wording import aligned

NOTHING = "no evidence recorded"


def main(words: list[str], began: float) -> int:
    """List presets, or show those of a system or a file; the exit code."""
    parser = Parser(prog="pappus presets", description="List settings per env, and the runs that support them.")
    parser.add_argument("system", nargs="?", help="a name or ALGORITHM@TOPOLOGY, or a file that a sweep wrote")
    parser.add_argument("--env", default="", help="only presets that apply to this env")
    parser.add_argument("--gpu", action="store_true", help="presets for a learner on a GPU")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(words)
    if given.system and given.system.endswith((".yaml", ".yml")):
        print(_file(Path(given.system), given.json))
        return 0
    system = None
    if given.system:
        if ":" in given.system:
            raise UserError(f"presets of {given.system!r} are in its own code; give a system by name, or a file")
        check_system(given.system)
        system = dataclasses.replace(light_system(given.system), on_gpu=given.gpu)
    found = _chosen(system, given.env)
    if given.json:
        print(json.dumps([_plain(preset) for preset in found], indent=1))
    elif system is None:
        print(_table(found))
    else:
        print(_details(found, system, given.env))
    return 0


def _chosen(system: System | None, env: str) -> list[Preset]:
    """In the order in which they apply: later ones win."""
    if system is not None and env:
        return presets_for(system, env)
    found = [preset for preset in PRESETS if not env or preset.matches(preset.pairs[0], env)]
    return [one for one in found if system is None or (_is_for(one, system) and (system.on_gpu or not one.on_gpu))]


def _is_for(preset: Preset, system: System) -> bool:
    return dataclasses.replace(preset, envs="*").matches(system.pair, "")


def _table(presets: Sequence[Preset]) -> str:
    rows = [["preset", "evidence"]]
    for preset in presets:
        shown = evidence_for(preset)
        systems = ", ".join(dict.fromkeys(f"{one.system} on {one.env}" for one in shown))
        rows.append([preset.name, systems or NOTHING])
    left = max(len(row[0]) for row in rows)
    lines = [f"{name.ljust(left)}  {evidence}" for name, evidence in rows]
    lines.insert(1, "─" * left + "  " + "─" * len("evidence"))
    return "\n".join([*lines, "", "pappus presets SYSTEM --env ID shows what a run starts from."])


def _details(presets: Sequence[Preset], system: System, env: str) -> str:
    if not presets:
        return f"no preset is for {system.name}{f' on {env}' if env else ''}: it starts from its defaults"
    lines = []
    for preset in presets:
        lines += [preset.name, *(f"  --{name} {value}" for name, value in _options(preset.settings).items())]
        lines += [f"  topology {preset.topology}"] if preset.topology else []
        lines += [""]
    evidence = evidence_on(system, env) if env else [one for preset in presets for one in evidence_for(preset)]
    lines += ["evidence:" if evidence else NOTHING]
    for one in dict.fromkeys(evidence):
        rows = [["seed", *map(str, one.seeds)], [one.what, *map(_value, one.values)]]
        lines += ["", f"  {one}", *(f"  {line}" for line in aligned(rows))]
        lines += [f"  more: {one.source}", f"  again: python -m benchmarks.evidence {one.name}"]
    return "\n".join(lines)


def _file(path: Path, as_json: bool) -> str:
    content = load_file(path)
    evidence = content.pop("evidence", None)
    if evidence is None:
        return json.dumps({"settings": content, "evidence": None}) if as_json else f"{path}: {NOTHING}"
    found = evidence_of(evidence, str(path))
    if as_json:
        return json.dumps({"settings": content, "evidence": plain(found)}, indent=1)
    lines = [f"  --{name} {value}" for name, value in _options(content).items()]
    return "\n".join([str(path), *lines, str(found), f"again: python -m benchmarks.evidence {path}"])


def _options(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        option = f"{prefix}{name.replace('_', '-')}"
        found |= _options(value, f"{option}.") if isinstance(value, dict) else {option: value}
    return found


def _value(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _plain(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name, "pairs": list(preset.pairs), "envs": preset.envs, "settings": dict(preset.settings),
        "on_gpu": preset.on_gpu, "topology": preset.topology, "evidence": [plain(one) for one in evidence_for(preset)],
    }
