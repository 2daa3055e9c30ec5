"""File names of exported policies, and the notes beside them. Nothing here needs torch."""

from __future__ import annotations

import importlib.util
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pappus.errors import UserError, install_line

FORMATS = {"onnx": "policy.onnx", "torch-export": "policy.pt2"}
"""What `--format` may be, and the file that it makes."""
NEEDS = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "torch-export": ()}
NOTE = ".json"
"""Added to the name of a file that has a note."""
EXPORT = "export"
"""The folder of a run's exported policies."""


def check_format(name: str) -> None:
    """Raise `UserError` where packages that a format needs are missing."""
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"--format {name} needs {' and '.join(missing)}, which is not installed; run {install_line('export')}, or "
            "use --format torch-export"
        )


def check_folder(out: Path) -> None:
    """Raise `UserError` for a path that is, or looks like, a file."""
    if out.suffix in (".onnx", ".pt2", ".json", ".md") or out.is_file():
        names = ", ".join(FORMATS.values())
        raise UserError(f"--out {str(out)!r} names a file; give a folder, in which {names} and README.md are written")


def exported_in(folder: Path) -> dict[str, str]:
    """The exported policies in a folder, and what their notes say of them."""
    found = {}
    for name in FORMATS.values():
        if (folder / name).is_file():
            found[name] = f"the policy for {'ONNX Runtime' if name.endswith('onnx') else 'torch.export.load'}"
            with suppress(OSError, ValueError, KeyError, TypeError):
                note: Any = json.loads((folder / f"{name}{NOTE}").read_text(encoding="utf-8"))
                found[name] += f", at step {note['steps']:,}; {note['agreement']['text']}"
                found[f"{name}{NOTE}"] = "its inputs, outputs, and how it was checked"
    return found
