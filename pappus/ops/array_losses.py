"""PPO's loss and its gradient in closed form, in NumPy: on a CPU, autograd costs more than the numbers do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pappus.types import Array


class SurrogateCosts(NamedTuple):
    """The constants of the loss (see `PPOConfig`)."""

    clip: float
    baseline: float
    entropy: float
    value_clip: float


class SurrogateLoss(NamedTuple):
    """Per step `[M]`, but for the loss and its gradient `[M, A + 1]` by the logits and the value."""

    loss: float
    actor: Array
    critic: Array
    entropy: Array
    log_ratio: Array
    ratio: Array
    gradient: Array

    def scalars(self, share: Array, costs: SurrogateCosts) -> dict[str, float]:
        """What is reported of it."""
        change = self.ratio - 1
        per_step = {
            "value_loss": self.critic, "policy_loss": self.actor, "entropy": self.entropy,
            "approx_kl": change - self.log_ratio, "clip_fraction": np.abs(change) > costs.clip,
        }
        return {name: float(share @ value) for name, value in per_step.items()}


def categorical_surrogate(
    outputs: Array, action: Array, log_prob: Array, advantage: Array, target: Array, before: Array, share: Array,
    costs: SurrogateCosts,
) -> SurrogateLoss:
    """Σ share (actor + c₁ critic − c₂ H) for logits and value `[M, A + 1]`, everything else `[M]`.

        ∂ log π(a) / ∂ logits = 1[a] − π        ∂ H / ∂ logits = −π (log π + H)

    `before` is the value that a clipped one stays near to.
    """
    columns = outputs.T.copy()  # sums over actions are then sums of long rows
    logits, value = columns[:-1], columns[-1]
    logits -= logits.max(0)
    log_p = logits - np.log(np.exp(logits).sum(0))
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(0)
    chosen = np.arange(len(log_p))[:, None] == action
    log_ratio = (log_p * chosen).sum(0) - log_prob
    with np.errstate(over="ignore"):  # a loss that is not finite is told of by whoever learns
        ratio = np.exp(log_ratio)
    gain, limited = ratio * advantage, ratio.clip(1 - costs.clip, 1 + costs.clip) * advantage
    critic, slope = _value_loss(value, target, before, costs.value_clip)
    gradient = np.empty_like(columns)
    pull = gain * (gain <= limited)
    gradient[:-1] = (costs.entropy * (log_p + entropy) + pull) * p - pull * chosen
    gradient[-1] = costs.baseline * slope
    gradient *= share
    actor = -np.minimum(gain, limited)
    loss = float(share @ (actor + costs.baseline * critic - costs.entropy * entropy))
    return SurrogateLoss(loss, actor, critic, entropy, log_ratio, ratio, gradient.T)


def _value_loss(value: Array, target: Array, before: Array, clip: float) -> tuple[Array, Array]:
    """½ (V − target)², or the larger of that and the same for a value near `before`; and the derivative."""
    error = value - target
    loss = 0.5 * np.square(error)
    if not clip:
        return loss, error
    apart = value - before
    near = before + apart.clip(-clip, clip) - target
    clipped = 0.5 * np.square(near)
    slope = np.where(clipped > loss, near * (np.abs(apart) <= clip), error)
    return np.maximum(loss, clipped), slope
