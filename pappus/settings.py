"""Settings become a config: Python values, YAML files and command-line words, checked by the config's own types.

A setting has a dotted name, such as `optimizer.learning_rate`. Python and YAML give values (`override`), the command
line gives text (`parse`). Both end in `_applied`, so an unknown name or a wrong value fails with the same sentence.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, Union

import yaml

from pappus.config import RunConfig
from pappus.errors import UserError, closest

ALIASES = {"core": "network.core", "listen": "topology.wire.listen", "address": "cluster.address"}
"""Short names of settings that live deeper."""

BASE = "(all)"
"""Where a tree keeps a whole config object, whose settings others in the tree replace."""
PAIRS = ("kwargs", "placement", "resources")
"""Settings that are mappings themselves; all other mappings are groups of settings."""

Config = TypeVar("Config")
Convert: TypeAlias = Callable[[Any, Any, str], Any]
"""(value, type hint, name) → the value as the hint wants it, or `UserError`."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: PyYAML alone reads `1e-3` as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def override(config: RunConfig, settings: Mapping[str, Any], source: str = "") -> RunConfig:
    """`config` with settings replaced. Names are dotted or nested; a group of settings may be a whole config object."""
    tree = _Tree()
    for name, value in settings.items():
        tree.add(_path(name), value)
    try:
        return _with_actors(_applied(config, tree, _checked), tree)
    except UserError as error:
        raise UserError(f"{error} (in {source})" if source else str(error)) from None


def parse(config: RunConfig, words: Sequence[str], source: str = "pappus train") -> RunConfig:
    """`config` with command-line words such as `--algorithm.entropy-cost 0.01` applied; `--help` prints and exits."""
    if any(word in ("-h", "--help") for word in words):
        print(help_text(config, source))
        raise SystemExit(0)
    tree = _Tree()
    for option, values in _options(words, source):
        if option == "actors" and ".." in "".join(values):
            least, most = _range(values)
            tree.add(["cluster", "fewest_actors"], [least])
            values = [most]
        *group, last = _path(option)
        if not values and last.startswith("no_"):  # --optimizer.no-anneal; the last of several counts
            last, values = last[3:], ["false"]
        tree.add([*group, last], values)
    return _with_actors(_applied(config, tree, _from_text), tree)


def load_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file, as `override` takes them."""
    try:
        content = yaml.load(path.read_text(), _Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"config file {str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"config file {str(path)!r} holds no settings; write NAME: VALUE lines")
    return content


def to_yaml(config: RunConfig) -> str:
    """The resolved config, as `load_file` reads it."""
    plain = dataclasses.asdict(config, dict_factory=lambda items: {key: _plain(value) for key, value in items})
    try:
        return str(yaml.safe_dump(plain, sort_keys=False))
    except yaml.representer.RepresenterError as error:
        raise UserError(
            f"a setting cannot be written to config.yaml: {error.args[-1]!r}; give plain values, or a function as env"
        ) from None


def option_names(config: object, prefix: str = "") -> list[str]:
    """Every dotted option name of a config, with dashes as on the command line."""
    names: list[str] = []
    for item in dataclasses.fields(config):  # type: ignore[arg-type]
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        names += option_names(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return names


def help_text(config: RunConfig, source: str) -> str:
    """Every option, its type, its value so far and what it means, by group."""
    lines = [f"usage: {source} --env ID [options]", "", *_help(config, ""), ""]
    short = ", ".join(f"--{short} is --{name}" for short, name in ALIASES.items())
    return "\n".join([*lines, *textwrap.wrap(f"Short names: {short}.", _width())])


def _path(name: str) -> list[str]:
    plain = str(name).replace("-", "_")
    return ALIASES.get(plain, plain).split(".")


def _options(words: Sequence[str], source: str) -> list[tuple[str, list[str]]]:
    """Options with the words that follow each: `--seed 3` and `--seed=3` mean the same."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.append((name, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise UserError(f"{word!r} is no option; options begin with --; see {source} --help")
    return found


class _Tree(dict[str, Any]):
    """Settings by name; those of a group are a tree within. All of a group are replaced at once: only together they
    need to be valid."""

    def add(self, path: Sequence[str], value: Any) -> None:
        """Put a value, or all entries of a mapping, where `path` leads."""
        head, *rest = path
        if rest:
            self._within(head).add(rest, value)
        elif isinstance(value, Mapping) and not head.endswith(PAIRS):
            within = self._within(head)
            for name, inner in value.items():
                within.add(str(name).replace("-", "_").split("."), inner)
        elif dataclasses.is_dataclass(value):
            self._within(head)[BASE] = value
        else:
            self[head] = value

    def _within(self, head: str) -> _Tree:
        within = self.get(head)
        self[head] = within = within if isinstance(within, _Tree) else _Tree()
        return within


def _applied(config: Config, tree: _Tree, convert: Convert, root: Any = None, prefix: str = "") -> Config:
    """`config` with the settings of a tree. `prefix` is its name within `root`, the whole config."""
    root, changes = root or config, dict[str, Any]()
    hints = typing.get_type_hints(type(config))
    known = {item.name for item in dataclasses.fields(config)}  # type: ignore[arg-type]
    for head, value in tree.items():
        if head == BASE:
            continue
        if head not in known:
            _refuse_unknown(root, prefix + _name(head, value))
        here: Any = getattr(config, head)
        if dataclasses.is_dataclass(here):
            changes[head] = _applied_group(here, value, convert, root, prefix + head)
        elif isinstance(value, _Tree):
            _refuse_unknown(root, prefix + _name(head, value))
        else:
            changes[head] = convert(value, hints[head], prefix + head)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _name(head: str, value: Any) -> str:
    """The dotted name of the first setting below `head`."""
    names = [_name(*item) for item in value.items() if item[0] != BASE] if isinstance(value, _Tree) else []
    return ".".join([head, *names[:1]])


def _applied_group(group: Any, value: Any, convert: Convert, root: Any, name: str) -> Any:
    """A group of settings: some of them by name, or a whole config object."""
    whole = value.get(BASE, group) if isinstance(value, _Tree) else value
    if isinstance(whole, type(group)):
        return _applied(whole, value, convert, root, f"{name}.") if isinstance(value, _Tree) else whole
    raise UserError(f"{name}={whole!r} is a group of settings: give {type(group).__name__}(…), or {name}.NAME = VALUE")


def _refuse_unknown(config: object, name: str) -> NoReturn:
    option, known = name.replace("_", "-"), option_names(config)
    if option.startswith("topology.wire."):
        raise UserError(
            f"system {getattr(config, 'system', '')!r} takes no envs from elsewhere, so there is no --{option}; "
            "systems with central inference do, such as seed-vtrace"
        )
    raise UserError(f"unknown option --{option}{closest(option, [*known, *ALIASES])}")


def _checked(value: Any, hint: Any, name: str) -> Any:
    """A Python value as the type hint wants it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _checked(value, next(one for one in arguments if one is not type(None)), name)
    if origin is Literal and value in arguments:
        return value
    if origin in (tuple, list) and isinstance(value, Sequence) and not isinstance(value, str):
        return origin(_checked(one, arguments[0], name) for one in value)
    if origin is dict and isinstance(value, Mapping):
        return {str(key): _checked(one, arguments[1], f"{name}.{key}") for key, one in value.items()}
    if hint is Any or (hint in (bool, str) and isinstance(value, hint)):
        return value
    if hint is int and isinstance(value, float) and value % 1 == 0:  # 1e6 in a file
        return int(value)
    if hint in (int, float) and not isinstance(value, bool) and isinstance(value, int if hint is int else int | float):
        return hint(value)
    if hint is str and isinstance(value, Path):
        return str(value)
    raise UserError(f"{name}={value!r} must be {_kind(hint)}")


def _from_text(words: Sequence[str], hint: Any, name: str) -> Any:
    """The words behind an option as the type hint wants them."""
    origin, option = typing.get_origin(hint), name.replace("_", "-")
    if origin in (tuple, list):
        return origin(_number_or_text(word, typing.get_args(hint)[0], option) for word in words)
    if origin is dict:
        if len(words) % 2:
            raise UserError(f"--{option} {' '.join(words)} must be NAME VALUE pairs")
        inner = typing.get_args(hint)[1]
        pairs = zip(words[::2], words[1::2], strict=True)
        return {key: _yaml(word, option) if inner is Any else word for key, word in pairs}
    if hint is bool and not words:
        return True
    if len(words) != 1:
        raise UserError(f"--{option} needs a value" if not words else f"--{option} takes one value, not {len(words)}")
    return _number_or_text(words[0], hint, option)


def _yaml(word: str, option: str) -> Any:
    try:
        return yaml.load(word, _Loader)
    except yaml.YAMLError:
        raise UserError(f"--{option}: {word!r} is not YAML; quote it as a string, or fix it") from None


def _number_or_text(word: str, hint: Any, option: str) -> Any:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (Union, types.UnionType):
        if word.lower() == "none" and type(None) in arguments:
            return None
        return _number_or_text(word, next(one for one in arguments if one is not type(None)), option)
    if typing.get_origin(hint) is Literal and word in map(str, arguments):
        return next(one for one in arguments if str(one) == word)
    try:
        if hint is bool and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if hint is int:
            return int(word) if "e" not in word.lower() or float(word) % 1 else int(float(word))
        if hint is float:
            return float(word)
    except ValueError:
        pass
    if hint is str:
        return word
    raise UserError(f"--{option} {word!r} must be {_kind(hint)}")


def _kind(hint: Any) -> str:
    """What a type hint asks for, in words."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if typing.get_origin(hint) in (tuple, list):
        return f"a list of which each is {_kind(arguments[0])}"
    if typing.get_origin(hint) is dict:
        return "NAME VALUE pairs"
    if typing.get_origin(hint) in (Union, types.UnionType):
        return f"{_kind(next(one for one in arguments if one is not type(None)))}, or none"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))


def _range(words: Sequence[str]) -> tuple[str, str]:
    """`--actors 4..64`: how many there must be, and how many there may be."""
    text = "".join(words)
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"--actors {text} must go from 1 or more up to as many or more, such as 4..64")
    return found[1], found[2]


def _with_actors(config: RunConfig, given: _Tree) -> RunConfig:
    """More learners bring the actors that they need, unless actors are given, too."""
    if "learners" not in given or "actors" in given:
        return config
    return dataclasses.replace(config, actors=max(config.actors, config.topology.fewest_actors(config.learners)))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _width() -> int:
    return min(120, max(60, shutil.get_terminal_size((100, 24)).columns))


def _help(config: Any, prefix: str) -> list[str]:
    """The options of one group, then those of its subgroups."""
    texts, lines, groups = _field_texts(type(config)), list[str](), list[str]()
    for item in dataclasses.fields(config):
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            groups += ["", f"{name}: {texts.get(item.name, '')}", *_help(value, f"{name}.")]
        elif name != "system":
            hint = typing.get_type_hints(type(config))[item.name]
            default = "" if value in ("", None, (), {}) else f" (default: {_shown(value)})"
            text = f"{texts.get(item.name, '')} [{_kind(hint)}]{default}"
            lines += [f"  --{name}", *textwrap.wrap(text, _width(), initial_indent=" " * 8, subsequent_indent=" " * 8)]
    return [*lines, *groups]


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _field_texts(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                assert isinstance(text.value, ast.Constant)
                texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts
