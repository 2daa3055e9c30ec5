"""The mutable state of Gymnasium envs as plain data, so that a run resumes bit-exactly.

`capture` walks the attributes of an env, its wrappers, its sub-envs and its spaces, and writes what it finds as
numpy arrays, numbers, strings, lists and dicts: no pickle, so that reading a snapshot runs no code. `restore`
walks a live env of the same kind in parallel and puts the values back.

- An object that is reached twice is written once and restored as one object, so that sharing is preserved.
- Functions, classes, specs and the like are constants: the live env's own are kept.
- An attribute of any other type may hide state, and arrays that are views of one memory look like copies. In both
  cases there is no snapshot.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec

from pappus.errors import RunError
from pappus.types import Array, Nest

_ENVS = (gym.Env, gym.vector.VectorEnv)
_CONSTANTS = (
    enum.Enum, functools.partial, GymSpec, np.dtype, range, type, types.BuiltinFunctionType, types.FunctionType,
    types.MethodType, types.ModuleType,
)
_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "deque": deque, "set": set}
_SPACE_STATE = ("_np_random", "spaces")  # everything else in a space is constant


def capture(env: object) -> Nest | None:
    """The state of `env` as plain data, or None where it is unknown."""
    try:
        return _Writer().write(env, type(env).__name__)
    except _Obstacle:
        return None


def obstacle(env: object) -> str:
    """Why there is no snapshot of `env`; empty if there is one."""
    try:
        _Writer().write(env, type(env).__name__)
    except _Obstacle as error:
        return str(error)
    return ""


def restore(env: object, snapshot: Nest) -> None:
    """Put a captured state into a live env of the same kind."""
    _Reader().read(snapshot, env, type(env).__name__)


class _Obstacle(Exception):
    """The attribute whose state is unknown, and why."""


class _Plain:
    """Instances of Python classes without slots have this size; larger ones hold memory of their own."""


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # an id is unique only while its object lives
        self._owners: dict[int, str] = {}

    def write(self, value: object, path: str) -> Nest:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, _CONSTANTS):
            return {"kind": "constant"}
        if isinstance(value, np.generic):
            return {"kind": "scalar", "value": self._plain(np.asarray(value), path)}
        if id(value) in self._numbers:
            return {"kind": "same", "number": self._numbers[id(value)]}
        self._numbers[id(value)] = number = len(self._numbers)
        self._kept.append(value)
        return {"number": number, **self._content(value, path)}

    def _content(self, value: object, path: str) -> dict[str, Nest]:
        if isinstance(value, np.ndarray):
            return {"kind": "array", "value": self._array(value, path)}
        if isinstance(value, np.random.Generator):
            return {"kind": "generator", "value": value.bit_generator.state}
        if isinstance(value, np.random.RandomState):
            return {"kind": "random_state", "value": value.get_state(legacy=False)}
        if isinstance(value, dict):
            pairs = [[self.write(k, path), self.write(v, f"{path}[{k!r}]")] for k, v in value.items()]
            return {"kind": "dict", "value": pairs}
        if type(value) in _SEQUENCES.values():
            items = [self.write(item, f"{path}[{i}]") for i, item in enumerate(value)]  # type: ignore[arg-type,var-annotated]
            maxlen = value.maxlen if isinstance(value, deque) else None
            return {"kind": type(value).__name__, "value": items, "maxlen": maxlen}
        if isinstance(value, (*_ENVS, gym.Space)):
            return self._object(value, path)
        raise _Obstacle(f"{path} is a {type(value).__name__}, whose state is unknown")

    def _object(self, value: object, path: str) -> dict[str, Nest]:
        if type(value).__basicsize__ > _Plain.__basicsize__:
            raise _Obstacle(f"{path} is a {type(value).__name__}, which keeps state outside its attributes")
        attributes = {k: self.write(v, f"{path}.{k}") for k, v in _attributes(value).items()}
        return {"kind": "object", "type": type(value).__name__, "value": attributes}

    def _array(self, value: Array, path: str) -> Array:
        memory: Any = value
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        owner = self._owners.setdefault(id(memory), path)
        if owner != path:
            raise _Obstacle(f"{path} is a view of the same memory as {owner}")
        return self._plain(value, path)

    def _plain(self, value: Array, path: str) -> Array:
        if value.dtype.kind not in "biufcSU":
            raise _Obstacle(f"{path} is an array of {value.dtype}, whose state is unknown")
        return value.copy()


class _Reader:
    def __init__(self) -> None:
        self._objects: dict[int, object] = {}

    def read(self, node: Nest, live: object, path: str) -> Any:
        if not isinstance(node, dict):
            return node
        match node["kind"]:
            case "constant":
                return live
            case "scalar":
                return node["value"][()]
            case "same":
                return self._objects[node["number"]]
        value = self._content(node, live, path)
        self._objects[node["number"]] = value
        return value

    def _content(self, node: dict[str, Any], live: object, path: str) -> object:
        value = node["value"]
        match node["kind"]:
            case "array":
                return value.copy()
            case "generator":
                return _generator(value)
            case "random_state":
                state = np.random.RandomState()
                state.set_state(value)
                return state
            case "dict":
                return self._dict(value, live, path)
            case "object":
                return self._object(node, live, path)
        items = list(live) if isinstance(live, list | tuple | deque) else []
        items += [None] * (len(value) - len(items))
        made = [self.read(item, old, f"{path}[{i}]") for i, (item, old) in enumerate(zip(value, items, strict=False))]
        return deque(made, node["maxlen"]) if node["kind"] == "deque" else _SEQUENCES[node["kind"]](made)

    def _dict(self, pairs: list[Any], live: object, path: str) -> dict[Any, Any]:
        old = live if isinstance(live, dict) else {}
        result = {}
        for key_node, node in pairs:
            key = self.read(key_node, None, path)
            result[key] = self.read(node, old.get(key), f"{path}[{key!r}]")
        return result

    def _object(self, node: dict[str, Any], live: object, path: str) -> object:
        if type(live).__name__ != node["type"]:
            raise RunError(f"snapshot has a {node['type']} at {path}, and the env a {type(live).__name__}")
        self._objects[node["number"]] = live
        attributes = _attributes(live)
        for name in attributes.keys() - node["value"].keys():
            delattr(live, name)
        for name, child in node["value"].items():
            setattr(live, name, self.read(child, attributes.get(name), f"{path}.{name}"))
        return live


def _attributes(value: object) -> dict[str, Any]:
    attributes = dict(vars(value))
    if isinstance(value, gym.Space):
        return {name: attributes[name] for name in _SPACE_STATE if name in attributes}
    return attributes


def _generator(state: dict[str, Any]) -> np.random.Generator:
    kind = getattr(np.random, str(state["bit_generator"]), None)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise RunError(f"snapshot has a random state of {state['bit_generator']!r}, which numpy does not know")
    bits = kind()
    bits.state = state
    return np.random.Generator(bits)
