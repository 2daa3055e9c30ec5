"""How often intervals of off-policy estimates cover the true value: many data sets of MDPs whose values are known.

    python -m benchmarks.off_policy_coverage [--sets 500] [--episodes 200]

Every set is judged as `pappus data estimate` does it; Q is a table, so that fitted Q evaluation has the right model
class, and its fixed point is that of the linear system. A second table in which the behaviour is far from the policy
shows what the warning about the effective sample size is for.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import numpy as np

from pappus.judging.estimates import FEWEST_FOR_INTERVAL
from pappus.judging.fitted_q import group_of_episodes
from pappus.ops import off_policy
from pappus.ops.bootstrap import NORMAL, Interval, episode_intervals, jackknife_interval
from pappus.types import Array
from tests.envs.random_mdp import Played, RandomMDP, random_policy

METHODS = ("is", "wis", "dr", "wdr", "fqe")
CONFIDENCES = (0.8, 0.9, 0.95)
STATES, ACTIONS = 6, 3


@dataclass(frozen=True)
class Case:
    """An MDP, and how far the behaviour is from the policy."""

    name: str
    ends: float
    horizon: int
    discount: float
    sharpness: float
    """Of both policies, which are drawn apart."""
    more: float = 0.0
    """Added to all rewards: returns of one sign, times weights, are lopsided."""


CASES = (
    Case("discounted, γ = 0.95, episodes end by chance", 0.2, 80, 0.95, 0.5),
    Case("finite horizon, 8 steps, γ = 1", 0.0, 8, 1.0, 0.4),
    Case("the same, and all rewards are larger by 1.5", 0.0, 8, 1.0, 0.4, 1.5),
    Case("8 steps, behaviour far from the policy", 0.0, 8, 1.0, 1.2),
    Case("discounted, and all rewards are larger by 1.5", 0.2, 80, 0.95, 0.5, 1.5),
)


class Judge:
    """Estimates and intervals of one case's data sets."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.mdp = RandomMDP(STATES, ACTIONS, case.ends, case.horizon, seed)
        self.mdp.reward = self.mdp.reward + case.more
        self.policy, self.behaviour = (random_policy(STATES, ACTIONS, case.sharpness, seed + i) for i in (1, 2))
        self.timed = case.ends == 0
        """Whether the time is a part of the state: an end at a fixed time is a termination that Q must see."""
        self.value = self.mdp.value(self.policy, case.discount, case.horizon if self.timed else None)

    def intervals(self, played: Played, seed: int) -> tuple[dict[str, float], dict[tuple[str, float], Interval], float]:
        """Estimates by method, intervals by method and confidence, and the effective sample size."""
        seen, discount = (played.state[:-1], played.action), self.case.discount
        happened = np.arange(len(played.reward))[:, None] < played.lengths
        ratio = np.where(happened, np.log(self.policy[seen] / self.behaviour[seen]), 0.0)
        weights = off_policy.importance_weights(ratio, played.lengths)
        start, left_out, q, value = self._fits(played, np.random.default_rng(seed))
        rho, reward = weights.rho, played.reward
        sums = {
            "is": off_policy.importance_sampling(rho, reward, discount),
            "wis": off_policy.weighted_importance_sampling(rho, reward, discount),
            "dr": off_policy.doubly_robust(rho, reward, q, value, discount),
            "wdr": off_policy.weighted_doubly_robust(rho, reward, q, value, discount),
        }
        found = {name: one.estimate for name, one in sums.items()} | {"fqe": start}
        reach: dict[tuple[str, float], Interval] = {}
        for confidence in CONFIDENCES:
            reach["fqe", confidence] = jackknife_interval(start, left_out, confidence)
        for name, one in sums.items():
            intervals = episode_intervals(one, CONFIDENCES, np.random.default_rng(seed))
            reach |= {(name, share): interval for share, interval in zip(CONFIDENCES, intervals, strict=True)}
        return found, reach, weights.effective

    def _fits(self, played: Played, random: np.random.Generator) -> tuple[float, Array, Array, Array]:
        """As `judging.estimates.Fits`: a fit of all episodes, and those of the other half."""
        groups = group_of_episodes(len(played.lengths))
        everything = self._system(played, groups)
        start = self._table(played.state[:1], np.zeros((1, 1), int))[0]
        others = np.stack([start[groups != group].mean(0) for group in range(groups[-1] + 1)])
        theta, without = everything.solve(), everything.leaving_out()
        half = random.permutation(len(groups)) % 2
        two = self._system(played, half).leaving_out()[half]  # what the fit that does not know an episode says
        times = np.arange(len(played.state))[:, None]
        action = np.eye(ACTIONS)[played.action]
        value = (self._table(played.state, times) * two).sum(-1)
        q = (self._table(played.state[:-1], times[:-1], action) * two).sum(-1)
        goes_on = times < played.lengths + (~played.terminated & (not self.timed))
        happened = times[:-1] < played.lengths
        return float(start.mean(0) @ theta), (others * without).sum(1), q * happened, value * goes_on

    def _system(self, played: Played, groups: Array) -> off_policy.LinearSystem:
        """The linear system of a table, by groups `[E]`."""
        order = np.argsort(groups, kind="stable")
        times = np.arange(len(played.state))[:, None]
        happened = (times[:-1] < played.lengths).T[order]
        last = (times[:-1] == played.lengths - 1) & (played.terminated | self.timed)
        now = self._table(played.state[:-1], times[:-1], np.eye(ACTIONS)[played.action])
        then = self.case.discount * self._table(played.state[1:], times[1:]) * ~last[..., None]
        rows = [part.swapaxes(0, 1)[order][happened] for part in (now, played.reward, then)]
        steps = np.bincount(groups[order], played.lengths[order]).astype(int)
        return off_policy.LinearSystem.of(rows[0], rows[1], rows[2], np.cumsum(steps) - steps)

    def _table(self, state: Array, time: Array, action: Array | None = None) -> Array:
        """φ `[T, E, D]`: one entry per state, action and, where it matters, time; by the policy without an action."""
        share = self.policy[state] if action is None else action
        times = self.case.horizon if self.timed else 1
        place = (state + STATES * np.minimum(time, times - 1)) * ACTIONS
        size = STATES * ACTIONS * times
        table = np.zeros((*state.shape, size))
        np.put_along_axis(table, place[..., None] + np.arange(ACTIONS), share, -1)
        return table


def wilson(hits: int, sets: int) -> str:
    """The 95 % interval of a share, in percent."""
    z, share = NORMAL.inv_cdf(0.975), hits / sets
    middle = (share + z * z / (2 * sets)) / (1 + z * z / sets)
    reach = z * math.sqrt(share * (1 - share) / sets + (z / (2 * sets)) ** 2) / (1 + z * z / sets)
    return f"{100 * share:.1f} ({100 * (middle - reach):.1f} … {100 * (middle + reach):.1f})"


def measure(case: Case, sets: int, episodes: int, seed: int) -> None:
    """Print the table of one case."""
    began, judge = time.monotonic(), Judge(case, seed)
    played = judge.mdp.play(judge.behaviour, sets * episodes, np.random.default_rng(seed))
    hits = dict.fromkeys(((method, share) for method in METHODS for share in CONFIDENCES), 0)
    widths: dict[str, list[float]] = {method: [] for method in METHODS}
    errors: dict[str, list[float]] = {method: [] for method in METHODS}
    effective = []
    for number in range(sets):
        part = slice(number * episodes, (number + 1) * episodes)
        one = Played(*(column[..., part] for column in played))
        found, reach, size = judge.intervals(one, number)
        effective.append(size)
        for (method, share), (low, high) in reach.items():
            hits[method, share] += low <= judge.value <= high
        for method in METHODS:
            widths[method].append(reach[method, 0.95][1] - reach[method, 0.95][0])
            errors[method].append(found[method] - judge.value)
    print(
        f"\n{case.name}: value {judge.value:.3f}, {sets} sets of {episodes} episodes, median effective sample size "
        f"{np.median(effective):.1f} (below {FEWEST_FOR_INTERVAL}: {np.mean(np.array(effective) < 2):.0%}), "
        f"{time.monotonic() - began:.0f} s\n"
    )
    print("| method | 80 % | 90 % | 95 % | bias | RMSE | median width (95 %) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for method in METHODS:
        shares = " | ".join(wilson(hits[method, share], sets) for share in CONFIDENCES)
        error = np.array(errors[method])
        print(
            f"| {method} | {shares} | {error.mean():+.3f} | {np.sqrt((error**2).mean()):.3f} | "
            f"{np.median(widths[method]):.3f} |", flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=500)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="numbers, from 0 on")
    given = parser.parse_args()
    for case in (CASES[number] for number in given.cases):
        measure(case, given.sets, given.episodes, given.seed)
