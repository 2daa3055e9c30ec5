"""Fitted Q evaluation: Q of the policy in question, learnt from logged steps (Le et al. 2019; Voloshin et al. 2019).

    Q(o_t, a_t)  ←  r_t + γ E_π[Q'(o_{t+1}, ·)]          Q' follows Q; 0 after a termination

That trains the hidden layers. Their last one is then held, and the weights θ on top of it set to the fixed point that
this would reach after for ever (`ops.off_policy.linear_fqe`): with γ near 1 updates alone come close too slowly.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pappus.envs.spaces import Space
from pappus.judging.basis import Basis, tensor
from pappus.judging.logged import Logged
from pappus.ops.off_policy import LinearSystem, padded
from pappus.types import Array

ROWS_AT_ONCE = 4_096
GROUPS = 20
"""Groups of episodes that are left out in turn, for the interval."""


@dataclass(frozen=True)
class FQEConfig:
    """How long and how large."""

    updates: int = 2_000
    batch_size: int = 256
    """Steps per update."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    """At the start; it falls to 0."""
    target_share: float = 0.05
    """Share of Q that Q' takes over with every update."""
    ridge: float = 1e-3
    """How strongly θ is held to what the updates found, as a share of the features' mean square."""


class FittedQ:
    """K fits: one per row of `weight [K, E]`, which says how much each counts every episode."""

    def __init__(
        self, logged: Logged, space: Space, discount: float, weight: Array, seed: int = 0,
        config: FQEConfig | None = None,
    ) -> None:
        self._logged, self._config, self._weight = logged, config or FQEConfig(), weight
        self._generator = torch.Generator().manual_seed(seed)
        self._basis = Basis(logged, space, len(weight), self._config.hidden, self._generator)
        self._discount = discount * _goes_on(logged)
        self._shift, self._scale = _range_of_returns(logged, discount)
        theta = torch.zeros(len(weight), self._basis.size, requires_grad=True)
        self._descend(theta)
        self._found = theta.detach().double().numpy()
        self._systems = [self._system(member) for member in range(len(weight))]
        self._theta = np.stack([
            system.solve(self._config.ridge, found) for system, found in zip(self._systems, self._found, strict=True)
        ])

    def _descend(self, theta: Tensor) -> None:
        config, target = self._config, copy.deepcopy(self._basis).requires_grad_(False)
        reward, episode = tensor(self._logged.reward), torch.from_numpy(self._logged.episode_of)
        weight, behind = tensor(self._weight), [*target.parameters(), theta.detach().clone()]
        online: list[Tensor] = [*self._basis.parameters(), theta]
        optimizer = torch.optim.Adam(online, config.learning_rate)
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, config.updates)
        for _ in range(config.updates):
            at = torch.randint(len(reward), (config.batch_size,), generator=self._generator)
            with torch.no_grad():
                goal = self._goal(reward[at], self._discount[at], _times(target.after(at), behind[-1]))
            error = _times(self._basis.taken(at), theta) - goal
            loss = (weight[:, episode[at]] * error.square()).mean(1).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
            with torch.no_grad():
                torch._foreach_lerp_(behind, online, config.target_share)

    def _goal(self, reward: Tensor, discount: Tensor, later: Tensor) -> Tensor:
        """r + γ V, where Q and V are learnt in units of the returns: Q = shift + scale · φ θ."""
        return (reward + discount * (self._shift + self._scale * later) - self._shift) / self._scale

    @torch.no_grad()
    def _system(self, member: int) -> LinearSystem:
        """The linear system of one member, by groups of consecutive episodes that it counts."""
        counted = self._weight[member][self._logged.episode_of] > 0
        groups = group_of_episodes(len(self._logged.lengths))[self._logged.episode_of]
        reward = (self._logged.reward + (self._discount.double().numpy() - 1) * self._shift) / self._scale
        sums = []
        for group in range(groups[-1] + 1):
            steps = np.flatnonzero(counted & (groups == group))
            parts = [self._sums(member, part, reward) for part in np.array_split(steps, len(steps) // ROWS_AT_ONCE + 1)]
            sums.append([np.sum(column, 0) for column in zip(*parts, strict=True)])
        return LinearSystem(*(np.stack(column) for column in zip(*sums, strict=True)))

    def _sums(self, member: int, steps: Array, reward: Array) -> tuple[Array, Array, Array]:
        at = torch.from_numpy(steps)
        taken = self._basis.taken(at)[member].double().numpy()
        later = (self._discount[at].unsqueeze(-1) * self._basis.after(at)[member]).double().numpy()
        return taken.T @ (taken - later), taken.T @ reward[steps], np.asarray((taken**2).sum())

    def mean_at_start(self) -> tuple[float, Array]:
        """Mean V(o_0) by the first fit, and by it without each group of episodes in turn, `[G]`."""
        first, groups = self._logged.first_rows, group_of_episodes(len(self._logged.lengths))
        phi = self._expected(first, 0)
        whole = self._value(phi.mean(0) @ self._theta[0])
        if groups[-1] == 0:
            return float(whole), np.empty(0)
        others = np.stack([phi[groups != group].mean(0) for group in range(groups[-1] + 1)])
        theta = self._systems[0].leaving_out(self._config.ridge, self._found[0])
        return float(whole), self._value((others * theta).sum(1))

    def value(self, member: int) -> Array:
        """V(o) of all observations, `[M]`."""
        rows = np.arange(len(self._logged.feature))
        return self._value(self._expected(rows, member) @ self._theta[member])

    @torch.no_grad()
    def q(self, member: int) -> Array:
        """Q(o_t, a_t) of all steps, `[N]`."""
        steps = torch.split(torch.arange(len(self._logged.reward)), ROWS_AT_ONCE)
        phi = torch.cat([self._basis.taken(part)[member] for part in steps])
        return self._value(phi.double().numpy() @ self._theta[member])

    @torch.no_grad()
    def _expected(self, rows: Array, member: int) -> Array:
        parts = torch.split(torch.from_numpy(rows), ROWS_AT_ONCE)
        return np.asarray(torch.cat([self._basis.expected(part)[member] for part in parts]).double().numpy())

    def _value(self, scaled: Array) -> Array:
        return np.asarray(self._shift + self._scale * scaled)


def group_of_episodes(episodes: int) -> Array:
    """Which group each episode belongs to, `[E]`: consecutive ones, which may resemble each other."""
    return np.arange(episodes) * min(GROUPS, episodes) // episodes


def _times(phi: Tensor, theta: Tensor) -> Tensor:
    """φ θ of every member, `[K, R]`."""
    return torch.matmul(phi, theta.unsqueeze(-1)).squeeze(-1)


def _goes_on(logged: Logged) -> Tensor:
    """1 for steps that something follows, be it beyond a truncation, `[N]`."""
    goes_on = torch.ones(len(logged.reward))
    goes_on[torch.from_numpy(np.cumsum(logged.lengths) - 1)] = tensor(~logged.terminated)
    return goes_on


def _range_of_returns(logged: Logged, discount: float) -> tuple[float, float]:
    """Mean and deviation of the returns that were seen from each step on: Q is learnt in their units."""
    reward = padded(logged.reward, logged.lengths)
    for t in reversed(range(len(reward) - 1)):
        reward[t] += discount * reward[t + 1]
    seen = reward[np.arange(len(reward))[:, None] < logged.lengths]
    return float(seen.mean()), max(float(seen.std()), 1e-6)
