"""What a run has spent in all its parts, and what its budget leaves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.telemetry.cost import Cost, budget_of, money, spent
from pappus.telemetry.files import last_line
from pappus.telemetry.meter import Meter
from pappus.telemetry.run_stats import RunStats

MILLION = 1e6


class Spending:
    """Adds the present part of a run, which `meter` measures, to what the parts before have cost."""

    def __init__(self, run_stats: RunStats, meter: Meter, before: Cost | None = None) -> None:
        """`run_stats` know what went through edges, and what processes on other machines say of themselves. `before`:
        what the parts of the run have cost that this one continues."""
        self._config, self._run_stats, self._meter = run_stats.config, run_stats, meter
        self._before = before or Cost()
        self._trained: Cost | None = None
        self._budget = budget_of(self._config.cost)

    def look(self) -> None:
        self._meter.look()

    def so_far(self) -> Cost:
        """All parts until now."""
        here, elsewhere = self._meter.cost(), self._run_stats.elsewhere()
        return self._before + replace(
            here, bytes_moved=sum(self._run_stats.bytes_moved().values()),
            cpu_seconds=here.cpu_seconds + sum(cpu for _, cpu in elsewhere),
            peak_memory_bytes=here.peak_memory_bytes + sum(memory for memory, _ in elsewhere),
        )

    def training_ended(self) -> None:
        """What comes now is the last checkpoint, the last evaluation, and the end of all processes."""
        self._meter.look(now_at_all=True)
        self._trained = self.so_far()

    def exhausted(self) -> str:
        """What of the budget is spent, in words; empty while nothing is, and without a budget."""
        if not self._budget:
            return ""
        limits = self._budget.items()
        return ", ".join(
            f"{share * limit:.4g} of {limit:g} {name}"
            for share, (name, limit) in zip(self.shares().values(), limits, strict=True) if share >= 1
        )

    def shares(self) -> dict[str, float]:
        """How much of each budget is spent."""
        used = spent(self.so_far(), self._config.cost.price) if self._budget else {}
        return {name: used[name] / limit for name, limit in self._budget.items()}

    def notes(self) -> list[str]:
        """What is not measured and would matter, said once."""
        lines = []
        if self._config.cost.price.get("kwh") and not self._meter.sources:
            lines.append("energy is not readable here, so kwh adds nothing to the money")
        if self._budget and self._before != Cost():
            used = spent(self._before, self._config.cost.price)
            parts = ", ".join(f"{used[name]:.4g} of {limit:g} {name}" for name, limit in self._budget.items())
            lines.append(f"the parts before have spent {parts}")
        return lines

    def scalars(self) -> dict[str, float]:
        """For metrics, by full name; what is not known is absent."""
        cost = self.so_far()
        known = {
            "cpu_seconds": cost.cpu_seconds, "core_hours": cost.core_hours, "gpu_seconds": cost.gpu_seconds,
            "gpu_held_seconds": cost.gpu_held_seconds or None, "joules": cost.joules,
            "bytes_moved": float(cost.bytes_moved), "wall_seconds": cost.wall_seconds,
            "peak_memory_bytes": float(cost.peak_memory_bytes),
            "money": money(cost, self._config.cost.price),
        }
        return {f"cost/{name}": value for name, value in known.items() if value is not None}

    def to_dict(self, steps: int, solved: bool) -> dict[str, Any]:
        """The block `cost` of summary.json, after `steps` env steps."""
        self._meter.look(now_at_all=True)
        cost, config = self.so_far(), self._config
        price = dict(config.cost.price)
        paid = money(cost, price)
        found = cost.to_dict() | {"energy_of": self._meter.sources}
        if price:
            found |= {"price": price, "money": paid}
        found["per_million_steps"] = _per_million(cost, paid, steps)
        skip = config.env_options.atari.frame_skip if config.env.startswith("ALE/") else 1
        if skip > 1:
            found["per_million_frames"] = _per_million(cost, paid, steps * skip)
        if self._trained is not None:
            found["after_training"] = (cost - self._trained).to_dict()
            if solved:
                found["to_target"] = {**self._trained.to_dict(), **_named(money(self._trained, price))}
        if self._budget:
            used = spent(self._trained or cost, price)
            found["budget"] = {name: {"limit": limit, "spent": used[name]} for name, limit in self._budget.items()}
        return found


def check_measurable(config: RunConfig, meter: Meter) -> None:
    """Raise `UserError` for a budget of what is not measured here."""
    budget, price = budget_of(config.cost), config.cost.price
    unknown = not meter.sources
    if "joules" in budget and unknown:
        raise UserError("--budget joules: energy is not readable here, neither RAPL nor NVML; give core-hours or money")
    if "money" in budget and price.get("kwh") and unknown:
        raise UserError("--budget money with a price of kwh: energy is not readable here; leave kwh out of --price")
    if "gpu-hours" in budget and config.device == "cpu":
        raise UserError("--budget gpu-hours: the run holds no GPU, as its device is cpu; give core-hours or money")


def spent_before(directory: Path, metadata: Mapping[str, Any]) -> Cost:
    """What the parts of a run have cost that it continues: its checkpoint knows, and what came after that checkpoint is
    in its last lines."""
    row = {name.removeprefix("cost/"): value for name, value in last_line(directory / "metrics.jsonl").items()}
    summary: Any = {}
    with contextlib.suppress(OSError, ValueError):  # it was killed
        summary = json.loads((directory / "summary.json").read_text())
    found = Cost(wall_seconds=metadata["wall_seconds"])
    for known in (metadata.get("cost"), row, summary.get("cost") if isinstance(summary, dict) else None):
        found = found.at_least(Cost.of(known if isinstance(known, dict) else {}))
    return found


def _per_million(cost: Cost, paid: float | None, count: int) -> dict[str, float]:
    million = max(count, 1) / MILLION
    return {"core_hours": cost.core_hours / million, **_named(None if paid is None else paid / million)}


def _named(paid: float | None) -> dict[str, float]:
    return {} if paid is None else {"money": paid}
