"""What a run has cost so far: computing, GPUs, energy, bytes and memory; and money, by the prices that its user gives.

    core hours   CPU seconds of all its processes, of the kernel's count, / 3600
    GPU seconds  busy: share of time in which kernels ran × devices; held: devices × time, whatever they do
    joules       of this machine's processors and the run's GPUs, whoever else uses them; None where nothing says
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pappus.config import CostConfig
from pappus.errors import UserError, closest
from pappus.telemetry.figures import memory

PRICES = ("hour", "core-hour", "gpu-hour", "gb", "kwh")
BUDGETS = ("money", "core-hours", "gpu-hours", "joules")
HOUR, KWH, GB = 3600.0, 3.6e6, 1e9
MOST = 1e300
"""No amount is greater, and a whole number beyond is no float either."""


@dataclass(frozen=True)
class Cost:
    """What was spent in a run, or in a part of it."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float | None = None
    """In which kernels ran; None where nothing says."""
    gpu_held_seconds: float = 0.0
    joules: float | None = None
    bytes_moved: int = 0
    peak_memory_bytes: int = 0

    @property
    def core_hours(self) -> float:
        return self.cpu_seconds / HOUR

    def __add__(self, later: Cost) -> Cost:
        """Both parts of a run; the peak is that of the greater."""
        return Cost(
            self.wall_seconds + later.wall_seconds, self.cpu_seconds + later.cpu_seconds,
            _sum(self.gpu_seconds, later.gpu_seconds), self.gpu_held_seconds + later.gpu_held_seconds,
            _sum(self.joules, later.joules), self.bytes_moved + later.bytes_moved,
            max(self.peak_memory_bytes, later.peak_memory_bytes),
        )

    def __sub__(self, earlier: Cost) -> Cost:
        """What came after; with the peak of both."""
        minus: dict[str, Any] = {name: None if value is None else -value for name, value in vars(earlier).items()}
        return self + Cost(**{**minus, "peak_memory_bytes": 0})

    def to_dict(self) -> dict[str, Any]:
        """Every number, and core hours."""
        return {**vars(self), "core_hours": self.core_hours}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Cost:
        """Of a dictionary as `to_dict` makes it; what is missing or no number is nothing."""
        known: dict[str, Any] = {field.name: content.get(field.name) for field in fields(cls)}
        return cls(**{name: value for name, value in known.items() if _is_amount(value)})

    def at_least(self, other: Cost) -> Cost:
        """The greater of both, number by number."""
        pairs = {name: (value, getattr(other, name)) for name, value in vars(self).items()}
        known: dict[str, Any] = {
            name: max((one for one in pair if one is not None), default=None) for name, pair in pairs.items()
        }
        return Cost(**known)


def money(cost: Cost, price: Mapping[str, float]) -> float | None:
    """What that costs; None without prices. Energy that nothing measures is free."""
    amounts = {
        "hour": cost.wall_seconds / HOUR, "core-hour": cost.core_hours, "gpu-hour": cost.gpu_held_seconds / HOUR,
        "gb": cost.bytes_moved / GB, "kwh": (cost.joules or 0.0) / KWH,
    }
    return sum(amounts[_plain(name)] * value for name, value in price.items()) if price else None


def spent(cost: Cost, price: Mapping[str, float]) -> dict[str, float]:
    """The same in the units of budgets."""
    return {
        "money": money(cost, price) or 0.0, "core-hours": cost.core_hours,
        "gpu-hours": cost.gpu_held_seconds / HOUR, "joules": cost.joules or 0.0,
    }


def budget_of(config: CostConfig) -> dict[str, float]:
    """The limits, by the names of `BUDGETS`."""
    return {_plain(name): limit for name, limit in config.budget.items()}


def shown(cost: Mapping[str, Any]) -> dict[str, str]:
    """Labels and texts for users, of the block `cost` of a summary, or of the metrics `cost/*`."""
    known = {name.removeprefix("cost/"): value for name, value in cost.items() if value is not None}
    seconds, peak = known.get("cpu_seconds", 0.0), known.get("peak_memory_bytes")
    found = {"computing": f"{_figure(seconds)} CPU seconds ({known.get('core_hours', seconds / HOUR):.3g} core hours)"}
    if held := known.get("gpu_held_seconds"):
        busy = f"{_figure(known['gpu_seconds'])} s of " if "gpu_seconds" in known else ""
        found["GPU"] = f"{busy}{_figure(held)} s held"
    if "joules" in known:
        found["energy"] = f"{_figure(known['joules'])} J ({known['joules'] / KWH:.3g} kWh)"
    if moved := known.get("bytes_moved"):
        found["moved"] = _size(moved)
    if peak:
        found["peak memory"] = memory(peak)
    if "money" in known:
        million = known.get("per_million_steps", {}).get("money")
        found["money"] = f"{known['money']:.3g}" + ("" if million is None else f" ({million:.3g} per million steps)")
        if "money" in (target := known.get("to_target", {})):
            found["money to the target"] = f"{target['money']:.3g}"
    for name, one in known.get("budget", {}).items():
        found[f"budget of {name}"] = f"{one['spent']:.4g} of {one['limit']:g}"
    return found


def check_cost(config: CostConfig) -> None:
    """Raise `UserError` for prices and budgets that mean nothing."""
    for option, given, known in (("price", config.price, PRICES), ("budget", config.budget, BUDGETS)):
        for name, value in given.items():
            if name != _plain(name) in given:
                raise UserError(f"--{option} names {_plain(name)} twice, also as {name}; leave one of them out")
            if _plain(name) not in known:
                raise UserError(f"--{option} {name} is unknown{closest(name, [*known])}; use {', '.join(known)}")
            if not math.isfinite(value) or value < 0 or (option == "budget" and value == 0):
                rule = "positive" if option == "budget" else "at least 0"
                raise UserError(f"--{option} {name}={value:g} must be {rule} and finite")
    if "money" in config.budget and not any(config.price.values()):
        raise UserError("--budget money needs prices; give them, such as --price core-hour=0.04,gpu-hour=3")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(count: float) -> str:
    unit, name = next((pair for pair in ((GB, "GB"), (1e6, "MB")) if count >= pair[0]), (1e3, "kB"))
    return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:,.0f} {name}"


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST
