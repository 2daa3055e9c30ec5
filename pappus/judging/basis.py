"""What Q is linear in: the last hidden layer of a small network, per action or of the action.

    one discrete choice    Q(o, a) = (h(o), 1) · θ_a         E_π[φ(o, ·)] = π(· | o) ⊗ (h(o), 1)
    other actions          Q(o, a) = (h(o, a), 1) · θ        E_π[φ(o, ·)] = mean of (h(o, a), 1) over actions of π
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from pappus.envs.spaces import Space, action_converter, from_env_action
from pappus.judging.logged import Logged
from pappus.types import ActionSpec, Array, ContinuousAction, DiscreteAction


class HiddenLayers(nn.Module):
    """K stacks of layers of one shape, side by side, on inputs of mean 0 and deviation 1: `[R, F]` → `[K, R, H + 1]`,
    of which the last is 1."""

    def __init__(self, members: int, inputs: Tensor, sizes: tuple[int, ...], generator: torch.Generator) -> None:
        """`inputs [R, F]` are those that are scaled."""
        super().__init__()
        self.members = members
        self.output_size = (sizes[-1] if sizes else inputs.shape[1]) + 1
        spread, mean = torch.std_mean(inputs.double(), 0, correction=0)
        self.mean, self.scale = nn.Buffer(mean.float()), nn.Buffer((1 / spread.clamp(min=1e-6)).float())
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for rows, columns in pairwise((inputs.shape[1], *sizes)):
            self.weights.append(torch.randn(members, rows, columns, generator=generator) * math.sqrt(2 / rows))
            self.biases.append(torch.zeros(members, 1, columns))

    def forward(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) * self.scale).clamp(-10.0, 10.0).expand(self.members, -1, -1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = torch.baddbmm(bias, x, weight).relu()
        return torch.cat([x, torch.ones_like(x[..., :1])], -1)


class Basis(nn.Module):
    """φ of K networks at the steps of a data set."""

    def __init__(
        self, logged: Logged, space: Space, members: int, sizes: tuple[int, ...], generator: torch.Generator
    ) -> None:
        super().__init__()
        spec, _ = action_converter(space)
        self._discrete = False
        self._feature, self._rows = torch.from_numpy(logged.feature), torch.from_numpy(logged.rows)
        if isinstance(spec, DiscreteAction):
            self._discrete = True
            self._action = nn.functional.one_hot(torch.from_numpy(logged.action), spec.n).float()
            self._chosen, inputs = tensor(logged.probabilities), self._feature
        else:
            self._action, self._chosen = (_encoded(spec, space, of) for of in (logged.action, logged.proposed))
            inputs = torch.cat([self._feature[self._rows], self._action], -1)
        self.layers = HiddenLayers(members, inputs, sizes, generator)
        self.size = self.layers.output_size * (self._action.shape[1] if self._discrete else 1)

    def taken(self, steps: Tensor) -> Tensor:
        """φ(o_t, a_t) of these steps, `[K, R, D]`."""
        seen, action = self._feature[self._rows[steps]], self._action[steps]
        return self._product(seen, action) if self._discrete else self._of(torch.cat([seen, action], -1))

    def expected(self, rows: Tensor) -> Tensor:
        """E_π[φ(o, ·)] of the observations with these rows, `[K, R, D]`."""
        seen, chosen = self._feature[rows], self._chosen[rows]
        if self._discrete:
            return self._product(seen, chosen)
        count = chosen.shape[1]
        pairs = torch.cat([seen.unsqueeze(1).expand(-1, count, -1), chosen], -1).flatten(0, 1)
        values = self._of(pairs)
        return values.reshape(len(values), -1, count, values.shape[-1]).mean(2)

    def after(self, steps: Tensor) -> Tensor:
        """E_π[φ(o_{t+1}, ·)] of these steps."""
        return self.expected(self._rows[steps] + 1)

    def _of(self, inputs: Tensor) -> Tensor:
        values: Tensor = self.layers(inputs)
        return values

    def _product(self, seen: Tensor, share: Tensor) -> Tensor:
        return (share.unsqueeze(-1) * self._of(seen).unsqueeze(-2)).flatten(-2)


def _encoded(spec: ActionSpec, space: Space, action: Array | None) -> Tensor:
    """Actions `[…, *action]` as numbers `[…, A]`: as the env takes them, clipped to its bounds; choices are one-hot."""
    assert action is not None
    rows = action.reshape(-1, *spec.array.shape)
    if isinstance(spec, ContinuousAction):
        flat = from_env_action(space, action_converter(space)[1](rows)).reshape(len(rows), -1)
    else:
        flat = np.concatenate([np.eye(n)[rows[:, i]] for i, n in enumerate(spec.choices)], -1)
    return tensor(flat.reshape(*action.shape[: action.ndim - len(spec.array.shape)], -1))


def tensor(array: Array | None) -> Tensor:
    """As float32."""
    assert array is not None
    return torch.from_numpy(np.asarray(array, np.float32))
