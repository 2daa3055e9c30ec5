"""Fitted Q evaluation: Q of the policy in question, learnt from logged steps (Le et al. 2019; Voloshin et al. 2019).

    Q(o_t, a_t)  ←  r_t + γ E_π[Q'(o_{t+1}, a)]          Q' follows Q; 0 after a termination

E_π is the sum over a discrete choice, else the mean over the policy's own actions. All fits train side by side, each
with its own weights of the episodes: 1 for all, 0 for those that it must not know, counts for resampled ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pappus.envs.spaces import Space, action_converter, from_env_action
from pappus.judging.logged import Logged
from pappus.judging.mlps import StackedMLPs
from pappus.ops.off_policy import padded
from pappus.types import ActionSpec, Array, ContinuousAction, DiscreteAction

ROWS_AT_ONCE = 4_096


@dataclass(frozen=True)
class FQEConfig:
    """How long and how large."""

    updates: int = 6_000
    batch_size: int = 256
    """Steps per update, the same for all fits."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    """At the start; it falls to 0."""
    target_share: float = 0.02
    """Share of Q that Q' takes over with every update."""


class FittedQ:
    """K fits: one per row of `weight [K, E]`."""

    def __init__(
        self, logged: Logged, space: Space, discount: float, weight: Array, seed: int = 0,
        config: FQEConfig | None = None,
    ) -> None:
        self._logged, self._config = logged, config or FQEConfig()
        self._generator = torch.Generator().manual_seed(seed)
        spec, _ = action_converter(space)
        self._discrete = isinstance(spec, DiscreteAction)
        self._feature = torch.from_numpy(logged.feature)
        self._rows = torch.from_numpy(logged.rows)
        if isinstance(spec, DiscreteAction):
            self._action, self._chosen = torch.from_numpy(logged.action), _tensor(logged.probabilities)
            inputs, outputs = self._feature, spec.n
        else:
            self._action, self._chosen = (_encoded(spec, space, of) for of in (logged.action, logged.proposed))
            inputs, outputs = torch.cat([self._feature[self._rows], self._action], -1), 1
        self._shift, self._scale = _range_of_returns(logged, discount)
        self._network = StackedMLPs(len(weight), inputs, outputs, self._config.hidden, self._generator)
        self._fit(_tensor(weight), discount)

    def _fit(self, weight: Tensor, discount: float) -> None:
        config, target = self._config, copy.deepcopy(self._network).requires_grad_(False)
        reward, episode = _tensor(self._logged.reward), torch.from_numpy(self._logged.episode_of)
        discounts = discount * _goes_on(self._logged)
        online, behind = (list[Tensor](network.parameters()) for network in (self._network, target))
        optimizer = torch.optim.Adam(online, config.learning_rate)
        falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, config.updates)
        for _ in range(config.updates):
            at = torch.randint(len(reward), (config.batch_size,), generator=self._generator)
            with torch.no_grad():
                later = self._shift + self._scale * self._value(target, self._rows[at] + 1)
                goal = (reward[at] + discounts[at] * later - self._shift) / self._scale
            error = self._q(self._network, at) - goal
            loss = (weight[:, episode[at]] * error.square()).mean(1).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
            with torch.no_grad():
                torch._foreach_lerp_(behind, online, config.target_share)

    def value(self, rows: Array) -> Array:
        """V(o) of the observations with these rows, by every fit: `[K, R]` float64."""
        wanted = torch.from_numpy(rows)
        return self._unscaled([self._value(self._network, part) for part in torch.split(wanted, ROWS_AT_ONCE)])

    def q(self) -> Array:
        """Q(o_t, a_t) of all steps, by every fit: `[K, N]` float64."""
        steps = torch.arange(len(self._rows))
        return self._unscaled([self._q(self._network, part) for part in torch.split(steps, ROWS_AT_ONCE)])

    def _unscaled(self, parts: list[Tensor]) -> Array:
        return np.asarray(self._shift + self._scale * torch.cat(parts, 1).detach().double().numpy())

    def _value(self, network: StackedMLPs, rows: Tensor) -> Tensor:
        """V(o) of rows, `[K, R]`, scaled."""
        seen, chosen = self._feature[rows], self._chosen[rows]
        if self._discrete:
            return torch.sum(network(seen) * chosen, -1)
        inputs = torch.cat([seen.unsqueeze(1).expand(-1, chosen.shape[1], -1), chosen], -1)
        values: Tensor = network(inputs.flatten(0, 1))
        return values.view(-1, *chosen.shape[:2]).mean(-1)

    def _q(self, network: StackedMLPs, steps: Tensor) -> Tensor:
        """Q(o_t, a_t) of steps, `[K, R]`, scaled."""
        seen, action = self._feature[self._rows[steps]], self._action[steps]
        if not self._discrete:
            return torch.squeeze(network(torch.cat([seen, action], -1)), -1)
        values: Tensor = network(seen)
        return values.gather(-1, action.expand(len(values), -1).unsqueeze(-1)).squeeze(-1)


def _goes_on(logged: Logged) -> Tensor:
    """1 for steps that something follows, be it beyond a truncation, `[N]`."""
    goes_on = torch.ones(len(logged.reward))
    goes_on[torch.from_numpy(np.cumsum(logged.lengths) - 1)] = _tensor(~logged.terminated)
    return goes_on


def _range_of_returns(logged: Logged, discount: float) -> tuple[float, float]:
    """Mean and deviation of the returns that were seen from each step on: Q is learnt in their units."""
    reward = padded(logged.reward, logged.lengths)
    for t in reversed(range(len(reward) - 1)):
        reward[t] += discount * reward[t + 1]
    seen = reward[np.arange(len(reward))[:, None] < logged.lengths]
    return float(seen.mean()), max(float(seen.std()), 1e-6)


def _encoded(spec: ActionSpec, space: Space, action: Array | None) -> Tensor:
    """Actions `[…, *action]` as numbers `[…, A]`: as the env takes them, clipped to its bounds; choices are one-hot."""
    assert action is not None
    rows = action.reshape(-1, *spec.array.shape)
    if isinstance(spec, ContinuousAction):
        flat = from_env_action(space, action_converter(space)[1](rows)).reshape(len(rows), -1)
    else:
        flat = np.concatenate([np.eye(n)[rows[:, i]] for i, n in enumerate(spec.choices)], -1)
    return _tensor(flat.reshape(*action.shape[: action.ndim - len(spec.array.shape)], -1))


def _tensor(array: Array | None) -> Tensor:
    assert array is not None
    return torch.from_numpy(np.asarray(array, np.float32))
