"""The hash of a nest of state, and where two of them differ.

It is a function of the values alone: the sorted names of leaves, their types, shapes and bytes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

BESIDE = ("folder", "record")
"""Keys of what names files beside the checkpoint: they are called otherwise in a run that repeats another one."""


def digest(state: Any) -> str:
    """The sha256 of a nest of tensors, arrays and plain values."""
    total = hashlib.sha256()
    for name, leaf in leaves(state):
        total.update(f"{name}\0".encode())
        for part in _described(leaf):
            total.update(part)
    return total.hexdigest()


def difference(one: Any, two: Any) -> str:
    """The name of the first leaf that two nests do not have in common; empty if they are equal."""
    ours, theirs = dict(leaves(one)), dict(leaves(two))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or _described(ours[name]) != _described(theirs[name]):
            return name
    return ""


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All leaves of a nest by name, such as `policy.random.used`; empty containers are leaves."""
    if isinstance(state, Mapping) and state:
        for key in sorted(state, key=str):
            if key not in BESIDE:
                yield from leaves(state[key], f"{path}.{key}" if path else str(key))
    elif isinstance(state, list | tuple) and state:
        for i, item in enumerate(state):
            yield from leaves(item, f"{path}.{i}" if path else str(i))
    else:
        yield path, state


def _described(leaf: Any) -> list[bytes]:
    """Type, shape and bytes."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        plain = leaf.detach().cpu().contiguous()
        return [f"{leaf.dtype}{list(leaf.shape)}".encode(), plain.reshape(-1).view(torch.uint8).numpy().tobytes()]
    if isinstance(leaf, np.ndarray | np.generic):
        return [f"{leaf.dtype}{list(leaf.shape)}".encode(), np.ascontiguousarray(leaf).tobytes()]
    return [f"{type(leaf).__name__} {leaf!r}".encode()]
