"""Recording while a run goes on: every role that sees steps appends them to part files of its own.

    actor, inference server ──rows──▶ DIR/parts/ROLE.….part ──(run over, or dead)──▶ DIR/data, a Minari data set

A step costs a few copies into arrays, which are written once a second or when they are full. Nobody waits for anybody.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from pappus.data.parts import ENDED, FIRST, SUFFIX, TERMINATED, VALID, PartHeader, append_block
from pappus.errors import RecordingError
from pappus.types import ACTION_MASK, Array, ArraySpec, Nest, Timestep, leaves_of, map_leaves

PARTS = "parts"
"""The folder of part files, and of what is needed to make a data set of them."""
SPEC = "spec.json"
"""A file there: what is recorded."""
LOCK = "lock"
"""A file beside it, on which every process that records holds a shared lock."""
BLOCK_BYTES = 2 << 20
FEWEST_ROWS, MOST_ROWS = 8, 4096
FLUSH_SECONDS = 1.0
"""What was in memory for so long is written: a process that is killed loses no more."""
LOG_PROB = "log_prob"

LogProb: TypeAlias = Callable[[Mapping[str, Array], Array], Array | None]
"""(behaviour, numbers of allowed actions) → log-probabilities of the actions, or None where they do not follow."""


class Recording:
    """Where one role of a run records, and the lock that says that it lives."""

    def __init__(self, directory: Path, log_prob: LogProb | None = None, num_actions: int = 0) -> None:
        """`num_actions` are allowed where no mask says otherwise."""
        self.folder = directory / PARTS
        self.log_prob, self.num_actions = log_prob, num_actions
        self._recorders: set[EpisodeRecorder] = set()
        self._lock = shared_lock(directory)

    def recorder(self, role: str, num_envs: int, seeds: Array | None = None) -> EpisodeRecorder:
        """For one group of envs; `seeds` are those that their first episodes began with."""
        recorder = EpisodeRecorder(self, role, num_envs, seeds)
        self._recorders.add(recorder)
        return recorder

    def abandon(self, recorder: EpisodeRecorder) -> None:
        """A group of envs is gone: its episodes that went on are lost."""
        recorder.flush()
        self._recorders.discard(recorder)

    def close(self) -> None:
        """This role records no more: episodes that go on are kept, as cut off."""
        try:
            for recorder in self._recorders:
                recorder.close()
        finally:
            self._recorders.clear()
            self._lock.close()


def shared_lock(directory: Path) -> BinaryIO:
    """To be held while something may be recorded into the directory: as long as it is, nobody assembles the parts."""
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / LOCK).open("ab")
    fcntl.flock(file, fcntl.LOCK_SH)
    (directory / PARTS).mkdir(exist_ok=True)
    return file


class RowBuffer:
    """Some rows of N envs in memory. Observations are copied, since an env may overwrite them. Of all else references
    are kept until the rows are written: that is much faster than to copy many small arrays one by one."""

    def __init__(self, action: Array, behaviour: Mapping[str, Array], observation: Nest) -> None:
        """Laid out after the first row."""
        leaves, self._num_envs = leaves_of(observation), len(action)
        row_bytes = sum(leaf.nbytes for leaf in (action, *behaviour.values(), *leaves)) + 5 * len(action)
        self.size = min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_BYTES // row_bytes))
        self._observation: list[Array] = [np.zeros((self.size, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._mask = _mask_of(observation, self._observation)
        self._rows: list[tuple[Array, Mapping[str, Array], Timestep]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, action: Array, behaviour: Mapping[str, Array], then: Timestep) -> None:
        """One more row."""
        row = len(self._rows)
        for into, leaf in zip(self._observation, leaves_of(then.observation), strict=True):
            into[row] = leaf
        self._rows.append((action, behaviour, then))

    def clear(self) -> None:
        self._rows = []

    @property
    def observation(self) -> list[Array]:
        return [leaf[: len(self)] for leaf in self._observation]

    @property
    def mask(self) -> Array | None:
        return None if self._mask is None else self._mask[: len(self)]

    def action(self) -> Array:
        return self._joined([action for action, _, _ in self._rows])

    def reward(self) -> Array:
        return self._joined([then.reward for _, _, then in self._rows]).astype(np.float32, copy=False)

    def behaviour(self) -> dict[str, Array]:
        names = self._rows[-1][1]
        return {name: self._joined([behaviour[name] for _, behaviour, _ in self._rows]) for name in names}

    def flags(self) -> Array:
        """One byte for each env."""
        steps = [then for _, _, then in self._rows]
        first, valid = (self._joined(of) for of in ([one.first for one in steps], [one.valid for one in steps]))
        over = (self._joined([one.discount for one in steps]) == 0) & valid
        flags: Array = first.astype(np.uint8) * FIRST + valid.astype(np.uint8) * VALID + over * np.uint8(TERMINATED)
        ended = [(row, one.episodes.envs) for row, one in enumerate(steps) if one.episodes is not None]
        if ended:
            flags[np.repeat([row for row, _ in ended], [len(envs) for _, envs in ended]),
                  np.concatenate([envs for _, envs in ended])] |= ENDED
        return flags

    def _joined(self, rows: list[Array]) -> Array:
        return np.concatenate(rows).reshape(len(rows), *rows[0].shape)


def _mask_of(observation: Nest, leaves: list[Array]) -> Array | None:
    """The leaf with action masks among the leaves of an observation."""
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return None
    before = [key for key in sorted(observation) if key < ACTION_MASK]  # optree takes the keys in order
    return leaves[sum(len(leaves_of(observation[key])) for key in before)]


class EpisodeRecorder:
    """Records the stream of N envs.

    Contract: `begin` with the first timestep, then `record` once per step. `close` keeps the episodes that still go on,
    as cut off; where it is not called (the process was killed, the envs have left) they are lost.
    """

    def __init__(self, recording: Recording, role: str, num_envs: int, seeds: Array | None) -> None:
        self._recording, self._num_envs, self._seeds = recording, num_envs, seeds
        self._path = recording.folder / f"{role}.{secrets.token_hex(6)}{SUFFIX}"
        self._opening: Timestep | None = None
        self._buffer: RowBuffer | None = None
        self._header: PartHeader | None = None
        self._allowed: Array = np.full((1, num_envs), recording.num_actions)
        """How many actions were allowed in the last row that was written."""
        self._flushed = 0.0
        self.begun = False
        """Whether the stream has a beginning, which may lie in an earlier life of the run."""

    def begin(self, timestep: Timestep) -> None:
        """What the envs show before the first action."""
        self._opening = Timestep(*map_leaves(np.copy, timestep[:5]))
        self.begun = True

    def record(self, action: Array, behaviour: Mapping[str, Array], then: Timestep) -> None:
        """One step of every env, and what it led to. Nothing but the observation may be overwritten later."""
        buffer = self._buffer
        if buffer is None:
            buffer = self._first_buffer(action, behaviour, then)
        buffer.add(action, behaviour, then)
        if len(buffer) == buffer.size or time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def _first_buffer(self, action: Array, behaviour: Mapping[str, Array], then: Timestep) -> RowBuffer:
        self._buffer = RowBuffer(action, behaviour, then.observation)
        self._flushed = time.monotonic()
        if self._opening is not None:
            nothing = {name: np.zeros_like(leaf) for name, leaf in behaviour.items()}
            self._buffer.add(np.zeros_like(action), nothing, self._opening)
            self._opening = None
        return self._buffer

    def flush(self) -> None:
        """Append the rows in memory to the part file."""
        buffer, self._flushed = self._buffer, time.monotonic()
        if buffer is None or not len(buffer):
            return
        behaviour, action, observation = buffer.behaviour(), buffer.action(), buffer.observation
        behaviour |= self._derived(behaviour, buffer)
        self._header = self._header or PartHeader(
            self._num_envs, tuple(map(_spec, observation)), _spec(action),
            {name: _spec(leaf) for name, leaf in behaviour.items()},
            None if self._seeds is None else tuple(int(seed) for seed in self._seeds),
        )
        self._append([buffer.flags(), buffer.reward(), action, *behaviour.values(), *observation])
        buffer.clear()

    def _derived(self, behaviour: Mapping[str, Array], buffer: RowBuffer) -> dict[str, Array]:
        """Log-probabilities, where the policy did not record them and they follow from what it recorded."""
        mask, log_prob = buffer.mask, self._recording.log_prob
        counts = self._allowed.repeat(len(buffer), 0) if mask is None else mask.sum(-1)
        allowed = np.concatenate([self._allowed, counts[:-1]])  # an action belongs to the observation before it
        self._allowed = counts[-1:]
        known = self._header is None or LOG_PROB in self._header.behaviour
        if log_prob is None or LOG_PROB in behaviour or not known:
            return {}
        with np.errstate(all="ignore"):  # rows without an action hold nothing
            found = log_prob(behaviour, allowed)
        return {} if found is None else {LOG_PROB: np.asarray(found, np.float32)}

    def _append(self, columns: list[Array]) -> None:
        assert self._header is not None
        try:
            append_block(self._path, self._header, columns)
        except OSError as error:
            text = f"{str(self._path)!r} cannot be written: {error.strerror}; make room, then resume the run"
            raise RecordingError(text) from None

    def close(self) -> None:
        """Write what is left, and keep the episodes that go on."""
        self.flush()
        if self._header is not None:
            self._append([])
        self._header = self._buffer = None

    def save(self) -> Nest:
        """Where the part file stands: a run that goes on from a checkpoint forgets what came after it."""
        self.flush()
        size = self._path.stat().st_size if self._path.exists() else 0
        return {"part": self._path.name, "size": size, "allowed": self._allowed}

    def load(self, saved: Nest) -> None:
        """Go on with the part file, if it has not become part of the data set."""
        path = self._path.with_name(saved["part"])
        if saved["size"] == 0:
            path.unlink(missing_ok=True)  # all of it is played again
        elif path.exists() and path.stat().st_size >= saved["size"]:
            os.truncate(path, saved["size"])
            self._path, self._allowed, self.begun = path, saved["allowed"], True


def _spec(leaf: Array) -> ArraySpec:
    return ArraySpec(leaf.shape[2:], str(leaf.dtype))
