"""Sampling, recurrences, losses and Adam in NumPy, each equal to its torch counterpart.

They serve small networks on a CPU, where torch's overhead per operation is larger than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from pappus.types import Array, Nest

Fill: TypeAlias = Callable[[int, Generator], Tensor]
"""(count, generator) → that many random numbers of one kind, float32."""

AHEAD = 16_384
"""Random numbers drawn per call: enough to make the cost of the call negligible."""
FEW = 256
"""Up to this many logits one call of the slow `logaddexp` is faster than five calls of faster functions."""
LOG_STD_RANGE = (-10.0, 2.0)
"""Standard deviations from 5e-5 to 7.4, in actions' normalised units where the bounds are ±1."""
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
MOST_WEIGHTS = 65_536
"""Weights up to which `SmallAdam` is faster than torch: they fit several times into a core's cache."""


def uniform(count: int, generator: Generator) -> Tensor:
    return torch.rand(count, generator=generator)


def normal(count: int, generator: Generator) -> Tensor:
    return torch.randn(count, generator=generator)


def log_exponential(
    shape: int | Sequence[int], generator: Generator | None, device: torch.device | None = None
) -> Tensor:
    """log E with E ~ Exp(1), as log(−log u): finite because u is neither 0 nor 1, 3 times as fast as `exponential_`.

    Finite noise is what keeps masked actions out; float32 always, because bfloat16 rounds u up to 1.
    """
    u = torch.empty(shape, dtype=torch.float32, device=device)
    return u.uniform_(torch.finfo(torch.float32).tiny, 1.0, generator=generator).log_().neg_().log_()


class NoiseAhead:
    """Random numbers of one kind, drawn in large blocks and handed out in order."""

    def __init__(self, fill: Fill, generator: Generator) -> None:
        self._fill, self._generator = fill, generator
        self._before = generator.get_state()
        """The generator's state before it drew the current block."""
        self._drawn: Array = np.empty(0, np.float32)
        self._used = 0

    def take(self, rows: int, columns: int) -> Array:
        """The next ones, `[rows, columns]`, read-only by convention."""
        end = self._used + rows * columns
        if end > len(self._drawn):
            self._refill(rows * columns)
            end = rows * columns
        taken = self._drawn[self._used : end].reshape(rows, columns)
        self._used = end
        return taken

    def save(self) -> Nest:
        drawn = len(self._drawn)  # before the first block, others may have used the generator
        generator = self._before if drawn else self._generator.get_state()
        return {"generator": generator, "drawn": drawn, "used": self._used}

    def load(self, saved: Nest) -> None:
        self._generator.set_state(saved["generator"])
        self._drawn, self._used = np.empty(0, np.float32), 0
        if saved.get("drawn"):
            self._refill(saved["drawn"])
            self._used = saved["used"]

    def _refill(self, at_least: int) -> None:
        self._before = self._generator.get_state()
        self._drawn = self._fill(max(AHEAD, at_least), self._generator).numpy()
        self._used = 0


class NumpySampler(NamedTuple):
    """The noise that a distribution is sampled from, and (parameters `[N, P]`, noise) → actions, log-probabilities."""

    noise: Fill
    draw: Callable[[Array, NoiseAhead], tuple[Array, Array]]


def draw_categorical(logits: Array, noise: NoiseAhead) -> tuple[Array, Array]:
    """Actions and log-probabilities by the exponential race, as in `Categorical`."""
    action = (logits - noise.take(*logits.shape)).argmax(-1)
    return action, logits[np.arange(len(action)), action] - _log_sum(logits)


def _log_sum(logits: Array) -> Array:
    """log Σ exp over the last dimension."""
    if logits.size <= FEW:
        two = logits.shape[1] == 2  # half a reduction's time
        few: Array = np.logaddexp(logits[:, 0], logits[:, 1]) if two else np.logaddexp.reduce(logits, -1)
        return few
    largest = logits.max(-1, keepdims=True)
    total: Array = largest[:, 0] + np.log(np.exp(logits - largest).sum(-1))
    return total


def draw_gaussian(params: Array, noise: NoiseAhead, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Actions (mean + noise) and log-densities; parameters as in `Gaussian`."""
    size = params.shape[-1] // 2
    mean, log_std = params[:, :size], params[:, size:].clip(*LOG_STD_RANGE)
    drawn = noise.take(len(params), size)
    action: Any = mean + drawn * np.exp(log_std)
    log_prob = -(log_std + 0.5 * np.square(drawn)).sum(-1) - np.float32(size * LOG_SQRT_2PI)
    return action.reshape(len(params), *shape), log_prob


def cross_entropy(logits: Array, action: Array) -> tuple[Array, Array]:
    """−log softmax(logits)[a] `[M]` for logits `[M, A]`, and its gradient softmax − 1[a] `[M, A]`."""
    rows = np.arange(len(logits))
    below = logits - logits.max(-1, keepdims=True)
    p = np.exp(below)
    total = p.sum(-1, keepdims=True)
    p /= total
    p[rows, action] -= 1
    return np.log(total[:, 0]) - below[rows, action], p


def tanh_error(mean: Array, action: Array) -> tuple[Array, Array]:
    """Mean over A of (tanh mean − a)², `[M]` for `[M, A]`, and its gradient `[M, A]`."""
    said = np.tanh(mean)
    error = said - action
    return np.square(error).mean(-1), (2 / mean.shape[-1]) * error * (1 - np.square(said))


def reverse_recurrence(decay: Tensor, x: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1} with y_T = 0, over the first dimension of `[T, …]`: V-trace, λ-returns, GAE.

    Constants on a CPU go through NumPy: for small rows torch spends ten times longer on a call than on the numbers.
    """
    assert decay.shape == x.shape and x.dim() >= 1, (decay.shape, x.shape)
    constant = not (x.requires_grad or decay.requires_grad)
    if constant and x.device.type == "cpu" and x.dtype is decay.dtype is torch.float32:
        decay_t, y = decay.numpy(), x.numpy().copy()
        for t in range(len(y) - 2, -1, -1):
            y[t] += decay_t[t] * y[t + 1]
        return torch.from_numpy(y)
    decays, steps = decay.unbind(), list(x.unbind())
    for t in range(len(steps) - 2, -1, -1):
        steps[t] = torch.addcmul(steps[t], decays[t], steps[t + 1])
    return torch.stack(steps)


class SurrogateLoss(NamedTuple):
    """Per step `[M]`, except the loss and its gradient `[M, A + 1]` by the logits and the value."""

    loss: float
    actor: Array
    critic: Array
    entropy: Array
    log_ratio: Array
    ratio: Array
    gradient: Array

    def scalars(self, share: Array, clip: float) -> dict[str, float]:
        change = self.ratio - 1
        per_step = {
            "value_loss": self.critic, "policy_loss": self.actor, "entropy": self.entropy,
            "approx_kl": change - self.log_ratio, "clip_fraction": np.abs(change) > clip,
        }
        return {name: float(share @ value) for name, value in per_step.items()}


def categorical_surrogate(
    outputs: Array, action: Array, log_prob: Array, advantage: Array, target: Array, before: Array, share: Array,
    *, clip: float, baseline_cost: float, entropy_cost: float, value_clip: float,
) -> SurrogateLoss:
    """PPO's Σ share (actor + c₁ critic − c₂ H) and its gradient, for logits and value `[M, A + 1]`, the rest `[M]`.

        ∂ log π(a) / ∂ logits = 1[a] − π        ∂ H / ∂ logits = −π (log π + H)

    `before` is the value that a clipped one stays close to; `PPOConfig` explains the constants.
    """
    columns = outputs.T.copy()  # sums over actions are then sums of long rows
    logits, value = columns[:-1], columns[-1]
    logits -= logits.max(0)
    log_p = logits - np.log(np.exp(logits).sum(0))
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(0)
    chosen = np.arange(len(log_p))[:, None] == action
    log_ratio = (log_p * chosen).sum(0) - log_prob
    with np.errstate(over="ignore"):  # the learner reports a loss that is not finite
        ratio = np.exp(log_ratio)
    gain, limited = ratio * advantage, ratio.clip(1 - clip, 1 + clip) * advantage
    critic, slope = _value_loss(value, target, before, value_clip)
    gradient = np.empty_like(columns)
    pull = gain * (gain <= limited)
    gradient[:-1] = (entropy_cost * (log_p + entropy) + pull) * p - pull * chosen
    gradient[-1] = baseline_cost * slope
    gradient *= share
    actor = -np.minimum(gain, limited)
    loss = float(share @ (actor + baseline_cost * critic - entropy_cost * entropy))
    return SurrogateLoss(loss, actor, critic, entropy, log_ratio, ratio, gradient.T)


def _value_loss(value: Array, target: Array, before: Array, clip: float) -> tuple[Array, Array]:
    """½ (V − target)², or the larger of that and the same for V clipped around `before`; and the derivative."""
    error = value - target
    loss = 0.5 * np.square(error)
    if not clip:
        return loss, error
    apart = value - before
    near = before + apart.clip(-clip, clip) - target
    clipped = 0.5 * np.square(near)
    slope = np.where(clipped > loss, near * (np.abs(apart) <= clip), error)
    return np.maximum(loss, clipped), slope


MOMENTS = ("exp_avg", "exp_avg_sq")


def adam_group(rate: float, betas: tuple[float, float], epsilon: float) -> dict[str, Any]:
    """The settings that `torch.optim.Adam` stores."""
    return {
        "lr": rate, "betas": betas, "eps": epsilon, "weight_decay": 0, "amsgrad": False, "maximize": False,
        "foreach": None, "capturable": False, "differentiable": False, "fused": True, "decoupled_weight_decay": False,
    }


class SmallAdam:
    """torch's Adam for one float32 parameter, stepped in NumPy; its state is torch's, so either continues the other's.

    It is no `torch.optim.Optimizer`: the first of those that a process makes imports torch's compiler, which takes a
    second.
    """

    def __init__(self, parameter: torch.nn.Parameter, rate: float, betas: tuple[float, float], epsilon: float) -> None:
        self._parameter: Any = parameter
        self.param_groups: list[dict[str, Any]] = [adam_group(rate, betas, epsilon)]
        self._state = {"step": torch.zeros(()), **{name: torch.zeros_like(parameter.data) for name in MOMENTS}}
        self.state = {parameter: self._state}
        self._scratch = tuple(np.empty(parameter.numel(), np.float32) for _ in range(2))

    def state_dict(self) -> dict[str, Any]:
        state = {name: value.clone() for name, value in self._state.items()}
        return {"state": {0: state}, "param_groups": [{**self.param_groups[0], "params": [0]}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; torch's own is empty before its first step."""
        self.param_groups = [{name: value for name, value in state_dict["param_groups"][0].items() if name != "params"}]
        for name, value in state_dict["state"].get(0, {}).items():
            self._state[name].copy_(value)

    def step(self) -> None:
        """Kingma and Ba 2015, algorithm 1."""
        group, parameter = self.param_groups[0], self._parameter
        mean_decay, square_decay = group["betas"]
        count, mean, square = (state.numpy() for state in self._state.values())
        count += 1
        gradient, weights = parameter.grad.numpy(), parameter.detach().numpy()
        change, root = self._scratch
        np.subtract(gradient, mean, out=change)
        change *= 1 - mean_decay
        mean += change
        np.square(gradient, out=change)
        change *= 1 - square_decay
        square *= square_decay
        square += change
        np.sqrt(square, out=root)
        root /= math.sqrt(1 - square_decay ** float(count))
        root += group["eps"]
        np.divide(mean, root, out=change)
        change *= group["lr"] / (1 - mean_decay ** float(count))
        weights -= change
