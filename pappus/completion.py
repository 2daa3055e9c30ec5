"""`pappus completion SHELL`: a script that completes commands, systems and options.

    pappus completion bash > ~/.local/share/bash-completion/completions/pappus
    pappus completion zsh > ~/.zfunc/_pappus          # a folder of $fpath
    pappus completion fish > ~/.config/fish/completions/pappus.fish

It holds all names, so nothing of Pappus runs when a key is pressed. Write it again after an update.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from pappus.names import PAIRS
from pappus.settings import ALIASES, option_names

PACKAGE = Path(__file__).parent
RUNS = ("train", "serve", "chaos", "sweep", "tune")
"""Commands that take a system and its options."""
OWN_OPTIONS = (
    "--config", "--resume", "--resume-or-start", "--seeds", "--vary", "--jobs", "--plan", "--tune", "--trust",
    "--quiet", "--json", "--help",
)
"""Options of `pappus train` that are no settings."""

BASH = """\
_pappus() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}:$word" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _pappus pappus
"""
ZSH = """\
#compdef pappus
autoload -Uz bashcompinit && bashcompinit
{bash}"""


def script(shell: str) -> str:
    """The script for a shell."""
    if shell == "fish":
        return _fish()
    bash = BASH.format(commands=" ".join(commands()), cases="\n".join(_cases()))
    return ZSH.format(bash=bash) if shell == "zsh" else bash


@cache
def commands() -> dict[str, list[str]]:
    """Every command and its options, without those of systems."""
    found = {}
    for file in sorted((PACKAGE / "commands").glob("*.py")):
        module = ast.parse(file.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in module.body):
            names = [name for node in (module, *_imported_by(module)) for name in _options_in(node)]
            found[file.stem.replace("_", "-")] = list(dict.fromkeys(names))
    return found


@cache
def system_options() -> list[str]:
    """Every option of any system, and the short names."""
    from pappus.light import light_system

    names = dict.fromkeys(name for system in PAIRS for name in option_names(light_system(system).defaults))
    short = [name.replace("_", "-") for name in ALIASES]
    return [*OWN_OPTIONS, *sorted(f"--{name}" for name in (*names, *short) if name != "system")]


def _imported_by(command: ast.Module) -> list[ast.Module]:
    """The modules of ours that a command imports, where its options may be, too."""
    found: list[ast.Module] = []
    for node in ast.walk(command):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pappus."):
            module = PACKAGE.parent.joinpath(*str(node.module).split("."))
            files = {module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)}
            found += [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(files) if path.is_file()]
    return found


def _options_in(node: ast.AST) -> list[str]:
    """The options that a function adds to a parser."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)]
    words = [call.args[0] for call in calls if getattr(call.func, "attr", "") == "add_argument" and call.args]
    return [str(word.value) for word in words if isinstance(word, ast.Constant) and str(word.value).startswith("--")]


def _cases() -> list[str]:
    cases = []
    for name in RUNS:
        words = dict.fromkeys([*commands()[name], *system_options()])
        cases.append(f'            {name}:-*) words="{" ".join(words)}" ;;')
    cases.append(f'            {"|".join(f"{name}:*" for name in (*RUNS, "systems"))}) words="{" ".join(PAIRS)}" ;;')
    for name, options in commands().items():
        if options and name not in RUNS:
            cases.append(f'            {name}:-*) words="{" ".join([*options, "--help"])}" ;;')
    return cases


def _fish() -> str:
    lines = [f"complete -c pappus -n __fish_use_subcommand -f -a '{' '.join(commands())}'"]
    systems = " ".join((*RUNS, "systems"))
    lines.append(f"complete -c pappus -n '__fish_seen_subcommand_from {systems}' -f -a '{' '.join(PAIRS)}'")
    for option in system_options():
        seen = f"__fish_seen_subcommand_from {' '.join(RUNS)}"
        lines.append(f"complete -c pappus -n '{seen}' -l {option.removeprefix('--')}")
    for name, options in commands().items():
        for option in options:
            lines.append(f"complete -c pappus -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}")
    return "\n".join(lines) + "\n"
