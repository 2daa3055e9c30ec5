"""Parts of the pages that are generated from the code when the site is built.

A page asks for one with a line `<!-- generated: NAME ARGUMENT -->`; GENERATORS maps the name to a function. The code is
read with `ast` and not imported, so building the site needs no torch. The one exception is `pairs`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pappus"
MARKER = re.compile(r"^<!-- generated: (\w+)(?: (\S+))? -->$", re.MULTILINE)
COMMAND_FILES = (
    *sorted(PACKAGE.glob("commands/*.py")),
    *(PACKAGE / name / "command.py" for name in ("chaos", "comparing", "page", "sweeping", "tuning")),
)
BASES = ("AlgorithmConfig", "TopologyConfig")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this with the text of every page."""
    return MARKER.sub(lambda found: GENERATORS[found[1]](found[2] or ""), markdown)


@dataclass(frozen=True)
class Option:
    """One field of a config: how it is written, what it may be, and what it means."""

    name: str
    type: str
    default: str
    meaning: str


def options(_: str = "") -> str:
    """Every option of `pappus train`, one table per config."""
    classes = config_classes()
    lines = ["## Every run", "", *option_table(list(fields_of("RunConfig", "")))]
    for base, title in zip(BASES, ("algorithm", "topology"), strict=True):
        for name in sorted(name for name, node in classes.items() if base in base_names(node)):
            found = list(fields_of(name, f"{title}."))
            if found:
                lines += ["", f"## `--{title}.*` of {name.removesuffix('Config')}", "", *option_table(found)]
    return "\n".join(lines)


def option_table(found: list[Option]) -> list[str]:
    """Options as rows."""
    rows = [f"| `--{one.name}` | {code(one.type)} | {code(one.default)} | {cell(one.meaning)} |" for one in found]
    return ["| option | values | default | meaning |", "| --- | --- | --- | --- |", *rows]


def option_names() -> set[str]:
    """All options of all systems, as they are written on the command line, and the short ones."""
    names = {one.name for one in fields_of("RunConfig", "")}
    for base, title in zip(BASES, ("algorithm", "topology"), strict=True):
        for name, node in config_classes().items():
            if base in base_names(node):
                names |= {one.name for one in fields_of(name, f"{title}.")}
    return names | {name.replace("_", "-") for name in ast.literal_eval(constant("ALIASES"))}


def fields_of(name: str, prefix: str) -> Iterator[Option]:
    """The fields of a config and of those within it; `prefix` ends with a dot."""
    classes = config_classes()
    for base in classes[name].bases:
        if (inherited := ast.unparse(base)) in classes and inherited not in BASES:
            yield from fields_of(inherited, prefix)
    body = classes[name].body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind, dotted = ast.unparse(node.annotation), prefix + node.target.id.replace("_", "-")
        if kind.startswith("ClassVar") or kind in BASES or dotted == "system":  # the system is the command's first word
            continue
        if kind in classes:
            yield from fields_of(kind, f"{dotted}.")
        else:
            yield Option(dotted, values(kind), default(node.value), text_of(after))


@cache
def config_classes() -> dict[str, ast.ClassDef]:
    """All dataclasses of the package whose names say that they are configs."""
    files = [PACKAGE / "config.py", *PACKAGE.glob("algorithms/*.py"), *PACKAGE.glob("topologies/*.py")]
    found = [node for file in files for node in tree(file).body if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in found if node.name.endswith(("Config", "Options")) and node.decorator_list}


def base_names(node: ast.ClassDef) -> list[str]:
    """The classes that a class inherits from, directly or not, the nearest first."""
    nearest = [ast.unparse(base) for base in node.bases]
    further = [name for base in nearest if base in config_classes() for name in base_names(config_classes()[base])]
    return [*nearest, *further]


def values(annotation: str) -> str:
    """`adam, rmsprop` for a Literal, else the type."""
    if annotation.startswith("Literal["):
        return ", ".join(str(value) for value in ast.literal_eval(annotation.removeprefix("Literal")))
    return annotation.replace(" | ", " or ")


def default(node: ast.expr | None) -> str:
    """The default of a field as text; empty for empty strings, tuples and mappings."""
    if node is None or isinstance(node, ast.Call):
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return f"{node.value:,}"
    text = ast.unparse(node)
    return "" if text in ("''", "()") else text.strip("'")


def text_of(node: ast.stmt | None) -> str:
    """The docstring below a field."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def commands(_: str = "") -> str:
    """Every command: what `pappus --help` prints, and a table of the options of each that has its own."""
    usages = [str(ast.literal_eval(constant(name))).rstrip() for name in ("USAGE", "DATA_USAGE")]
    lines = ["```text", *usages, "```"]
    for program, description, rows in parsers():
        lines += ["", f"## `{program}`", "", description, ""]
        lines += ["| argument | default | meaning |", "| --- | --- | --- |"] if rows else []
        lines += [f"| `{name}` | {code(value)} | {cell(meaning)} |" for name, value, meaning in rows]
    return "\n".join(lines)


def parsers() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """(program, description, arguments) of every argparse parser that the command line makes.

    The parser of `pappus replay serve` is made here and filled somewhere in pappus/replay.
    """
    for node in (node for file in COMMAND_FILES for node in ast.walk(tree(file))):
        if isinstance(node, ast.FunctionDef):
            for program, description in parsers_in(node):
                files = sorted(PACKAGE.glob("replay/**/*.py")) if program == "pappus replay serve" else []
                yield program, description, [row for part in (node, *map(tree, files)) for row in arguments_in(part)]


def parsers_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Program and description of the parsers that are made there."""
    for call in (found for found in ast.walk(node) if isinstance(found, ast.Call)):
        words = {word.arg: word.value for word in call.keywords}
        if "description" in words and isinstance(words["description"], ast.Constant):
            program = words.get("prog") or (call.args[0] if call.args else None)
            if isinstance(program, ast.Constant):
                yield str(program.value), str(words["description"].value)


def arguments_in(node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """(name, default, help) of every `add_argument`."""
    for call in (found for found in ast.walk(node) if isinstance(found, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and call.args:
            words = {word.arg: word.value for word in call.keywords}
            meaning, value = words.get("help"), words.get("default")
            yield (
                ast.unparse(call.args[0]).strip("'"),
                "" if value is None else default(value),
                str(meaning.value) if isinstance(meaning, ast.Constant) else "",
            )


def pairs(_: str = "") -> str:
    """The table algorithm × topology, from `pappus.listing.pair_table()`; left out where that cannot be imported.

    It returns {algorithm: {topology: text}}. The text is the name of a system, ALGORITHM@TOPOLOGY, or the sentence with
    which the pair is refused.
    """
    try:
        found: dict[str, dict[str, str]] = import_module("pappus.listing").pair_table()
    except (ImportError, AttributeError):
        return ""
    topologies = list(next(iter(found.values())))
    lines = ["| algorithm | " + " | ".join(topologies) + " |", "|" + " --- |" * (1 + len(topologies))]
    for algorithm, row in found.items():
        cells = ["·" if " " in row[one] else code(row[one]) for one in topologies]
        lines.append(f"| `{algorithm}` | {' | '.join(cells)} |")
    refusals = dict.fromkeys(text for row in found.values() for text in row.values() if " " in text)
    return "\n".join([*lines, "", '??? note "Why a pair is refused"', "", *(f"    - {text}" for text in refusals)])


def example(name: str) -> str:
    """A file of examples/, as it stands."""
    return f"```python\n{(ROOT / 'examples' / name).read_text().rstrip()}\n```"


def headline(_: str = "") -> str:
    """benchmarks/RESULTS.md without its title, its links made relative to docs/results."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text().partition("\n")[2]
    text = re.sub(r"\]\(results/([\w-]+\.json)\)", r"](\1)", text)
    return text.replace("](../docs/results/", "](").replace("](../docs/", "](../")


def on_files(files: Any, config: Any) -> Any:
    """MkDocs calls this with the files of the site: those in benchmarks/results belong to the pages of results."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def tree(file: Path) -> ast.Module:
    """A file as syntax."""
    return ast.parse(file.read_text())


def constant(name: str) -> str:
    """The source of what a module of the package assigns to a name."""
    for file in (*sorted(PACKAGE.glob("*.py")), *sorted(PACKAGE.glob("commands/*.py"))):
        for node in tree(file).body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
                return ast.unparse(node.value)
    raise KeyError(f"no module of {PACKAGE} assigns {name}; adapt docs/hooks.py")


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|")


def code(text: str) -> str:
    """Text as code, if there is any."""
    return f"`{cell(text)}`" if text else ""


GENERATORS: dict[str, Callable[[str], str]] = {
    "options": options, "commands": commands, "pairs": pairs, "example": example, "headline": headline,
}
