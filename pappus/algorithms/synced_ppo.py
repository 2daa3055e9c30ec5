"""PPO for learners that share every minibatch: each has a part of it, and all together do what one does with the whole.

    minibatch j = ⋃ᵢ part ij    of learner i: its own steps, in its own order

The gradient (`roles.gradient_sync`), the moments of returns and those of advantages are computed over all parts.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from pappus.algorithms.minibatches import SMALLEST_DEVIATION, Steps, drawn
from pappus.algorithms.ppo import PPO
from pappus.networks.modules import merged, moments_of
from pappus.types import Unroll


class SyncedPPO:
    """How one of several learners trains on its part of a batch."""

    def __init__(self, ppo: PPO) -> None:
        self._ppo, self.epochs = ppo, ppo.config.epochs

    @torch.no_grad()
    def prepare(self, network: Any, batch: Unroll, fresh: bool) -> Generator[Tensor, Tensor, Steps]:
        """`PPO.prepare`, with the returns of all learners counted in.

        It gathers numbers even if returns are not counted: minibatches are drawn when all learners have begun, so that
        a run in one thread that is resumed from here draws the same.
        """
        value, advantage = self._ppo.expected(network, batch, fresh)
        of_all = yield moments_of((advantage + value[:-1])[batch.valid].unsqueeze(-1))
        moments = getattr(network, "returns", None)
        if moments is not None:
            moments.count_in(merged(of_all))
        return self._ppo.steps(network, batch, value, advantage)

    @torch.no_grad()
    def epoch(self, steps: Steps) -> Generator[Tensor, Tensor, list[tuple[Steps, Tensor]]]:
        """This learner's parts of the minibatches of an epoch. Advantages are normalised over whole minibatches; shares
        sum to 1 over the part, so that the learner's own loss is a mean."""
        parts = drawn(steps, self._ppo.config.minibatches)
        own = [moments_of(part.advantage[part.share > 0].unsqueeze(-1)) for part in parts]
        of_all = merged((yield torch.stack(own)))
        return [self._balanced(part, moments) for part, moments in zip(parts, of_all.float(), strict=True)]

    def synced_buffers(self, network: nn.Module) -> list[Tensor]:
        """Those of the moments of returns."""
        moments = getattr(network, "returns", None)
        return [] if moments is None else list(moments.buffers())

    def _balanced(self, part: Steps, moments: Tensor) -> tuple[Steps, Tensor]:
        _, mean, variance = moments
        valid = part.share.sum()
        advantage = part.advantage
        if self._ppo.config.normalize_advantage:
            advantage = (advantage - mean) / (variance.sqrt() + SMALLEST_DEVIATION)
        return part._replace(advantage=advantage, share=part.share / valid.clamp(min=1)), valid
