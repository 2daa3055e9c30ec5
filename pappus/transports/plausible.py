"""Whether what envs elsewhere send can be true. What cannot is refused before a network sees it.

    flags         are 0 or 1, discounts lie in 0 to 1
    categories    are at least 0 and below their number of values
    bounded       parts lie within the bounds of the env spec; real numbers may exceed them by the width of the bounds,
                  as envs round and overshoot
    unbounded     parts lie within ±`LARGEST`; after `WARM_UP` requests also within ±`FLOOR`, or `factor` times what is
                  usual, if that is more. Usual is the median of the largest magnitudes of all requests: a client moves
                  it only if it sends every other request
    rewards       and returns lie within ±`LARGEST`

All of it takes a few passes over a request, however many envs that has.
"""

from __future__ import annotations

import numpy as np

from pappus.transports.codec import Tensor, layout
from pappus.types import Array, ArraySpec, Nest, Request, leaves_of

LARGEST = 1e8
"""Gradients of float32 overflow from observations of 1e9 on, within a hundred updates."""
WARM_UP = 1000
"""Requests before anything is unusual."""
FLOOR = 1e4
"""Nothing below is unusual."""
EARLY, LATE = 1.1, 1.01
"""Factors by which the median follows a request, during the warm-up and later."""


class Plausibility:
    """Judges the requests of all clients of one server. `request` has the specs of one env."""

    def __init__(self, request: Request, factor: float) -> None:
        names = layout({"observation": request.observation})
        specs: list[ArraySpec] = leaves_of(request.observation)
        self._parts = [Part(name, spec, factor) for name, spec in zip(names, specs, strict=True)]

    def complaint(self, request: Request) -> str:
        """What is wrong with a request, in words; empty if nothing is."""
        for name, flags in (("first", request.first), ("valid", request.valid)):
            if flags.view(np.uint8).max() > 1:
                return f"{name!r} holds bytes other than 0 and 1"
        for name, numbers in (("reward", request.reward), ("episode_return", request.episode_return)):
            if not (numbers.max() <= LARGEST and numbers.min() >= -LARGEST):
                return f"{name!r} is not finite, or beyond ±{LARGEST:g}; scale it in the simulator"
        discount = request.discount
        if not (discount.min() >= 0 and discount.max() <= 1):
            return "'discount' lies outside 0 to 1, or is not finite"
        if request.episode_length.min() < 0:
            return "'episode_length' is negative"
        return self._complaint_about_parts(request.observation)

    def _complaint_about_parts(self, observation: Nest) -> str:
        for part, leaf in zip(self._parts, leaves_of(observation), strict=True):
            if not part.admits(leaf):
                return part.complaint(leaf)
        return ""


class Part:
    """One array of an observation."""

    def __init__(self, tensor: Tensor, spec: ArraySpec, factor: float) -> None:
        self._name, self._dtype = tensor.name, np.dtype(spec.dtype)
        low, high = limits_of(spec)
        same = low.size > 0 and np.ptp(low) == 0 and np.ptp(high) == 0
        self._each: tuple[Array, Array] | None = None if same else (low, high)
        self._low, self._high = float(low.min(initial=0)), float(high.max(initial=0))
        self._free = low.size == 0 or (same and self._covers_dtype())
        is_open = self._dtype.kind in "iuf" and not self._free and max(self._high, -self._low) >= LARGEST
        self._usual = UsualPeak(factor) if is_open and factor else None

    def _covers_dtype(self) -> bool:
        """Whether every pattern of bits is allowed, as in most pictures."""
        if self._dtype.kind not in "iu":
            return False
        about = np.iinfo(self._dtype)
        return self._low <= about.min and self._high >= about.max

    def admits(self, leaf: Array) -> bool:
        if self._free:
            return True
        leaf = leaf.view(np.uint8) if self._dtype.kind == "b" else leaf
        least, most = leaf.min(), leaf.max()
        if not (least >= self._low and most <= self._high):  # NaN is neither
            return False
        if self._each is not None and not ((leaf >= self._each[0]).all() and (leaf <= self._each[1]).all()):
            return False
        return self._usual is None or self._usual.admits(max(float(most), -float(least)))

    def complaint(self, leaf: Array) -> str:
        """Why it was not admitted: its first number out of bounds, or its largest."""
        low, high = self._each or (self._low, self._high)
        numbers = leaf
        if self._dtype.kind == "b":
            return f"bool observation {self._name!r} holds bytes other than 0 and 1"
        if not np.isfinite(numbers).all():
            return f"an observation is not finite: {self._name!r} holds {numbers[~np.isfinite(numbers)][0]}"
        wrong = ~((numbers >= low) & (numbers <= high))
        if not wrong.any():
            assert self._usual is not None, "nothing else refuses what lies within the bounds"
            return (
                f"{self._name!r} holds {numbers.flat[int(np.abs(numbers).argmax())]:g}, far beyond the usual "
                f"{self._usual.median:.3g}; give its bounds in the env spec if that is right"
            )
        low, high = np.broadcast_to(low, wrong.shape)[wrong][0], np.broadcast_to(high, wrong.shape)[wrong][0]
        return (
            f"{self._name!r} holds {numbers[wrong][0]:g}, and from {low:g} to {high:g} is allowed; send what the env "
            "spec says, in numbers of about one"
        )


class UsualPeak:
    """The running median of positive numbers, followed by factors: one number moves it little, however large it is."""

    def __init__(self, factor: float) -> None:
        self._factor, self._count = factor, 0
        self.median = 1.0

    def admits(self, peak: float) -> bool:
        """Whether a number is usual; those that are count."""
        if self._count >= WARM_UP and peak > max(FLOOR, self._factor * self.median):
            return False
        self._count += 1
        step = LATE if self._count >= WARM_UP else EARLY
        self.median = self.median * step if peak > self.median else max(self.median / step, 1e-6)
        return True


def limits_of(spec: ArraySpec) -> tuple[Array, Array]:
    """The lowest and the highest number that each entry of a part may hold, in its shape and dtype."""
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return np.zeros(spec.shape, np.uint8), np.ones(spec.shape, np.uint8)
    if spec.num_values is not None:
        high = np.reshape(np.array(spec.num_values, np.int64) - 1, spec.shape)
        return np.zeros_like(high), high
    low, high = (_spread(one, spec.shape) for one in spec.bounds or ((-np.inf,), (np.inf,)))
    if dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # ∞ - ∞
            width = np.nan_to_num(high - low, nan=np.inf, posinf=np.inf)
        slack = np.where(np.isfinite(width), width, 0.0)
        low, high = low - slack, high + slack
    low, high = np.clip(low, -LARGEST, LARGEST), np.clip(high, -LARGEST, LARGEST)
    if dtype.kind in "iu":
        about = np.iinfo(dtype)
        low, high = np.clip(low, about.min, about.max), np.clip(high, about.min, about.max)
    return low.astype(dtype), high.astype(dtype)


def _spread(numbers: tuple[float, ...], shape: tuple[int, ...]) -> Array:
    """One number for each entry; a single one is for all."""
    return np.full(shape, numbers[0]) if len(numbers) == 1 else np.reshape(np.array(numbers), shape)
