"""Rate limiters: how fast a table may be filled and sampled, and an explanation of every wait.

A limiter compares inserts with samples:

    balance   = inserts · samples_per_insert − samples
    insert    is allowed while the table holds less than min_size, or if the balance stays ≤ most afterwards
    sample    is allowed if the table holds min_size, and the balance stays ≥ least afterwards

Inserts and deletes are never reset, so `size` is inserts − deletes. The rules are Reverb's, with three additions: a
limiter that can never open is refused when it is created, bounds can be moved while clients wait, and a limiter can
explain why a client waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pappus.errors import UserError


@dataclass
class RateLimiter:
    """Counts and bounds; the four functions below create the usual ones."""

    samples_per_insert: float
    min_size: int
    least: float
    """Lower bound of the balance: samples wait below it."""
    most: float
    """Upper bound of the balance: inserts wait above it."""
    inserts: int = 0
    samples: int = 0
    deletes: int = 0

    def __post_init__(self) -> None:
        if not self.samples_per_insert > 0 or not math.isfinite(self.samples_per_insert):
            raise UserError(f"samples_per_insert={self.samples_per_insert} must be a positive number")
        if self.min_size < 1:
            raise UserError(f"min_size={self.min_size} must be at least 1: nothing can be drawn from an empty table")
        if math.isnan(self.least) or math.isnan(self.most) or self.least > self.most:
            raise UserError(f"bounds {self.least} … {self.most} hold nothing; the first must not exceed the second")
        stuck = self._stuck_at()
        if stuck is not None:
            step = max(1.0, self.samples_per_insert)
            raise UserError(
                f"bounds {self.least:g} … {self.most:g} never open again once the balance is {stuck:g}, which is too "
                f"little to sample and too much to insert; widen the band by {step:g}"
            )

    def _stuck_at(self) -> float | None:
        """A balance at which neither inserts nor samples are allowed, if there is one.

        Balances are whole multiples of 1/q, where samples_per_insert = p/q. Too little to sample is below least + 1,
        too much to insert above most − samples_per_insert.
        """
        ratio = Fraction(self.samples_per_insert).limit_denominator(1000)
        low, high = self.most - self.samples_per_insert, self.least + 1
        if math.isinf(low) or math.isinf(high):
            return None
        # Until min_size items are there inserts are allowed at any balance; and no sample goes below `least`.
        lowest = min(self.min_size * self.samples_per_insert, self.least)
        first = max(math.floor(low * ratio.denominator) + 1, math.ceil(lowest * ratio.denominator)) / ratio.denominator
        return first if first < high else None

    @property
    def size(self) -> int:
        return self.inserts - self.deletes

    @property
    def balance(self) -> float:
        """Samples that the inserts so far pay for, minus the samples so far."""
        return self.inserts * self.samples_per_insert - self.samples

    def samples_now(self, wanted: int) -> int:
        """How many of the `wanted` samples are allowed now."""
        if self.size < self.min_size:
            return 0
        if math.isinf(self.least):
            return wanted
        return max(0, min(wanted, math.floor(self.balance - self.least)))

    def inserts_now(self, wanted: int) -> int:
        """How many of the `wanted` inserts are allowed now."""
        if math.isinf(self.most):
            return wanted
        allowed = math.floor((self.most - self.balance) / self.samples_per_insert)
        return max(0, min(wanted, max(allowed, self.min_size - self.size)))

    @property
    def largest_batch(self) -> float:
        """The largest number of samples that can be allowed at once if inserts come one by one."""
        if math.isinf(self.least) or math.isinf(self.most):
            return math.inf
        ratio = Fraction(self.samples_per_insert).limit_denominator(1000)
        blocked = (math.floor((self.most - self.samples_per_insert) * ratio.denominator) + 1) / ratio.denominator
        return max(1.0, math.floor(blocked - self.least))

    def move(self, least: float | None = None, most: float | None = None, min_size: int | None = None) -> None:
        """Change bounds while running; bounds that can never open again are refused."""
        before = (self.least, self.most, self.min_size)
        self.least = self.least if least is None else least
        self.most = self.most if most is None else most
        self.min_size = self.min_size if min_size is None else min_size
        try:
            self.__post_init__()
        except UserError:
            self.least, self.most, self.min_size = before
            raise

    def explain(self) -> str:
        """Who is blocked, by which bound, and what would unblock it; or that nobody is."""
        reasons = [reason for reason in (self._why_no_sample(), self._why_no_insert()) if reason]
        return "; ".join(reasons) or f"open: {self.size} items, balance {self.balance:g}"

    def _why_no_sample(self) -> str:
        if self.samples_now(1):
            return ""
        if self.size < self.min_size:
            missing = self.min_size - self.size
            return f"samples wait for {missing} more items: {self.size} of at least {self.min_size} are here"
        needed = math.ceil((self.least + 1 - self.balance) / self.samples_per_insert)
        return (
            f"samples wait for {needed} more inserts: {self.samples} samples of {self.inserts} inserts are all that "
            f"{self.samples_per_insert:g} per insert allow (balance {self.balance:g}, at least {self.least + 1:g} is "
            "needed)"
        )

    def _why_no_insert(self) -> str:
        if self.inserts_now(1):
            return ""
        needed = math.ceil(self.balance + self.samples_per_insert - self.most)
        return (
            f"inserts wait for {needed} more samples: {self.inserts} inserts with {self.samples} samples are all that "
            f"{self.samples_per_insert:g} per insert allow (balance {self.balance:g}, at most "
            f"{self.most - self.samples_per_insert:g} is allowed)"
        )

    def to_list(self) -> list[float | None]:
        """Its rule as numbers, with None for an infinite bound; `limiter_from` reads it."""
        least, most = (None if math.isinf(bound) else bound for bound in (self.least, self.most))
        return [self.samples_per_insert, self.min_size, least, most]


def limiter_from(numbers: Sequence[Any], inserts: int = 0, samples: int = 0, deletes: int = 0) -> RateLimiter:
    ratio, size, least, most = numbers
    return RateLimiter(
        float(ratio), int(size), -math.inf if least is None else float(least),
        math.inf if most is None else float(most), inserts, samples, deletes,
    )


def min_size(size: int) -> RateLimiter:
    """Samples wait until the table holds `size` items; inserts never wait."""
    return RateLimiter(1.0, size, -math.inf, math.inf)


def sample_to_insert_ratio(samples_per_insert: float, min_size: int, error_buffer: float) -> RateLimiter:
    """A ratio of samples to inserts from `min_size` items on, with a tolerance of `error_buffer` samples."""
    if not error_buffer >= max(1.0, samples_per_insert):
        raise UserError(
            f"error_buffer={error_buffer} is smaller than one step of either side; use at least "
            f"{max(1.0, samples_per_insert):g}"
        )
    middle = samples_per_insert * min_size
    return RateLimiter(samples_per_insert, min_size, middle - error_buffer, middle + error_buffer)


def queue(size: int) -> RateLimiter:
    """Every item is sampled once; inserts wait while `size` items are there. For tables that remove sampled items."""
    return RateLimiter(1.0, 1, 0.0, float(size))


stack = queue
"""The same rule; only the table's sampler differs."""
