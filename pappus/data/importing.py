"""`pappus data import`: episodes cut out of plain columns with a row per step.

    o_0 a_0 r_0 | o_1 a_1 r_1 | … | o_{T-1} a_{T-1} r_{T-1} end        and o_T?

The final observation o_T is that of `next_observation` where there is such a column. It also shows ends that no other
column marks: there, what followed a row is not what the next row shows. Without it the last row of an episode that was
truncated or cut off becomes o_T, without its action and reward; a terminated episode repeats its last observation,
from which nobody bootstraps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from pappus.data.columns import Columns, read_columns
from pappus.data.content import Content
from pappus.data.copying import NewSet, new_dataset
from pappus.data.dataset import Dataset, open_dataset
from pappus.data.episode_checks import LOG_PROB
from pappus.data.metadata import OWN
from pappus.data.spaces import recorded_spaces
from pappus.envs.external import PREFIX, external_spec
from pappus.envs.gym_backend import make_gym_vector
from pappus.envs.spaces import Space
from pappus.errors import UserError
from pappus.types import Array

ROWS_AT_ONCE = 4_096
"""Rows that are compared at once: columns of pictures may be larger than the memory."""


@dataclass
class Import:
    """What became of the rows."""

    repeated: int = 0
    """Terminated episodes that repeat their last observation."""
    shortened: int = 0
    """Episodes whose last row became their final observation."""
    dropped: int = 0
    """Episodes of a single row, of which nothing was left."""
    gaps: int = 0
    """Episodes that are cut off only because the next row shows another observation than followed."""
    returning: int = 0
    """Numbers of episodes that come again after rows of others."""
    unseen: bool = False
    """Whether nothing tells of ends by a limit of time."""

    def sentences(self) -> Iterator[str]:
        """What is worth saying of it."""
        if self.gaps:
            yield (
                f"{self.gaps:,} episodes are cut off where the next observation of a row is not the observation of the "
                "row after it"
            )
        if self.returning:
            yield (
                f"{self.returning:,} episode numbers come again after rows of other episodes, and begin new ones "
                "there; if these rows belong together, sort the file by episode first"
            )
        if self.unseen:
            yield (
                "no column tells of ends by a limit of time: where there were any, two episodes are joined "
                "into one; name a column with --truncated, --episode or --next-observation"
            )
        if self.shortened:
            yield (
                f"{self.shortened:,} truncated or cut-off episodes are a step shorter: without a column of next "
                "observations their last row is their final observation"
            )
        if self.repeated:
            yield f"{self.repeated:,} terminated episodes repeat their last observation as the final one"
        if self.dropped:
            yield f"{self.dropped:,} episodes of one row are left out: it would only be a final observation"


def import_columns(
    files: list[Path], target: Path, new: NewSet, names: dict[str, str],
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Dataset, Import]:
    """Make a data set of columns; `UserError` if anything in them could not be trained from."""
    told, listed = Import(), ", ".join(map(str, files))
    for what, space in (("observations", new.observation_space), ("actions", new.action_space)):
        if isinstance(space, spaces.Dict | spaces.Tuple):
            raise UserError(f"{what} are {space}; columns of one array each can be imported, write the set with minari")
    own = {"env": new.env, "frame_stack": 1, "imported_from": [file.name for file in files]}
    new = replace(new, about={**new.about, OWN: own})
    with new_dataset(target) as folder:
        found = new.write(folder, _episodes(files, names, new, told), listed, progress)
        if not found.num_episodes:
            raise UserError(f"{listed}: there is no episode in it; nothing was imported")
        _check_values(found, listed)
    return open_dataset(target), told


def _check_values(found: Dataset, files: str) -> None:
    """Reading checks every value."""
    try:
        for _ in found.read(range(found.num_episodes)):
            pass
    except UserError as error:
        raise UserError(str(error).replace(f"data set {str(found.path)!r}", files)) from None


def _episodes(files: list[Path], names: dict[str, str], new: NewSet, told: Import) -> Iterator[Content]:
    number = 0
    for file in files:
        columns = read_columns(file, names)
        for cut in cuts(columns, told):
            content = _content(columns, cut, number, new, told)
            if content is not None:
                yield content
                number += 1


class Cut(NamedTuple):
    """The rows of one episode, and how it ended."""

    rows: slice
    terminated: bool
    truncated: bool


def cuts(columns: Columns, told: Import) -> Iterator[Cut]:
    """An episode ends where it is terminated or truncated, where the next row belongs to another or shows another
    observation than followed, and with the file."""
    length = len(columns.reward)
    terminated, truncated = (_flags(getattr(columns, name), name, length) for name in ("terminated", "truncated"))
    ends = terminated | truncated
    if columns.episode is not None:
        number = _one_each(columns.episode, "episode", length)
        if number.dtype.kind == "f" and np.isnan(number).any():  # nan differs from itself: each would be an episode
            row = int(np.flatnonzero(np.isnan(number))[0])
            raise UserError(f"column episode has no number in row {row:,}; say for every row which episode it is of")
        begins = np.append(True, number[1:] != number[:-1])[: len(number)]
        told.returning += sum(count > 1 for count in Counter(number[begins].tolist()).values())
        ends[:-1] |= begins[1:]
    if columns.next_observation is not None:
        gaps = _gaps(columns.observation, columns.next_observation) & ~ends[:-1]
        told.gaps += int(gaps.sum())
        ends[:-1] |= gaps
    elif columns.truncated is None and columns.episode is None:
        told.unseen = True
    ends[-1:] = True
    begin = 0
    for end in np.flatnonzero(ends).tolist():
        yield Cut(slice(begin, end + 1), bool(terminated[end]), bool(truncated[end]))
        begin = end + 1


def _gaps(seen: Array, following: Array) -> Array:
    """Whether what followed a row is not what the next row shows, `[R - 1]`."""
    if seen.shape != following.shape:
        raise UserError(
            f"column next_observation has the shape {following.shape}, and observation {seen.shape}; they must be alike"
        )
    found = np.zeros(max(len(seen) - 1, 0), bool)
    for begin in range(0, len(found), ROWS_AT_ONCE):
        end = min(begin + ROWS_AT_ONCE, len(found))
        found[begin:end] = _differ(seen[begin + 1 : end + 1], following[begin:end])
    return found


def _differ(rows: Array, others: Array) -> Array:
    """Whether rows differ by more than the coarser of two float types rounds; NaN, which the checks name, is NaN."""
    floats = rows.dtype.kind == others.dtype.kind == "f"
    kind = min(rows.dtype, others.dtype, key=lambda one: one.itemsize) if floats else np.result_type(rows, others)
    one, other = rows.astype(kind), others.astype(kind)
    different = (one != other) & ((one == one) | (other == other))
    return np.asarray(different.any(axis=tuple(range(1, different.ndim))))


def _flags(column: Array | None, name: str, rows: int) -> Array:
    if column is None:
        return np.zeros(rows, bool)
    flags = _one_each(column, name, rows)
    if flags.dtype.kind not in "biuf":
        raise UserError(f"column {name} holds {flags.dtype}, not true or false; write it as booleans or as 0 and 1")
    if other := sorted(set(np.unique(flags).tolist()) - {0, 1}):
        raise UserError(f"column {name} holds {other[0]:g}, which is neither true nor false; write 0 and 1 only")
    return np.array(flags, bool)


def _one_each(column: Array, name: str, rows: int) -> Array:
    """The column with one entry a row; `UserError` if it has another number."""
    if column.size != rows:
        raise UserError(f"column {name} has the shape {column.shape}, and there are {rows} rows; give one value a row")
    return column.reshape(rows)


def _content(columns: Columns, cut: Cut, number: int, new: NewSet, told: Import) -> Content | None:
    seen, steps = _final(columns, cut, told)
    length = steps.stop - steps.start
    if not length:
        told.dropped += 1
        return None
    end = np.arange(1, length + 1) == length
    said = {} if columns.log_prob is None else {LOG_PROB: _numbers(columns.log_prob[steps])}
    return Content(
        number, _fitted(seen, new.observation_space), _fitted(columns.action[steps], new.action_space),
        _numbers(columns.reward[steps]), end & cut.terminated, end & cut.truncated, said,
    )


def _final(columns: Columns, cut: Cut, told: Import) -> tuple[Array, slice]:
    """The T + 1 observations of an episode, and the rows of its T steps."""
    rows = cut.rows
    seen, following = columns.observation[rows], columns.next_observation
    if following is not None:
        return np.concatenate([seen, following[rows.stop - 1 : rows.stop]]), rows
    if cut.terminated:
        told.repeated += 1
        return np.concatenate([seen, seen[-1:]]), rows
    told.shortened += len(seen) > 1
    return np.asarray(seen), slice(rows.start, rows.stop - 1)


def _fitted(column: Array, space: Space) -> Array:
    """The column in the shape and precision of its space; what does not fit is left for the checks to name."""
    shape, wanted = space.shape or (), np.dtype(space.dtype)
    if column.size == len(column) * math.prod(shape):
        column = column.reshape(len(column), *shape)
    if column.dtype.kind == wanted.kind == "f":
        return column.astype(wanted)
    whole = column.dtype.kind in "iub" and wanted.kind in "iub"
    return column.astype(wanted) if whole and np.array_equal(column.astype(wanted), column) else np.asarray(column)


def _numbers(column: Array) -> Array:
    """Rewards and log-probabilities: one float32 a row, where that is what they are."""
    rows = column.reshape(len(column)) if column.size == len(column) else column
    return np.asarray(rows, np.float32) if rows.dtype.kind in "fiub" else np.asarray(rows)


def spaces_of(env: str, spec_file: str) -> tuple[Space, Space]:
    """Observation and action space of a Gymnasium env, or of a file as `pappus serve` takes it."""
    if bool(env) == bool(spec_file):
        raise UserError("say what the columns hold: either --env ID or --spaces FILE")
    if spec_file:
        return recorded_spaces(external_spec(f"{PREFIX}{spec_file}"), None)
    made = make_gym_vector(env, 1, {})
    try:
        return made.single_observation_space, made.single_action_space
    finally:
        made.close()
