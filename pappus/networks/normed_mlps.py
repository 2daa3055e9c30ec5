"""MLPs whose inputs and activations are batch-renormalised, and CrossQ's policy and critics made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from pappus.networks.many_mlps import IN_PLACE
from pappus.networks.modules import Activation, Encoder, RunningMoments
from pappus.networks.policy_critics import PolicyCritics, Seen
from pappus.ops.batch_renorm import EPSILON, renormalised
from pappus.ops.relu_mlps import half_linear
from pappus.types import ContinuousAction

MOMENTUM = 0.99
"""How much running moments keep of what they were, at every batch."""


class BatchRenorm(nn.Module):
    """Columns `[M, size]` with learnt means and deviations.

    Who learns has them by the batch's moments, and counts these into the running ones; who acts, by the running ones.
    These are published with the weights and are in checkpoints. After `warm_up` batches they correct a batch's own.
    """

    def __init__(self, size: int, warm_up: int) -> None:
        super().__init__()
        self.warm_up = warm_up
        self.gain, self.offset = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.mean, self.variance = nn.Buffer(torch.zeros(size)), nn.Buffer(torch.ones(size))
        self.count = nn.Buffer(torch.zeros(1))

    def forward(self, x: Tensor, learning: bool) -> Tensor:
        if not learning:
            scale = self.gain * (self.variance + EPSILON).rsqrt()
            return torch.addcmul(self.offset - self.mean * scale, x.to(scale.dtype), scale)
        corrects = self.count >= self.warm_up
        y, mean, variance = renormalised(x, self.gain, self.offset, self.mean, self.variance, corrects)
        with torch.no_grad():
            self.mean.lerp_(mean, 1 - MOMENTUM)
            self.variance.lerp_(variance, 1 - MOMENTUM)
            self.count.add_(1)
        return y


class NormedMLPs(nn.Module):
    """`count` MLPs of one input, from `[M, D]` to float32 `[count, M, outputs]`: norm, then layer, activation and norm
    as often as there are `sizes`, then a layer.

    As in `ManyMLPs` the first layers of all are one product, and the others one after the other. What is elementwise is
    done for all MLPs side by side: the norm of a layer has the columns of all.
    """

    def __init__(
        self, count: int, input_size: int, sizes: tuple[int, ...], outputs: int, activation: Activation, warm_up: int
    ) -> None:
        super().__init__()
        self.count, self.activation, self.mixed = count, activation, False
        self.narrowest = min(sizes) if len(sizes) > 1 else 0
        """Units of the smallest hidden layer that another one follows; 0 where there is none."""
        self.norms = nn.ModuleList(BatchRenorm(size, warm_up) for size in (input_size, *(count * n for n in sizes)))
        self.first = nn.Linear(input_size, count * sizes[0])
        self.members = nn.ModuleList(
            nn.ModuleList(nn.Linear(*pair) for pair in pairwise((*sizes, outputs))) for _ in range(count)
        )

    def forward(self, x: Tensor, learning: bool = False) -> Tensor:
        """The outputs of all."""
        norms, activate = list(self.norms), IN_PLACE[self.activation]
        columns = norms[1](activate(self.first(norms[0](x, learning))), learning)
        *hidden, last = zip(*cast(Any, self.members), strict=True)
        for layers, norm in zip(hidden, norms[2:], strict=True):
            columns = norm(activate(_joined(self._products(layers, columns))), learning)
        return torch.stack([layer(part) for layer, part in self._parts(last, columns)]).float()

    def _products(self, layers: Sequence[Any], columns: Tensor) -> list[Tensor]:
        half = self.mixed and columns.device.type == "cpu"
        return [
            half_linear(part, layer.weight, layer.bias) if half else layer(part)
            for layer, part in self._parts(layers, columns)
        ]

    def _parts(self, layers: Sequence[Any], columns: Tensor) -> zip[tuple[Any, Tensor]]:
        """Every MLP's layer, and its own columns."""
        return zip(layers, columns.chunk(self.count, 1), strict=True)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class NormedPolicyCritics(PolicyCritics):
    """`PolicyCritics` of `NormedMLPs`: a squashed policy, twin critics with sizes of their own, and a temperature."""

    def __init__(
        self, encoder: Encoder, action: ContinuousAction, sizes: tuple[int, ...], critic_sizes: tuple[int, ...],
        activation: Activation = "relu", *, warm_up: int, temperature: float, num_critics: int = 2,
    ) -> None:
        nn.Module.__init__(self)
        self.action, self.continuous, self.squash = action, True, True
        self.action_size = size = math.prod(action.shape)
        self.log_temperature, self.log_std = nn.Parameter(torch.tensor(math.log(temperature))), None
        self.actor: Any = NormedMLPs(1, encoder.output_size, sizes, 2 * size, activation, warm_up)
        self.encoder = encoder
        self.critics: Any = NormedMLPs(
            num_critics, encoder.output_size + size, critic_sizes, 1, activation, warm_up
        )
        self._keeps_moments = any(isinstance(module, RunningMoments) for module in encoder.modules())

    @property
    def part_sizes(self) -> tuple[int, int]:
        """Numbers of parameters of policy and temperature, and of the critics, in the order of `parameters()`."""
        policy = 1 + sum(parameter.numel() for parameter in self.actor.parameters())
        return policy, sum(parameter.numel() for parameter in self.parameters()) - policy

    def learnt_policy(self, seen: Seen) -> Tensor:
        """`policy` of a batch `[B, P]`, by the batch's own moments, which are counted in."""
        rows: Tensor = self.actor(seen.features.detach(), learning=True)
        return rows.squeeze(0)

    def learnt_q(self, now: tuple[Seen, Tensor], later: tuple[Seen, Tensor]) -> tuple[Tensor, Tensor]:
        """Q_i(o, a) and Q_i(o', a'), `[critics, B]` each, in one pass: the moments are those of both together."""
        rows = torch.cat([torch.cat([seen.features, self.encoded(action)], -1) for seen, action in (now, later)])
        values: Tensor = self.critics(rows, learning=True)
        q, q_later = values.squeeze(-1).chunk(2, 1)
        return q, q_later
