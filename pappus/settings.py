"""Settings become a config: Python values, YAML files and command-line words, checked by the config's own types.

A setting has a dotted name, such as `optimizer.learning_rate`. Python and YAML give values (`override`), the command
line gives text (`parse`). Both end in `_checked`, so an unknown name or a wrong value fails with the same sentence.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, Union

import yaml

from pappus.arguments import number_of
from pappus.config import AUTO, RunConfig
from pappus.errors import UserError, closest
from pappus.field_names import our_option

ALIASES = {
    "core": "network.core", "listen": "topology.wire.listen", "address": "cluster.address",
    "on_storage_failure": "storage.on_failure", "fallback_dir": "storage.fallback_dir",
    "callback": "hooks.callbacks", "log": "hooks.loggers", "price": "cost.price", "budget": "cost.budget",
    "page_listen": "page_server.listen",
}
"""Short names of settings that live deeper."""

AUTOMATIC = ("actors", "--actors")
"""Numbers that may be `auto`."""
WITHOUT_INFLUENCE = (
    "run_dir", "record", "seconds", "target_return", "evaluation", "checkpoint", "storage", "supervision", "cluster",
    "hooks", "cost", "page", "page_server",
)
"""Settings that do not change what is learnt from one update to the next."""
REPEATED = ("hooks.callbacks", "hooks.loggers")
"""Options whose values add up where they are given more than once; of others the last one counts."""
DEEPEST, MOST = 32, 100_000
"""Levels and values of a file with settings."""
UNIONS = (Union, types.UnionType)
Config = TypeVar("Config")
Given: TypeAlias = list[tuple[list[str], Any]]
"""Settings: the parts of a dotted name, and the value."""
Convert: TypeAlias = Callable[[Any, Any, str], Any]
"""(value, type hint, name) → the value as the hint wants it, or `UserError`."""
_hints: Callable[[Any], Mapping[str, Any]] = functools.cache(typing.get_type_hints)
"""The types of a config's settings: annotations are text that has to be compiled."""


SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of C, many times as fast, where PyYAML was built with it."""
SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(SafeLoader):  # type: ignore[misc]
    """YAML 1.2: its numbers, as PyYAML alone reads `1e-3` as text, and no merge keys. These copy what they refer to, so
    that a few lines could fill the memory while they are read."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Called for every mapping before it is built."""
        merge = next((key for key, _ in node.value if key.tag == "tag:yaml.org,2002:merge"), None)
        if merge is not None:
            raise yaml.YAMLError(f"line {merge.start_mark.line + 1} has a merge key, <<; write its settings out")


class _Dumper(SafeDumper):  # type: ignore[misc]
    """Quotes a text that `_Loader` would read as a number."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def override(config: RunConfig, settings: Mapping[str, Any], source: str = "") -> RunConfig:
    """`config` with settings replaced. Names are dotted or nested; a group of settings may be a whole config object."""
    try:
        return _applied_all(config, [(_path(name), value) for name, value in settings.items()], _checked)
    except UserError as error:
        raise UserError(f"{error} (in {source})" if source else str(error)) from None


def parse(config: RunConfig, words: Sequence[str], source: str = "pappus train") -> RunConfig:
    """`config` with command-line words such as `--algorithm.entropy-cost 0.01` applied; `--help` prints and exits."""
    if any(word in ("-h", "--help") for word in words):
        print(help_text(config, source))
        raise SystemExit(0)
    given: Given = []
    for option, values in _options(words, source):
        if option == "actors" and ".." in "".join(values):
            least, most = _range(values)
            given.append((["cluster", "fewest_actors"], [least]))
            values = [most]
        *group, last = _path(option)
        if not values and last.startswith("no_"):  # --optimizer.no-anneal; the last of several counts
            last, values = last[3:], ["false"]
        before = [have for path, have in given if path == [*group, last] and ".".join(path) in REPEATED]
        given.append(([*group, last], [*(before[-1] if before else []), *values]))
    names = {path[0] for path, _ in given}
    if "envs" in names and names & {"envs_per_actor", "max_envs"}:
        raise UserError(
            "--envs is the total number of envs, --envs-per-actor the number per actor, which --max-envs limits; give "
            "--envs or the others"
        )
    return _applied_all(config, given, _from_text)


def load_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file, as `override` takes them."""
    return load_content(path.read_bytes, path)


def load_content(read: Callable[[], bytes], path: Path) -> dict[str, Any]:
    """The same of what `read` gives, which a file at `path` holds."""
    try:
        content = yaml.load(read().decode(), _Loader)
        _check_size(content)
    except Exception as error:  # PyYAML lets many kinds through
        raise UserError(f"config file {str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"config file {str(path)!r} holds no settings; write NAME: VALUE lines")
    return content


def load_entries(path: Path) -> dict[str, tuple[int, Any]]:
    """The entries of a YAML file that is one mapping, each with the number of its line."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ValueError("it is no mapping; write NAME: VALUE lines")
        found: dict[str, tuple[int, Any]] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in found:
                raise ValueError(f"line {line} gives {name} again, after line {found[name][0]}; give it once")
            found[name] = (line, loader.construct_object(value, deep=True))
        _check_size([value for _, value in found.values()])
    except Exception as error:  # PyYAML lets many kinds through
        raise UserError(f"file {str(path)!r} cannot be read: {' '.join(str(error).split())}") from None
    return found


def _check_size(content: Any) -> None:
    """Refuse what no config is like: YAML's references can say a lot in few words, and even hold themselves."""
    level, count = [content], 0
    for _ in range(DEEPEST):
        mappings = [one for one in level if isinstance(one, dict)]
        lists = [one for one in level if isinstance(one, list)]
        count += len(level) + sum(map(len, [*mappings, *lists]))
        if count > MOST:
            break
        level = [inner for one in mappings for inner in one.values()] + [inner for one in lists for inner in one]
        if not level:
            return
    raise ValueError(f"it is no config, with more than {MOST:,} values or {DEEPEST} levels")


def to_yaml(config: RunConfig) -> str:
    """The resolved config, as `load_file` reads it."""
    plain = dataclasses.asdict(
        config, dict_factory=lambda items: {key: list(one) if isinstance(one, tuple) else one for key, one in items}
    )
    try:
        return str(yaml.dump(plain, Dumper=_Dumper, sort_keys=False))
    except yaml.representer.RepresenterError as error:
        raise UserError(
            f"a setting cannot be written to config.yaml: {error.args[-1]!r}; give plain values, or a function as env"
        ) from None


def fingerprint(config: RunConfig) -> str:
    """The sha256 of all settings that can change what is learnt."""
    plain = {key: value for key, value in dataclasses.asdict(config).items() if key not in WITHOUT_INFLUENCE}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def option_names(config: object, prefix: str = "") -> list[str]:
    """Every dotted option name of a config, with dashes as on the command line."""
    names: list[str] = []
    for item in dataclasses.fields(config):  # type: ignore[arg-type]
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        names += option_names(value, f"{name}.") if dataclasses.is_dataclass(value) else [name]
    return names


def differences(config: Any, plain: Any = None, prefix: str = "") -> dict[str, object]:
    """Settings of `config` that differ from those of `plain`, or from the defaults of its class, by option name."""
    found: dict[str, object] = {}
    for item in dataclasses.fields(config):
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        one, other = getattr(config, item.name), default if plain is None else getattr(plain, item.name)
        option = prefix + item.name.replace("_", "-")
        if dataclasses.is_dataclass(one):
            found |= differences(one, other if type(other) is type(one) else None, f"{option}.")
        elif one != other and option != "system":
            found[option] = one
    return found


def help_text(config: RunConfig, source: str) -> str:
    """Every option, its type, its value so far and what it means, by group."""
    width = min(120, max(60, shutil.get_terminal_size((100, 24)).columns))
    short = ", ".join(f"--{short} is --{name}".replace("_", "-") for short, name in ALIASES.items())
    needed = "--data DIR" if config.topology.uses_data == "only" else "--env ID"
    lines = [f"usage: {source} {needed} [options]", "", *_help(config, "", width), ""]
    return "\n".join([*lines, *textwrap.wrap(f"Short names: {short}.", width)])


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


def _applied_all(config: RunConfig, given: Given, convert: Convert) -> RunConfig:
    """`config` with settings replaced. Envs per actor that are given replace envs in total and a limit that are not.
    More learners bring the actors that they need, unless actors are given, too."""
    config, names = _applied(config, given, convert), {path[0] for path, _ in given}
    if "envs_per_actor" in names:
        envs, limit = (config.envs * ("envs" in names), config.max_envs * ("max_envs" in names))
        config = dataclasses.replace(config, envs=envs, max_envs=limit)
    if "learners" not in names or "actors" in names or config.actors == AUTO:
        return config
    return dataclasses.replace(config, actors=max(config.actors, config.topology.fewest_actors(config.learners)))


def _applied(config: Config, given: Given, convert: Convert, root: Any = None, prefix: str = "") -> Config:
    """`config` with settings replaced, all at once: only together they need to be valid. Of a setting that is given
    twice the last one counts. `prefix` is the config's name within `root`, the whole config."""
    root, changes = root or config, dict[str, Any]()
    hints = _hints(type(config))
    known = {item.name for item in dataclasses.fields(config)}  # type: ignore[arg-type]
    for head in dict.fromkeys(path[0] for path, _ in given):
        mine = [(path[1:], value) for path, value in given if path[0] == head]
        deeper = [path for path, _ in mine if path]
        here = getattr(config, head) if head in known else None
        if dataclasses.is_dataclass(here):
            changes[head] = _applied_group(here, mine, convert, root, prefix + head)
        elif head not in known or deeper:
            _refuse_unknown(root, prefix + ".".join([head, *(deeper[0] if deeper else [])]))
        else:
            changes[head] = convert(mine[-1][1], hints[head], prefix + head)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _applied_group(group: Any, given: Given, convert: Convert, root: Any, name: str) -> Any:
    """A group of settings: some of them by name or as a mapping, on top of a whole config object where one is given."""
    inner: Given = []
    for path, value in given:
        if path:
            inner.append((path, value))
        elif isinstance(value, Mapping):
            inner += [(str(key).replace("-", "_").split("."), one) for key, one in value.items()]
        elif isinstance(value, type(group)):
            group = value
        else:
            kind = type(group).__name__
            raise UserError(f"{name}={value!r} is a group of settings: give {kind}(…), or {name}.NAME = VALUE")
    return _applied(group, inner, convert, root, f"{name}.")


def _refuse_unknown(config: object, name: str) -> NoReturn:
    option, known = name.replace("_", "-"), option_names(config)
    if option.startswith("topology.wire."):
        raise UserError(
            f"system {getattr(config, 'system', '')!r} accepts no remote envs, so there is no --{option}; "
            "systems with central inference do, such as seed-vtrace"
        )
    short = [name.replace("_", "-") for name in ALIASES]
    if ours := our_option(option, [*known, *short]):
        raise UserError(f"unknown option --{option}{ours}")
    raise UserError(f"unknown option --{option}{closest(option, [*known, *short])}")


def _checked(value: Any, hint: Any, name: str) -> Any:
    """A Python value as the type hint wants it."""
    if name in AUTOMATIC and value == "auto":
        return AUTO
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        for one in arguments:
            with contextlib.suppress(UserError):
                return _checked(value, one, name)
    elif origin is Literal and value in arguments:
        return value
    elif origin in (tuple, list) and isinstance(value, Sequence) and not isinstance(value, str):
        hints = _element_hints(hint, len(value), name)
        return origin(_checked(one, inner, name) for one, inner in zip(value, hints, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {str(key): _checked(one, arguments[1], f"{name}.{key}") for key, one in value.items()}
    elif hint is Any or (hint in (bool, str, types.NoneType) and isinstance(value, hint)):
        return value
    elif hint in (int, float) and isinstance(value, str) and (number := number_of(value)) is not None:  # 2M in a file
        return _checked(number, hint, name)
    elif hint is int and isinstance(value, float) and value % 1 == 0:  # 1e6 in a file
        return _checked(int(value), hint, name)
    elif hint in (int, float) and isinstance(value, (int, hint)) and not isinstance(value, bool):
        if isinstance(value, float) or abs(value) < 1 << 63:
            return hint(value)
    elif hint is str and isinstance(value, Path):
        return str(value)
    raise UserError(f"{name}={value!r} must be {_kind(hint)}{' or auto' if name in AUTOMATIC else ''}")


def _element_hints(hint: Any, length: int, name: str) -> list[Any]:
    """The type hint of each element of a list, a tuple, or a tuple of a fixed length."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is list or arguments[-1] is Ellipsis:
        return [arguments[0]] * length
    if len(arguments) != length:
        raise UserError(f"{name} has {length} values and must be {_kind(hint)}")
    return list(arguments)


def _from_text(words: Sequence[str], hint: Any, name: str) -> Any:
    """The words behind an option as the type hint wants them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    option = f"--{name.replace('_', '-')}"
    if origin in (tuple, list):
        hints = _element_hints(hint, len(words), option)
        return origin(_from_text([word], inner, name) for word, inner in zip(words, hints, strict=True))
    if origin is dict:
        pairs = _pairs(words, option)
        _refuse_repeated([key for key, _ in pairs], option)
        return {key: _from_text([word], arguments[1], f"{name}.{key}") for key, word in pairs}
    if not words:
        if hint is bool:
            return True
        raise UserError(f"{option} needs a value")
    if origin in UNIONS:
        for one in sorted(arguments, key=lambda one: one is str):  # every word is a text: that comes last
            with contextlib.suppress(UserError):
                return _from_text(words, one, name)
        raise UserError(f"{option}={' '.join(words)!r} must be {_kind(hint)}")
    if len(words) > 1:
        raise UserError(f"{option} takes one value, not {len(words)}")
    return _checked(_read(words[0], hint, option), hint, option)


def _pairs(words: Sequence[str], option: str) -> list[tuple[str, str]]:
    """`NAME VALUE NAME VALUE`, `NAME=VALUE,NAME=VALUE`, or the entries of a YAML file."""
    if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
        return [(str(key), str(value)) for key, value in load_file(Path(words[0])).items()]
    if words and "=" in words[0]:
        found = [part.partition("=") for word in words for part in word.split(",") if part]
        if all(name and equals and value for name, equals, value in found):
            return [(name.strip(), value.strip()) for name, _, value in found]
    elif len(words) % 2 == 0:
        return list(zip(words[::2], words[1::2], strict=True))
    raise UserError(f"{option} {' '.join(words)} must be NAME VALUE or NAME=VALUE pairs, or a YAML file")


def _refuse_repeated(keys: Sequence[str], option: str) -> None:
    twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
    if twice is not None:
        raise UserError(f"{option} names {twice} twice; leave one of them out")


def _read(word: str, hint: Any, option: str) -> Any:
    """What a word means where the hint is wanted; the word itself where it means nothing of the kind."""
    if hint is Any:
        try:
            return yaml.load(word, _Loader)
        except yaml.YAMLError:
            raise UserError(f"{option}: {word!r} is not YAML; quote it as a string, or fix it") from None
    if hint in (int, float):
        number = number_of(word)
        return word if number is None else number
    if hint is bool:
        return {"true": True, "false": False}.get(word.lower(), word)
    if hint is types.NoneType and word.lower() == "none":
        return None
    if typing.get_origin(hint) is Literal:
        return next((one for one in typing.get_args(hint) if str(one) == word), word)
    return word


def _kind(hint: Any) -> str:
    """What a type hint asks for, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"a list of which each is {_kind(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(map(_kind, arguments))}"
    if origin is dict:
        return "NAME VALUE pairs"
    if origin in UNIONS:
        return " or ".join(map(_kind, arguments))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "none"}
    return names.get(hint, str(hint))


def _range(words: Sequence[str]) -> tuple[str, str]:
    """`--actors 4..64`: how many there must be, and how many there may be."""
    text = "".join(words)
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"--actors {text} must go from 1 or more up to as many or more, such as 4..64")
    return found[1], found[2]


def _help(config: Any, prefix: str, width: int) -> list[str]:
    """The options of one group, then those of its subgroups."""
    texts, lines, groups = _field_texts(type(config)), list[str](), list[str]()
    for item in dataclasses.fields(config):
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            about = (type(value).__doc__ or "").partition("\n")[0]
            groups += ["", f"{name}: {about}", *_help(value, f"{name}.", width)]
        elif name != "system":
            hint = _hints(type(config))[item.name]
            shown = "auto" if item.name in AUTOMATIC and value == AUTO else value
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else shown
            default = "" if value in ("", None, (), {}) else f" (default: {shown})"
            text = f"{texts.get(item.name, '')} [{_kind(hint)}]{default}"
            lines += [f"  --{name}", textwrap.indent(textwrap.fill(text, width - 8), " " * 8)]
    return [*lines, *groups]


def _field_texts(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            body: Any = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):
            continue
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                assert isinstance(text.value, ast.Constant)
                texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts
