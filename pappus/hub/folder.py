"""`pappus push` and `pappus pull`: a run to and from a folder in the layout of a model hub's repository.

    DIR/
      README.md                 the model card
      config.yaml               all settings; paths of this machine are left out
      model.safetensors         the weights by name
      checkpoints/step-…/       the whole checkpoint: `pull` makes a run of it that plays and resumes
      summary.json  metrics.jsonl  policy.onnx …      as far as the run has them

What is pulled is a stranger's: nothing of it is run, and what it names needs `--trust` later (`trust.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from pappus.errors import UserError
from pappus.hub.card import About, check_card, has_card, write_card
from pappus.hub.files import EXPORT, FORMATS, NOTE, exported_in
from pappus.settings import load_file
from pappus.telemetry.checkpoint import MANIFEST, CheckpointStore, read_manifest
from pappus.telemetry.files import write_text
from pappus.telemetry.run_folders import check_free, find_checkpoint
from pappus.trust import RUN_FILE

MODEL = "model.safetensors"
PLAIN = ("summary.json", "metrics.jsonl", "env-spec.yaml")
"""Files of a run that are copied unchanged if they exist."""
OF_THIS_MACHINE = ("run_dir", "record", "storage.fallback_dir")
"""Settings that only make sense on this machine."""
POINTER = b"version https://git-lfs"


def push(run: Path, folder: Path, which: str = "latest") -> list[str]:
    """Write the `latest` or the `best` checkpoint of a run; the names of what was written."""
    checkpoint = find_checkpoint(run, which)
    if folder.resolve() == run.resolve() or run.resolve() in folder.resolve().parents:
        raise UserError(f"{str(folder)!r} is within the run itself; push to another folder")
    check_target(folder)
    about = About.of(run, checkpoint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / RUN_FILE, yaml.safe_dump(elsewhere(load_file(run / RUN_FILE)), sort_keys=False))
        _copy(run, folder, PLAIN)
        for name in _exports():
            (folder / name).unlink(missing_ok=True)  # of an earlier push
        _copy(run / EXPORT, folder, _exports())
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        _copy_checkpoint(checkpoint, folder / "checkpoints" / checkpoint.name)
        named = write_weights(checkpoint, folder / MODEL)
    except OSError as error:
        raise UserError(f"{str(folder)!r} cannot be written: {error.strerror}; give another folder") from None
    weights = {MODEL: "the weights by name, for any program that reads safetensors"} if named else {}
    whole = {RUN_FILE: "all settings", f"checkpoints/{checkpoint.name}/": "what `pappus pull` makes a run of"}
    write_card(folder, about, {**weights, **whole, **exported_in(folder)})
    return sorted(path.relative_to(folder).as_posix() for path in folder.iterdir() if not path.name.startswith("."))


def check_target(folder: Path) -> None:
    """Raise `UserError` for a folder with other content, such as another run, that would be overwritten."""
    check_card(folder)
    taken = [name for name in (RUN_FILE, "checkpoints") if (folder / name).exists()]
    if taken and not has_card(folder):
        raise UserError(f"{str(folder)!r} has a {taken[0]} that pappus push did not write; give another folder")


def pull(folder: Path, run: Path) -> Path:
    """Make a run directory from a pushed folder; its checkpoint, with every file verified."""
    check_pulled(folder)
    check_free(run)
    checkpoint = CheckpointStore(folder / "checkpoints").latest()
    if checkpoint is None:
        raise UserError(f"{str(folder)!r} holds no checkpoint; push one there with pappus push")
    draft = run.with_name(f".partial-{run.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        (draft / EXPORT).mkdir(parents=True)
        _copy(folder, draft, (RUN_FILE, *PLAIN))
        _copy(folder, draft / EXPORT, _exports())
        _copy_checkpoint(checkpoint, draft / "checkpoints" / checkpoint.name)
        os.rename(draft, run)
    except OSError as error:
        raise UserError(f"{str(run)!r} cannot be written: {error.strerror}; give another") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return run / "checkpoints" / checkpoint.name


def check_pulled(folder: Path) -> None:
    """Raise `UserError` for a folder that holds no run, or one whose large files were not fetched."""
    if not (folder / RUN_FILE).is_file():
        raise UserError(f"{str(folder)!r} holds no run: it has no {RUN_FILE}; give a folder that pappus push wrote")
    for path in (folder / "checkpoints").glob("step-*/*.safetensors"):
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise UserError(f"{str(path)!r} is a pointer of Git LFS; fetch the files first: git lfs pull")


def elsewhere(config: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that name places on this machine."""
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for name in OF_THIS_MACHINE:
        *outer, last = name.split(".")
        level = kept.get(outer[0], {}) if outer else kept
        if isinstance(level, dict):
            level.pop(last, None)
    return kept


def write_weights(checkpoint: Path, path: Path) -> bool:
    """The checkpoint's weights by name; False where it does not name them: an old one, or one whose shards cut
    tensors."""
    from safetensors.numpy import load_file as load_tensors
    from safetensors.numpy import save_file

    names = read_manifest(checkpoint)["metadata"].get("weights_roles", ["learner"])
    stored = {key: value for name in names for key, value in load_tensors(checkpoint / f"{name}.safetensors").items()}
    weights = {key.removeprefix("weights."): value for key, value in stored.items() if key.startswith("weights.")}
    if not weights or any(name.endswith("]") for name in weights):
        path.unlink(missing_ok=True)
        return False
    save_file(weights, path)
    return True


def _exports() -> Iterator[str]:
    for name in FORMATS.values():
        yield from (name, f"{name}{NOTE}")


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    """Plain files that are there; a link may lead anywhere."""
    for name in names:
        path = source / name
        if path.is_symlink():
            raise UserError(f"{str(path)!r} is a link; give a folder of plain files")
        if path.is_file():
            shutil.copyfile(path, target / name)


def _copy_checkpoint(source: Path, target: Path) -> None:
    """What the manifest lists, and nothing else."""
    target.mkdir(parents=True)
    names = [MANIFEST, *read_manifest(source)["files"]]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
    _copy(source, target, names)
