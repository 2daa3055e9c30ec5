"""Nests of state ↔ JSON and named tensors, exactly and without pickle.

    None, bool, str, list        as JSON says them
    dict with plain string keys  a JSON object
    anything else                an object with a `$` key: {"$tuple": […]}, {"$tensor": NAME}, …

A tensor's name is the path to it, such as `optimizer.state.0.exp_avg`. The flat `weights` of a network are written as
the tensors that lie in them (`weights.torso.layers.0.weight`), so that anything that reads safetensors can use them,
and are flat again when they are read: {"$flat": [NAME, …], "channels_last": [NAME, …]}.
"""

from __future__ import annotations

import base64
import collections
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pappus.errors import UserError
from pappus.layout import Layout, flattened, places, view

if TYPE_CHECKING:  # a role without a network needs no torch
    import torch

Path = tuple[str, ...]

WEIGHTS = "weights"
"""Key of the flat weights in the state of a role that trains."""

SAFE_INTEGER = 2**53
"""Larger integers are written as text: other JSON readers would round them."""
SAFETENSORS_TYPES = {
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64",
}
"""Other types are stored as bytes."""
NUMPY_KINDS = "biufcmM"


class Encoder:
    """Encodes one nest; `tensors` then holds what its JSON refers to. `layout` names the tensors in its `weights`."""

    def __init__(self, layout: Layout = ()) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._layout = layout
        self._storages: set[int] = set()

    def encode(self, value: Any, path: Path = ()) -> Any:
        """The JSON of `value`, which lies at `path`."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if abs(value) < SAFE_INTEGER else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is bytes:
            return {"$bytes": _to_text(value)}
        if kind is list:
            return [self.encode(item, (*path, str(index))) for index, item in enumerate(value)]
        if kind is tuple:
            return {"$tuple": self.encode(list(value), path)}
        if kind in (dict, collections.OrderedDict):
            return self._encode_dict(value, path)
        return self._encode_numbers(value, path)

    def _encode_dict(self, value: Mapping[Any, Any], path: Path) -> Any:
        items = [(key, self.encode(item, (*path, str(key)))) for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key, _ in items):
            return dict(items)
        return {"$dict": [[self.encode(key, (*path, "key")), item] for key, item in items]}

    def _encode_numbers(self, value: Any, path: Path) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            return self._encode_tensor(value, path)
        if type(value) is np.ndarray and value.dtype.kind in NUMPY_KINDS:
            return self._encode_array(value, path)
        if type(value) is np.ndarray and value.dtype.kind in "SU":  # text, as grid worlds keep their maps
            return {"$text": _to_text(value.tobytes()), "dtype": value.dtype.str, "shape": list(value.shape)}
        if isinstance(value, np.generic) and value.dtype.kind in NUMPY_KINDS:
            return {"$scalar": _to_text(value.tobytes()), "dtype": value.dtype.str}
        raise UserError(
            f"state {'.'.join(path) or 'itself'} is of type {type(value).__name__}, which a checkpoint cannot hold; "
            "use dicts, lists, tuples, tensors, arrays, numbers, strings, bytes or None"
        )

    def _encode_tensor(self, value: torch.Tensor, path: Path) -> Any:
        import torch

        if self._layout and path == (WEIGHTS,):
            return self._encode_weights(value)
        tensor = value.detach().cpu().contiguous()
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in SAFETENSORS_TYPES:
            return {"$tensor": self._store(tensor, path)}
        raw = tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        return {"$tensor": self._store(raw, path), "dtype": dtype, "shape": list(value.shape)}

    def _encode_weights(self, flat: torch.Tensor) -> Any:
        import torch

        rows, names = flat.detach().cpu().numpy(), []
        for part, place in places(self._layout):
            alone = torch.from_numpy(rows[place])  # whose storage is this piece alone: it is written without a copy
            names.append(self._store(view(alone, part).contiguous(), (WEIGHTS, part.name)))
        last = [name for name, part in zip(names, self._layout, strict=True) if part.channels_last]
        return {"$flat": names, "channels_last": last}

    def _encode_array(self, value: np.ndarray[Any, Any], path: Path) -> Any:
        import torch

        dtype = value.dtype
        if dtype.name in SAFETENSORS_TYPES:
            plain = np.require(value, dtype.newbyteorder("="), ["C_CONTIGUOUS", "WRITEABLE"])
            return {"$array": self._store(torch.from_numpy(plain), path), "dtype": dtype.str}
        raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), np.uint8))
        return {"$array": self._store(raw, path), "dtype": dtype.str, "shape": list(value.shape)}

    def _store(self, tensor: torch.Tensor, path: Path) -> str:
        """safetensors refuses tensors that share memory, such as views of one flat buffer: those are copied."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._storages or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        self._storages.add(tensor.untyped_storage().data_ptr())
        name = base = ".".join(path) or "state"
        while name in self.tensors or name == "__metadata__":  # the latter is safetensors' own
            name = f"{base}~{len(self.tensors)}"
        self.tensors[name] = tensor
        return name


def decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The nest that was encoded; KeyError, TypeError or ValueError if it never was one. Values are copied to memory of
    torch or NumPy: in a file they are not aligned, and then sums of products are rounded otherwise."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: decode(item, tensors) for key, item in value.items()}
    content = value[tag]
    if tag == "$tuple":
        return tuple(decode(content, tensors))
    if tag == "$dict":
        return {decode(key, tensors): decode(item, tensors) for key, item in content}
    if tag == "$tensor":
        import torch

        tensor = tensors[content].clone()
        return tensor.view(getattr(torch, value["dtype"])).reshape(value["shape"]) if "dtype" in value else tensor
    if tag == "$flat":
        last = set(value["channels_last"])
        return flattened((tensors[name], name in last) for name in content)
    if tag == "$array":
        return _decode_array(tensors[content].numpy().copy(), value)
    if tag in ("$scalar", "$text"):
        flat = np.frombuffer(_from_text(content), np.dtype(value["dtype"]))
        return flat[0] if tag == "$scalar" else flat.reshape(value["shape"]).copy()
    if tag == "$int":
        return int(content, 16)
    if tag == "$float":
        return float(content)
    if tag == "$bytes":
        return _from_text(content)
    raise KeyError(tag)


def _decode_array(array: np.ndarray[Any, Any], note: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype: np.dtype[Any] = np.dtype(note["dtype"])
    return array.view(dtype).reshape(note["shape"]) if "shape" in note else array.astype(dtype, copy=False)


def _to_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _from_text(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
