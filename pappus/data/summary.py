"""`pappus data info`: one pass over a data set, a few episodes in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree

from pappus.data.checks import check_dataset, check_steps, notes
from pappus.data.content import Content
from pappus.data.dataset import Dataset
from pappus.data.episode import Episode
from pappus.data.episode_checks import LOG_PROB, value_problems
from pappus.data.listing import size_of
from pappus.data.metadata import time_limit_of
from pappus.data.statistics import AtBounds, ChoiceCounts, Coverage, Moments
from pappus.errors import UserError
from pappus.types import Array, ArraySpec, ContinuousAction

SAID = 10
"""Problems that are told in full; the others are counted."""
GIVEN_UP = 100
"""Unreadable episodes after which reading on would teach nothing new."""


@dataclass
class Summary:
    """What is in a data set. Problems are what training refuses; warnings may be intended."""

    dataset: Dataset
    bytes: int = 0
    time_limit: int | None = None
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """How each episode ended: terminated, truncated, or cut off where the recording ended."""
    observations: dict[str, Moments] = field(default_factory=dict)
    """By leaf: a column per entry of a vector; of pictures one for all pixels."""
    actions: Moments | None = None
    at_bounds: AtBounds | None = None
    choices: ChoiceCounts | None = None
    coverage: Coverage | None = None
    rewards: Moments = field(default_factory=lambda: Moments(1))
    behaviour: dict[str, Moments] = field(default_factory=dict)
    uneven: dict[str, int] = field(default_factory=dict)
    """Columns of the behaviour whose rows have another shape in some episode, and the first such episode."""
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def behaviour_entropy(self) -> float | None:
        """Mean −log_prob of the actions under the policy that took them, in nats; None where that is not recorded."""
        said = self.behaviour.get(LOG_PROB)
        return None if said is None or not said.count else -float(said.mean[0])


def summarize(dataset: Dataset, progress: Callable[[int], None] = lambda done: None) -> Summary:
    """Read a set from end to end; `progress` is told how many episodes are done."""
    found = Summary(dataset, size_of(dataset.path), time_limit_of(dataset.metadata))
    _prepare(found)
    try:
        check_dataset(dataset)
    except UserError as error:
        found.problems.append(str(error))
    seen: dict[bytes, int] = {}
    if not found.problems or dataset.num_episodes:
        for number, content in _contents(dataset, found):
            _add(found, content, seen)
            progress(number + 1)
        _check_count(found)
    from pappus.data.oddities import oddities

    found.warnings = [*(notes(dataset) if not found.problems else []), *oddities(found)]
    return found


def _check_count(found: Summary) -> None:
    """Where all episodes could be read, they must have the steps that the metadata counts."""
    if len(found.lengths) == found.dataset.num_episodes:
        try:
            check_steps(found.dataset, sum(found.lengths))
        except UserError as error:
            found.problems.append(str(error))


def _prepare(found: Summary) -> None:
    spec = found.dataset.spec
    paths, leaves, _ = optree.tree_flatten_with_path(spec.observation)
    for path, leaf in zip(paths, leaves, strict=True):
        found.observations["/".join(map(str, path))] = Moments(_columns(leaf))
    found.coverage = Coverage(spec.action)
    if isinstance(spec.action, ContinuousAction):
        space: Any = found.dataset.action_space
        found.actions = Moments(int(np.prod(spec.action.shape)))
        found.at_bounds = AtBounds(space.low, space.high)
    else:
        found.choices = ChoiceCounts(spec.action.choices)


def _columns(leaf: ArraySpec) -> int:
    """Entries of a vector are columns of their own; those of a picture are not."""
    return 1 if len(leaf.shape) > 1 else int(np.prod(leaf.shape))


def _contents(dataset: Dataset, found: Summary) -> Iterator[tuple[int, Content]]:
    """Every episode that can be read; those that cannot are problems. A sentence that comes again is about the file:
    then there is no episode to go on with."""
    number, failed = 0, 0
    while number < dataset.num_episodes and failed < GIVEN_UP:
        try:
            for content in dataset.contents(range(number, dataset.num_episodes)):
                yield number, content
                number += 1
        except UserError as error:
            if str(error) in found.problems:
                return
            found.problems.append(str(error))
            number, failed = number + 1, failed + 1


def _add(found: Summary, content: Content, seen: dict[bytes, int]) -> None:
    dataset = found.dataset
    try:
        episode = dataset.episode(content)
    except UserError as error:
        found.problems.append(str(error))
        return
    problems = value_problems(episode, content, dataset.spec, dataset.observation_space, dataset.action_space)
    found.problems += [dataset.sentence(content, problem) for problem in problems]
    found.lengths.append(episode.length)
    found.returns.append(float(np.sum(content.rewards, dtype=np.float64)))
    end = "terminated" if episode.terminated else "truncated" if episode.truncated else "cut off"
    found.ends.append(end)
    first = seen.setdefault(_digest(episode), content.number)
    if first != content.number:
        found.duplicates.append((first, content.number))
    _add_columns(found, episode, content)


def _add_columns(found: Summary, episode: Episode, content: Content) -> None:
    leaves = [_rows(leaf) for leaf in optree.tree_leaves(episode.observation)]
    for moments, rows in zip(found.observations.values(), leaves, strict=True):
        moments.add(rows if rows.shape[1] == len(moments.mean) else rows.reshape(-1, 1))
    actions = _rows(episode.action)
    if found.choices is not None:
        found.choices.add(actions)
    if found.actions is not None and found.at_bounds is not None:
        stored = _rows(np.asarray(content.actions))
        found.actions.add(stored)
        found.at_bounds.add(stored)
    assert found.coverage is not None, "_prepare makes it"
    found.coverage.add(np.concatenate([rows[:-1] for rows in leaves], axis=1), actions)
    found.rewards.add(_rows(episode.reward))
    for name, column in episode.behaviour.items():
        rows = _rows(column)
        moments = found.behaviour.setdefault(name, Moments(rows.shape[1]))
        if rows.shape[1] == len(moments.mean):
            moments.add(rows)
        else:
            found.uneven.setdefault(name, content.number)


def _rows(column: Array) -> Array:
    return column.reshape(len(column), -1)


def _digest(episode: Episode) -> bytes:
    """The same for episodes with the same actions, rewards, and first and last observation: they are copies."""
    content = hashlib.blake2b(digest_size=8)
    ends = [leaf[[0, -1]] for leaf in optree.tree_leaves(episode.observation)]
    for column in [*ends, episode.action, episode.reward]:
        content.update(np.ascontiguousarray(column).data)
    return content.digest()
