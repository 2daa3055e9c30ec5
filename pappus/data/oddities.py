"""What is odd about a data set although it can be trained from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pappus.data.summary import Summary

MANY = 0.1
"""Share of terminated episodes of one and the same greatest length that looks like a time limit."""
FEW = 10
"""Episodes of which nothing can be said yet."""


def oddities(found: Summary) -> Iterator[str]:
    """One sentence each."""
    yield from _constant(found)
    yield from _time_limits(found)
    if found.rewards.count and not found.rewards.low[0] and not found.rewards.high[0]:
        yield "all rewards are 0: nothing but imitation can be learned"
    for name, episode in found.uneven.items():
        yield f"infos/{name} has rows of another shape in episode {episode} than before; they are not counted here"
    if found.duplicates:
        first, second = found.duplicates[0]
        many = _plural(found.duplicates, "episode repeats an earlier one", "episodes repeat earlier ones")
        yield f"{len(found.duplicates):,} {many}: episode {second} is the same as {first}"
    if found.ends and not found.ends.count("terminated") and not found.ends.count("truncated"):
        yield "no episode ends: all are cut off where the recording ended"


def _constant(found: Summary) -> Iterator[str]:
    for name, moments in found.observations.items():
        where = f"observations/{name}" if name else "observations"
        if len(moments.constant) == len(moments.mean):
            yield f"{where} never change" if moments.constant else f"{where} are not there"
        elif moments.constant:
            said = _plural(moments.constant, "never changes: it says", "never change: they say")
            yield f"{where}{moments.constant} {said} nothing"
    if found.actions is not None and found.actions.constant:
        said = _plural(found.actions.constant, "never changes", "never change")
        yield f"actions{found.actions.constant} {said}: nobody tried anything else"
    for i, counts in enumerate(found.choices.counts if found.choices else []):
        never = [value for value, count in enumerate(counts) if not count]
        if never and counts.any():
            where = f" of choice {i}" if found.choices and len(found.choices.counts) > 1 else ""
            yield f"{_plural(never, 'action', 'actions')} {', '.join(map(str, never))}{where} never taken"


def _plural(things: Sequence[object], one: str, many: str) -> str:
    return one if len(things) == 1 else many


def _time_limits(found: Summary) -> Iterator[str]:
    """A limit of time must truncate: stored as a termination it teaches that the world ends there."""
    limit = found.time_limit
    terminated, truncated = _lengths(found, "terminated"), _lengths(found, "truncated")
    if limit is None:
        yield from _likely_limits(terminated, truncated)
        return
    longer, at_limit = sum(length > limit for length in found.lengths), terminated.count(limit)
    if longer:
        yield f"{longer:,} episodes are longer than the env's time limit of {limit:,} steps"
    if truncated and limit not in truncated:
        usual = Counter(truncated).most_common(1)[0][0]
        yield f"no truncated episode has the {limit:,} steps of the env's time limit; {usual:,} is most common"
    if at_limit:
        yield f"{at_limit:,} episodes terminate exactly at the env's limit of {limit:,} steps: were they truncated?"


def _lengths(found: Summary, end: str) -> list[int]:
    return [length for length, one in zip(found.lengths, found.ends, strict=True) if one == end]


def _likely_limits(terminated: list[int], truncated: list[int]) -> Iterator[str]:
    if truncated or len(terminated) < FEW or max(terminated) == min(terminated):
        return
    longest = max(terminated)
    share = terminated.count(longest) / len(terminated)
    if share >= MANY:
        many = f"{100 * share:.0f} % of the episodes"
        yield f"{many} terminate after exactly {longest:,} steps: were they truncated by a limit?"
