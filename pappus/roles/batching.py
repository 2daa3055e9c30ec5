"""Dynamic batching of inference requests: how many are answered at once, how long the first may wait for others. And
the separation of training batches that must each be acted with one version of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pappus.core import Call

DECAY = 0.99
"""Weight that an older measurement keeps with each newer one."""
LONGEST_GAP = 10.0
"""A gap between arrivals counts for no more than so many times the usual one."""
WORTHWHILE = 0.9
"""A batch that spends this share of its time on envs, rather than on being a batch, is wide enough."""


class Batching:
    """Answers immediately what arrived while the last batch was computed, and waits only where that pays off.

    A batch of n envs takes a + b·n seconds; a and b are measured. A batch is wide enough when b·n is 90 % of that:
    wider ones only keep their first envs waiting. It is also wide enough when it holds half of all envs, so that the
    other half can be stepped while it is computed. Waiting for another env group saves one batch's a, so no request
    waits longer than a, and none waits at all unless an env group is expected to arrive within a.
    """

    def __init__(
        self, max_envs: int, deadline: float | None, round_down: Callable[[int], int] = lambda envs: envs
    ) -> None:
        """`round_down` gives the widest batch within a limit that is not padded."""
        self._max_envs, self._deadline, self._round_down = max_envs, deadline, round_down
        self._cost = _LinearFit()
        self._gap: float | None = None
        self._last_arrival: float | None = None
        self._first_waiting = 0.0

    def arrived(self, env_groups: int, now: float) -> None:
        if self._last_arrival is not None:
            gap = (now - self._last_arrival) / env_groups
            if self._gap is not None:  # one pause does not make env groups rare
                gap = DECAY * self._gap + (1 - DECAY) * min(gap, LONGEST_GAP * self._gap)
            self._gap = gap
        self._last_arrival = now
        self._first_waiting = self._first_waiting or now

    def answered(self, envs: int, seconds: float) -> None:
        """A batch of so many envs took so long."""
        self._cost.add(envs, seconds)
        self._first_waiting = 0.0

    def max_envs(self, connected: int) -> int:
        """Envs that make a batch wide enough, of so many that are connected."""
        if self._max_envs:
            return self._max_envs
        fixed, per_env = self._cost.fit()
        half = -(-connected // 2)
        enough = max(1, round(WORTHWHILE / (1 - WORTHWHILE) * fixed / per_env)) if per_env > 0 else half
        return self._round_down(min(half, enough))

    @property
    def deadline(self) -> float:
        """Seconds that a request waits for others."""
        if self._deadline is not None:
            return self._deadline
        fixed, _ = self._cost.fit()
        return fixed if self._gap is not None and self._gap < fixed else 0.0

    def wait_until(self, due: int, connected: int, env_groups_out: int) -> float | None:
        """When to answer `due` of the `connected` envs, if not now; `env_groups_out` env groups may still join."""
        if env_groups_out == 0 or due >= self.max_envs(connected) or self.deadline == 0.0:
            return None
        return self._first_waiting + self.deadline

    def select(self, due: Sequence[Call], connected: int) -> Sequence[Call]:
        """The oldest requests that make one batch: as many as fit, and at least one."""
        if len(due) == 1:
            return due
        limit, envs = self.max_envs(connected), 0
        for count, call in enumerate(due):
            envs += len(call.request.first)
            if count and envs > limit:
                return due[:count]
        return due


class _LinearFit:
    """Least squares of y = a + b·x over recent points, with a ≥ 0."""

    def __init__(self) -> None:
        self._w = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        keep = DECAY
        self._w, self._x, self._y = keep * self._w + 1, keep * self._x + x, keep * self._y + y
        self._xx, self._xy = keep * self._xx + x * x, keep * self._xy + x * y

    def fit(self) -> tuple[float, float]:
        """(a, b); (0, 0) while all points lie at one x and say nothing of a slope."""
        spread = self._w * self._xx - self._x * self._x
        if self._w < 2 or spread <= 1e-9 * self._xx * self._w:
            return 0.0, 0.0
        slope = (self._w * self._xy - self._x * self._y) / spread
        return max(0.0, (self._y - slope * self._x) / self._w), slope


class BatchBarrier:
    """Keeps synchronous batches apart: decides which env group may begin an unroll now.

    Columns of a batch are reserved when an unroll begins, and given back when its envs leave before it is full.

        invariant   delivered ≤ reserved ≤ batch_size (more only where widths of env groups do not add up to a batch)
                    batch k begins when what was learnt from batch k − 1 − ahead is published
    """

    def __init__(self, batch_size: int, ahead: int = 0) -> None:
        self._batch_size, self._ahead = batch_size, ahead
        self.reserved = self.delivered = 0
        self.version = -1
        """Of the newest weights that were seen."""
        self.unlearnt = 0
        """Whole batches that no newer weights have followed yet."""

    def begins(self, num_envs: int, version: int) -> bool:
        """Reserve columns for an unroll, if the batch has room and its weights are new enough."""
        self._see(version)
        if self.unlearnt > self._ahead or (self.busy and self.reserved + num_envs > self._batch_size):
            return False
        self.reserved += num_envs
        return True

    def _see(self, version: int) -> None:
        """Every batch leads to newer weights. Older ones are those of a learner that came back from a checkpoint,
        without the batches that it had."""
        if version != self.version:
            self.unlearnt = max(0, self.unlearnt - 1) if version > self.version else 0
            self.version = version

    @property
    def busy(self) -> bool:
        """Whether unrolls are under construction; if none is, one may begin though it spills into the next batch."""
        return self.delivered < self.reserved

    def ended(self, num_envs: int) -> None:
        """An unroll is full: its columns are part of the batch, which may be complete with it."""
        self.delivered += num_envs
        if self.delivered >= self._batch_size:
            self.unlearnt, spilled = self.unlearnt + 1, self.delivered % self._batch_size
            self.reserved, self.delivered = self.reserved - self.delivered + spilled, spilled

    def left(self, num_envs: int) -> None:
        """An unroll that had begun will not be finished."""
        self.reserved -= num_envs

    def save(self) -> list[int]:
        return [self.reserved, self.delivered, self.version, self.unlearnt]

    def load(self, saved: list[int]) -> None:
        self.reserved, self.delivered, self.version, self.unlearnt = saved
