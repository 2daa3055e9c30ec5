"""What estimates assume, and where that visibly fails, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pappus.judging.logged import Logged
from pappus.judging.report import Estimates
from pappus.types import Array

FEWEST_EFFECTIVE = 10
MOST_OUTSIDE = 0.05
"""Share of the policy's actions that the data does not have, from which on it is said."""
MOST_CUT_OFF = 0.05
"""γ^T of a truncated episode, from which on what is missing behind it is said."""


def assumptions(found: Estimates) -> tuple[str, ...]:
    """What must hold for the estimates that were made."""
    methods = {one.method for one in found.estimates}
    said = [
        "all: the env and the states that episodes start from are those of the data; the episodes are independent "
        "(intervals come from resampling them)"
    ]
    if methods - {"fqe"}:
        source = (
            "a policy that was fitted to the data, as not all actions have a log_prob, is the behaviour policy"
            if found.cloned
            else "the recorded log_prob are those of the policy that acted"
        )
        said.append(f"is, wis, dr, wdr: whatever the policy may do, the behaviour policy may do, too; and {source}")
    if methods & {"wis", "wdr"}:
        said.append("wis, wdr: enough episodes; self-normalised weights are biased where few are effective")
    if methods & {"dr", "wdr"}:
        said.append("dr, wdr: Q is fitted to the other half of the episodes; its errors are for the weights to correct")
    if "fqe" in methods:
        said.append(
            "fqe: a small network (64, 64) can represent Q, and the data has the states and actions that the policy "
            "reaches; its interval (groups of episodes left out in turn) does not contain an error of that network"
        )
    return tuple(said)


def warnings(
    found: Estimates, logged: Logged, asked: Sequence[str], clip: float, fitted: float | None
) -> tuple[str, ...]:
    """Where an assumption visibly fails. `fitted` is what fqe would say if nothing bounded it."""
    said = [*_about_weights(found, clip), *_about_data(found, logged), *_about_fit(found, logged, fitted)]
    refused = [method for method in asked if method not in {one.method for one in found.estimates}]
    if refused:
        said.append(
            f"{', '.join(refused)}: left out, as a deterministic policy has no density over continuous actions by "
            "which data could be weighted"
        )
    return tuple(said)


def _about_weights(found: Estimates, clip: float) -> list[str]:
    said = list[str]()
    effective = [one.effective for one in found.estimates if one.effective is not None]
    if not effective or found.mean_weight is None or found.clipped is None:
        return said
    if effective[0] == 0:
        return ["no episode of the data is one that the policy could have played: is, wis, dr and wdr say nothing"]
    if effective[0] < FEWEST_EFFECTIVE:
        said.append(
            f"effective sample size {effective[0]:.1f}: the estimates by weights rest on a few episodes, and their "
            f"intervals are too short below {FEWEST_EFFECTIVE}; rely on fqe, or use more or closer data"
        )
    if not 0.5 < found.mean_weight < 2:
        said.append(
            f"the weights of episodes have the mean {found.mean_weight:.2g} instead of 1: the policy does what the "
            "data rarely has, or the behaviour's probabilities are wrong"
        )
    if found.clipped > 0:
        said.append(f"{100 * found.clipped:.2g} % of the steps had weights above {clip:g}, which were cut: a bias")
    return said


def _about_data(found: Estimates, logged: Logged) -> list[str]:
    said = list[str]()
    if found.episodes == 1:
        said.append("one episode: there is no interval, as nothing says how much another one would differ")
    outside = outside_share(logged)
    if outside > MOST_OUTSIDE:
        said.append(
            f"{100 * outside:.0f} % of the policy's actions at the data's observations are none that the data has: "
            "what they earn is extrapolated"
        )
    cut = ~logged.terminated & (found.discount**logged.lengths > MOST_CUT_OFF)
    if cut.any() and {one.method for one in found.estimates} & {"is", "wis"}:
        said.append(
            f"{np.count_nonzero(cut)} of {found.episodes} episodes were cut off while rewards still count (γ^T > "
            f"{MOST_CUT_OFF:g}): is and wis count nothing after that; dr, wdr and fqe go on from there"
        )
    return said


def _about_fit(found: Estimates, logged: Logged, fitted: float | None) -> list[str]:
    least, most = reachable(logged.reward, found.discount)
    if fitted is None or least <= fitted <= most or "fqe" not in {one.method for one in found.estimates}:
        return []
    return [
        f"fqe was fitted as {fitted:.3g}, beyond {least:.3g} … {most:.3g}, all that these rewards allow, and is cut to "
        "that: the fit diverged"
    ]


def reachable(reward: Array, discount: float) -> tuple[float, float]:
    """The smallest and the largest return that rewards as small and as large as these allow."""
    if discount == 1:
        return -np.inf, np.inf
    return min(0.0, float(reward.min())) / (1 - discount), max(0.0, float(reward.max())) / (1 - discount)


def outside_share(logged: Logged) -> float:
    """Share of what the policy does at the data's observations that the data has nowhere: actions never taken or, of
    continuous ones, beyond the range of those taken."""
    rows = logged.rows
    if logged.probabilities is not None:
        taken = np.bincount(logged.action, minlength=logged.probabilities.shape[1]) > 0
        return float(logged.probabilities[rows][:, ~taken].sum(1).mean())
    assert logged.proposed is not None
    proposed: Array = logged.proposed[rows].reshape(len(rows), logged.proposed.shape[1], -1)
    taken = logged.action.reshape(len(rows), -1)
    margin = 0.05 * np.ptp(taken, 0)
    beyond = (proposed < taken.min(0) - margin) | (proposed > taken.max(0) + margin)
    return float(beyond.any(-1).mean())
