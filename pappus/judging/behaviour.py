"""The behaviour policy's probabilities, estimated where they were not recorded: a small policy is fitted to the data.

    max Σ log b(a_t | o_t)        until a tenth of the episodes, which it does not learn from, is no better explained
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from pappus.judging.basis import HiddenLayers
from pappus.judging.logged import Logged
from pappus.ops.distributions import Distribution, distribution_for, mask_logits
from pappus.types import ActionSpec, Array

UPDATES, CHECK_EVERY = 4_000, 250
BATCH = 256
HIDDEN = (64, 64)
LEARNING_RATE = 1e-3
HELD_OUT = 10
"""One of so many episodes is held out."""
ROWS_AT_ONCE = 16_384


def cloned_log_prob(logged: Logged, action: ActionSpec, seed: int) -> Array:
    """log b(a_t | o_t) of all steps, `[N]` float64, by a policy that was fitted to them."""
    generator = torch.Generator().manual_seed(seed)
    clone = _Clone(logged, distribution_for(action), generator)
    held_out = (logged.episode_of % HELD_OUT == 0) & (len(logged.lengths) >= HELD_OUT)
    known, unknown = (torch.from_numpy(np.flatnonzero(which)) for which in (~held_out, held_out))
    optimizer = torch.optim.Adam(clone.network.parameters(), LEARNING_RATE)
    best, kept = -np.inf, copy.deepcopy(clone.network.state_dict())
    for update in range(1, UPDATES + 1):
        at = known[torch.randint(len(known), (BATCH,), generator=generator)]
        loss = -clone.log_prob(at).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if update % CHECK_EVERY == 0:
            score = clone.score(unknown if len(unknown) else known)
            if score > best:
                best, kept = score, copy.deepcopy(clone.network.state_dict())
            elif len(unknown):
                break
    clone.network.load_state_dict(kept)
    return clone.all_log_probs(torch.arange(len(logged.reward)))


class _Clone:
    """b(a | o) from the features that all judges see."""

    def __init__(self, logged: Logged, distribution: Distribution, generator: torch.Generator) -> None:
        self._distribution = distribution
        self._rows = torch.from_numpy(logged.rows)
        self._feature, self._action = torch.from_numpy(logged.feature), torch.from_numpy(logged.action)
        self._mask = None if logged.mask is None else torch.from_numpy(logged.mask)
        layers = HiddenLayers(1, self._feature, HIDDEN, generator)
        head = nn.Linear(layers.output_size, distribution.parameter_size, bias=False)
        nn.init.zeros_(head.weight)
        self.network = nn.Sequential(layers, head)

    def log_prob(self, steps: Tensor) -> Tensor:
        """Of these steps, `[R]`."""
        rows = self._rows[steps]
        params: Tensor = self.network(self._feature[rows])[0]
        if self._mask is not None:
            params = mask_logits(params, self._mask[rows])
        return self._distribution.log_prob(params, self._action[steps])

    @torch.no_grad()
    def all_log_probs(self, steps: Tensor) -> Array:
        """The same, in parts."""
        return np.concatenate([self.log_prob(part).double().numpy() for part in torch.split(steps, ROWS_AT_ONCE)])

    def score(self, steps: Tensor) -> float:
        """Mean log-likelihood."""
        return float(self.all_log_probs(steps).mean())
