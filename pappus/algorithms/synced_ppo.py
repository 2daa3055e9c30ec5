"""PPO for learners that share every minibatch: each has a part of it, and together they do what one learner does with
the whole.

    minibatch j = ⋃ᵢ part ij    of learner i: its own steps, in its own order

The gradient is a mean over valid steps, which learners add up by themselves (`roles.synced_gradient`). What is left are
numbers that are those of all parts together: the moments of returns, and those of the advantages of each minibatch.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from pappus.algorithms.minibatches import SMALLEST_DEVIATION, Steps, chosen
from pappus.algorithms.ppo import PPO, moments_of_returns
from pappus.networks.moments import merged, moments_of
from pappus.types import Unroll


class SyncedPPO:
    """How one of several learners goes over its part of a batch."""

    def __init__(self, ppo: PPO) -> None:
        self._ppo, self.epochs = ppo, ppo.config.epochs

    @torch.no_grad()
    def prepare(self, network: Any, batch: Unroll, fresh: bool) -> Generator[Tensor, Tensor, Steps]:
        """`PPO.prepare`, with the returns of all learners counted in.

        Everybody is asked, whether returns are counted or not: minibatches are drawn when all have begun, so that a run
        in one thread that goes on from here draws the same.
        """
        value, advantage = self._ppo.expected(network, batch, fresh)
        everybodys = yield moments_of((advantage + value[:-1])[batch.valid].unsqueeze(-1))
        moments = moments_of_returns(network)
        if moments is not None:
            moments.count_in(merged(everybodys))
        return self._ppo.steps(network, batch, value, advantage)

    @torch.no_grad()
    def epoch(self, steps: Steps) -> Generator[Tensor, Tensor, list[tuple[Steps, Tensor]]]:
        """Its parts of the minibatches of an epoch. Advantages are normalised over whole minibatches, shares are of the
        own part: that is the mean that the learner's own loss is."""
        size = steps.share.shape[-1]
        order = torch.randperm(size).to(steps.share.device)
        parts = [chosen(steps, rows) for rows in order.view(self._ppo.config.minibatches, -1)]
        own = [moments_of(part.advantage[part.share > 0].unsqueeze(-1)) for part in parts]
        everybodys = merged((yield torch.stack(own)))
        return [self._balanced(part, moments) for part, moments in zip(parts, everybodys.float(), strict=True)]

    def _balanced(self, part: Steps, moments: Tensor) -> tuple[Steps, Tensor]:
        _, mean, variance = moments
        valid = part.share.sum()
        advantage = part.advantage
        if self._ppo.config.normalize_advantage:
            advantage = (advantage - mean) / (variance.sqrt() + SMALLEST_DEVIATION)
        return part._replace(advantage=advantage, share=part.share / valid.clamp(min=1)), valid
