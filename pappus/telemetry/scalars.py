"""Named scalars for the curves, from the windows of several roles."""

from __future__ import annotations

from collections.abc import Mapping

from pappus.telemetry.window import Totals


def window_scalars(windows: Mapping[str, list[Totals]]) -> dict[str, float]:
    """Rates, means, maxima and time shares of the windows of each kind of role, by full name."""
    scalars: dict[str, float] = {}
    for kind, roles in windows.items():
        members = [totals for totals in roles if totals.seconds > 0]
        if members:
            scalars |= _rates(kind, members) | _means(kind, members) | _shares(kind, members)
    return scalars


def full_name(kind: str, name: str) -> str:
    """Names with a slash are full names already."""
    return name if "/" in name else f"{kind}/{name}"


def _rates(kind: str, members: list[Totals]) -> dict[str, float]:
    names = dict.fromkeys(name for totals in members for name in totals.counts)
    return {f"{full_name(kind, name)}_per_second": sum(totals.rate(name) for totals in members) for name in names}


def _means(kind: str, members: list[Totals]) -> dict[str, float]:
    together = Totals()
    for totals in members:
        together.add(totals)
    scalars = {
        full_name(kind, name): together.sums[name] / weight
        for name, weight in together.weights.items()
        if weight and not name.startswith("episodes/")  # charts/episodic_* show the last 100 episodes
    }
    for name, value in together.maxima.items():
        scalars[f"{full_name(kind, name).removesuffix('_max')}_max"] = value
    return scalars


def _shares(kind: str, members: list[Totals]) -> dict[str, float]:
    """Shares of time, averaged over roles, independent of how often each reports."""
    reasons = dict.fromkeys(what for totals in members for what in totals.waiting)
    shares = {"busy": sum(totals.busy / totals.seconds for totals in members) / len(members)}
    shares["waiting"] = 1.0 - shares["busy"]
    for what in reasons:
        share = sum(totals.waiting.get(what, 0.0) / totals.seconds for totals in members) / len(members)
        shares[f"waiting_for_{what.replace(' ', '_')}"] = share
    return {f"{kind}/{name}": share for name, share in shares.items()}
