"""Part files become a data set: when a run has ended, or when somebody opens what a dead run left behind.

    DIR/lock            shared by all who record into DIR, exclusive for who assembles
    DIR/parts/…         part files, and spec.json, which says what they hold; those that were damaged stay, as *.damaged
    DIR/data/…          the Minari data set

Killed at any moment, assembling loses nothing and repeats nothing: a new HDF5 file with the episodes of all parts, and
with the names of these parts, replaces the old one in one step; parts that it names are only removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optree

from pappus.data.content import any_jpeg
from pappus.data.cutting import Cutter, find_cuts, times_of
from pappus.data.dataset import DatasetWriter
from pappus.data.episode import Episode
from pappus.data.hdf5_writer import last_added
from pappus.data.metadata import METADATA, OWN, frame_stack_of, minari_package, raw_metadata
from pappus.data.parts import SUFFIX, Part
from pappus.data.recorder import LOCK, PARTS, SPEC
from pappus.envs.spaces import Space, action_converter, observation_converter
from pappus.errors import UserError
from pappus.telemetry.files import jsonable, write_json
from pappus.types import EnvSpec

DAMAGED = ".damaged"
"""What the name of a damaged part ends with, when the data set has what could be read of it."""
ATARI_CHOICES = ("life_loss_ends_episode", "frame_skip", "sticky_actions")
"""Options of Atari games that make another task of the same game."""


@dataclass(frozen=True)
class RecordedEnv:
    """What a data set says of the env whose episodes it holds."""

    env: str
    observation_space: Space
    action_space: Space
    frame_stack: int = 1
    own: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of our part of the metadata."""

    @property
    def spec(self) -> EnvSpec:
        action, _ = action_converter(self.action_space)
        return EnvSpec(observation_converter(self.observation_space, action)[0], action, self.frame_stack)

    def write(self, path: Path) -> None:
        """Write it to a file."""
        from minari.serialization import serialize_space

        spaces = {name: serialize_space(getattr(self, name)) for name in ("observation_space", "action_space")}
        write_json(path, {"env": self.env, **spaces, "frame_stack": self.frame_stack, "own": dict(self.own)})

    @classmethod
    def read(cls, path: Path) -> RecordedEnv:
        """What `write` wrote."""
        from minari.serialization import deserialize_space

        raw = path.read_bytes()
        try:
            content = json.loads(raw)
            observation, action = (deserialize_space(content[name]) for name in ("observation_space", "action_space"))
            return cls(content["env"], observation, action, content["frame_stack"], content["own"])
        except Exception as error:  # whatever stands there: it describes no recording
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(
                f"{str(path)!r}, which says what the parts beside it hold, cannot be read ({text}); put it back from a "
                f"copy, or move the folder {path.parent.name!r} away to do without these parts"
            ) from None

    def why_not_beside(self, other: RecordedEnv) -> str:
        """Why episodes of both cannot be in one data set; empty where they can."""
        for name in ("env", "observation_space", "action_space", "frame_stack"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"its {name} is {theirs}, and that of this run {mine}"
        mine, theirs = self._choices(), other._choices()
        for name in mine:
            if name in theirs and mine[name] != theirs[name]:  # sets of others do not say
                return f"its {name} is {theirs[name]}, and that of this run {mine[name]}"
        return ""

    def _choices(self) -> dict[str, Any]:
        """By which steps of envs with the same id and spaces still mean something else, as far as that is known."""
        own: dict[str, Any] = jsonable(dict(self.own))
        options = own.get("env_options", {})
        given = {"clipped_rewards": own, "kwargs": options, **dict.fromkeys(ATARI_CHOICES, options.get("atari", {}))}
        return {name: where[name] for name, where in given.items() if name in where}


class Assembled(NamedTuple):
    """What was added to a data set."""

    episodes: int
    steps: int


@contextmanager
def exclusive(directory: Path) -> Iterator[bool]:
    """Whether nobody records into the directory; as long as it is held, nobody begins to."""
    with (directory / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def assemble(directory: Path) -> Assembled | None:
    """Make all parts of a recording that is over part of its data set; None while a run still records there."""
    with exclusive(directory) as alone:
        if not alone:
            return None
        _forget_added(directory)
        parts = [Part(path) for path in sorted((directory / PARTS).glob(f"*{SUFFIX}"))]
        added = _add(directory, parts) if parts else Assembled(0, 0)
        _remove_parts(directory, parts)
        return added


def _remove_parts(directory: Path, parts: list[Part]) -> None:
    """Remove what recordings wrote, and the folder if nothing else is in it."""
    for part in parts:
        _remove(part)
    (directory / PARTS / SPEC).unlink(missing_ok=True)
    with suppress(OSError):
        (directory / PARTS).rmdir()


def _remove(part: Part) -> None:
    """Remove a part whose episodes are in the data set. One that is damaged is kept under another name."""
    if not part.damage:
        part.path.unlink(missing_ok=True)
        return
    kept = part.path.with_name(part.path.name + DAMAGED)
    part.path.rename(kept)
    print(
        f"{str(part.path)!r} is damaged: {part.damage}; what could be read is in the data set, and the file is kept as "
        f"{kept.name!r}",
        file=sys.stderr,
    )


def complete(directory: Path) -> None:
    """Finish what a run that is dead left behind; `UserError` where there is nothing to read yet."""
    if not (directory / PARTS / SPEC).is_file():
        return
    try:
        added = assemble(directory)
    except OSError as error:
        raise UserError(f"data {str(directory)!r} has parts that cannot be completed: {error}; make room") from None
    if added is not None:
        text = f"completed what a run left behind: {added.episodes:,} episodes, {added.steps:,} steps: {directory}"
        print(text, file=sys.stderr)
    elif not (directory / "data" / METADATA).is_file():
        raise UserError(f"data {str(directory)!r} is still being recorded; wait until the run ends")


def _forget_added(directory: Path) -> None:
    """Remove parts that are in the data set already: whoever assembled them was killed before it could."""
    added = last_added(directory / "data")
    left = [path for name in added.get("sources", ()) if (path := directory / PARTS / name).exists()]
    if left:
        totals = {key: added[key] for key in ("total_episodes", "total_steps")}
        write_json(directory / "data" / METADATA, {**raw_metadata(directory / "data"), **totals})
    for path in left:
        _remove(Part(path))


def _add(directory: Path, parts: list[Part]) -> Assembled:
    about = RecordedEnv.read(directory / PARTS / SPEC)
    writer = DatasetWriter(
        directory, about.spec, about.observation_space, about.action_space, about.env, own=about.own
    )
    structure = optree.tree_structure(about.spec.observation)
    episodes = _in_order([part for part in parts if part.blocks], structure)
    _, to_env_action = action_converter(about.action_space)
    return Assembled(*writer.add(episodes, to_env_action, [part.path.name for part in parts]))


def _in_order(parts: list[Part], structure: Any) -> Iterator[Episode]:
    """The episodes of all parts, by the time at which they ended."""
    found = [find_cuts(part.flags(), keep_open=part.closed) for part in parts]
    times = [times_of(part, cuts) for part, cuts in zip(parts, found, strict=True)]
    readers = [Cutter(part, structure).episodes(cuts) for part, cuts in zip(parts, found, strict=True)]
    whose = np.repeat(np.arange(len(parts)), [len(one) for one in times])
    for number in whose[np.argsort(np.concatenate(times), kind="stable")] if parts else ():
        yield next(readers[number])


def begin_recording(directory: Path, about: RecordedEnv) -> None:
    """Say what will be recorded; `UserError` where that cannot be, or does not belong here. The caller holds a lock."""
    minari_package()
    for place, other in _others(directory):
        reason = about.why_not_beside(other)
        if reason:
            raise UserError(f"record={str(directory)!r} holds {place} that differs: {reason}; give another folder")
    if not (directory / PARTS / SPEC).is_file():
        _publish(directory, about)


def _publish(directory: Path, about: RecordedEnv) -> None:
    """Write what will be recorded, unless another run that begins at the same time was first with the same."""
    draft = directory / PARTS / f"{SPEC}.{os.getpid()}"
    about.write(draft)
    try:
        os.link(draft, directory / PARTS / SPEC)
    except FileExistsError:
        begin_recording(directory, about)
    finally:
        draft.unlink(missing_ok=True)


def _others(directory: Path) -> Iterator[tuple[str, RecordedEnv]]:
    """What is in the directory already; `UserError` for folders of ours that hold something else."""
    for name, own in ((PARTS, SPEC), ("data", METADATA)):
        if (directory / name).is_dir() and not (directory / name / own).is_file() and _foreign(directory / name):
            raise UserError(
                f"record={str(directory)!r} has a folder {name!r} that is not of a data set; give another folder"
            )
    if (directory / PARTS / SPEC).is_file():
        yield "an unfinished recording", RecordedEnv.read(directory / PARTS / SPEC)
    if (directory / METADATA).is_file():
        raise UserError(f"record={str(directory)!r} is the inner folder of a data set; give the one above it")
    folder = directory / "data"
    if not (folder / METADATA).is_file():
        return
    from pappus.data.metadata import env_of, read_metadata

    content = read_metadata(folder)
    if content["data_format"] != "hdf5":
        raise UserError(
            f"record={str(directory)!r} holds a data set in {content['data_format']}, and runs record in hdf5; give "
            "another folder"
        )
    if content.get("jpeg_encoding", True) and any_jpeg(content["observation_space"]):
        raise UserError(
            f"record={str(directory)!r} holds pictures as JPEG, and runs record them without loss; give another folder"
        )
    stack, known = frame_stack_of(content), content.get(OWN)
    spaces = content["observation_space"], content["action_space"]
    yield "a data set", RecordedEnv(env_of(content), *spaces, stack, known if isinstance(known, dict) else {})


def _foreign(folder: Path) -> bool:
    """Whether somebody else's files are in a folder; other recordings may just begin, with parts or a draft, which
    `write_json` writes under a name with a dot before it is renamed."""
    names = [path.name.removeprefix(".") for path in folder.iterdir()]
    return any(not name.startswith(SPEC) and not name.endswith((SUFFIX, SUFFIX + DAMAGED)) for name in names)
