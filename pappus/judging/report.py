"""What an off-policy estimate says: a table, what it assumes, and where that visibly fails."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pappus.errors import UserError
from pappus.ops.bootstrap import Interval


@dataclass(frozen=True)
class Estimate:
    """One method's estimate of the mean discounted return."""

    method: str
    value: float
    interval: Interval | None = None
    """None where there are too few episodes, or too few effective ones."""
    effective: float | None = None
    """Effective sample size, in episodes, of methods that weight them."""


@dataclass(frozen=True)
class Estimates:
    """What a policy would earn, by several methods, beside what the behaviour policy earned."""

    estimates: tuple[Estimate, ...]
    behaviour: Estimate
    """The mean discounted return of the data itself."""
    behaviour_return: float
    """The mean return of the data, without discount."""
    confidence: float
    discount: float
    episodes: int
    steps: int
    policy: str
    """Which policy was judged, in words."""
    cloned: bool | None
    """Whether the behaviour's probabilities were estimated from the data; None where they were not needed."""
    largest_weight: float | None
    mean_weight: float | None
    """Of whole episodes: 1 in expectation."""
    clipped: float | None
    """Share of the steps whose weight was cut."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getitem__(self, method: str) -> Estimate:
        """The estimate of one method; `UserError` where there is none."""
        made = {one.method: one for one in self.estimates}
        if method not in made:
            raise UserError(f"there is no estimate by {method!r}, only by {', '.join(made)}; `warnings` say why")
        return made[method]

    def as_json(self) -> dict[str, Any]:
        """Numbers and sentences, for programs."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        header = ["method", "estimate", f"{100 * self.confidence:g} % interval", "effective episodes"]
        rows = [header, *map(self._row, self.estimates), self._row(self.behaviour)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        about = (
            f"Mean discounted return (γ = {self.discount:g}) of {self.policy}, from {self.episodes} episodes "
            f"({self.steps} steps) that others played"
        )
        lines = [about, "", *table, "", f"The data's mean return without discount: {self.behaviour_return:.4g}"]
        for title, sentences in (("This assumes:", self.assumptions), ("Warnings:", self.warnings)):
            lines += ["", title, *(f"  - {sentence}" for sentence in sentences)] if sentences else []
        return "\n".join(lines)

    def _row(self, one: Estimate) -> list[str]:
        interval = "none" if one.interval is None else f"{one.interval[0]:.4g} … {one.interval[1]:.4g}"
        effective = "" if one.effective is None else f"{one.effective:.1f} of {self.episodes}"
        return [one.method, f"{one.value:.4g}", interval, effective]
