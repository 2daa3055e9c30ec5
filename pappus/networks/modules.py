"""The policy-value network and the parts that all networks share, as torch modules.

    observation ──FrameStack──▶ torso ──▶ core ──▶ head ──▶ Output or QOutput
                 (optional)            (memory)

Everything is time-major: observations `[T, B, …]`, features `[T, B, D]`; a single step has T = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import optree
import torch
from torch import Tensor, nn

from pappus.networks.frame_stack import FrameStack
from pappus.ops.distributions import mask_logits
from pappus.types import ACTION_MASK, ActionSpec, ArraySpec, ContinuousAction, Nest

State: TypeAlias = tuple[Tensor, ...]
Activation: TypeAlias = Literal["relu", "tanh"]
Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d)

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}

SMALLEST_VARIANCE = 1e-8

class Output(NamedTuple):
    """Policy parameters `[T, B, P]` and values `[T, B]`, both float32, and the state after the last step."""

    policy: Any
    value: Any
    state: Nest


class Torso(nn.Module):
    """From observations `[T, B, …]` to features `[T, B, output_size]`."""

    output_size: int


class MLP(Torso):
    """Linear layers of these sizes, each followed by the activation, or by a layer norm and the activation;
    orthogonal, gain √2."""

    def __init__(
        self, input_size: int, sizes: tuple[int, ...] = (64, 64), activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        pairs = pairwise((input_size, *sizes))
        self.layers = nn.ModuleList(orthogonal(nn.Linear(*pair), math.sqrt(2)) for pair in pairs)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes if layer_norm)
        self.activation = activation
        self.output_size = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(cast(nn.Linear, self.layers[0]).weight.dtype)
        activation = ACTIVATIONS[self.activation]
        for i, layer in enumerate(self.layers):
            x = activation(self.norms[i](layer(x)) if self.norms else layer(x))
        return x


class Flat(Torso):
    """A leaf of any shape, flattened to floats; uint8 is scaled by 1/255, then everything by `moments`, if any."""

    def __init__(self, leaf: ArraySpec, normalize: bool = False) -> None:
        super().__init__()
        self.output_size = math.prod(leaf.shape)
        self.scale = 1 / 255 if leaf.dtype == "uint8" else None
        self.moments = RunningMoments(self.output_size) if normalize else None

    def row(self, x: Tensor) -> Tensor:
        """Flattened to floats."""
        x = x.reshape(*x.shape[:2], self.output_size)
        return x if self.scale is None else x * self.scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.row(x)
        return x if self.moments is None else self.moments(x)


class Encoder(Torso):
    """A nest of observations: each leaf through its torso, then their concatenation through `trunk`."""

    def __init__(self, torsos: Sequence[Torso], trunk: MLP | None) -> None:
        super().__init__()
        self.torsos = nn.ModuleList(torsos)
        self.trunk = trunk
        self.output_size = sum(torso.output_size for torso in torsos) if trunk is None else trunk.output_size

    def forward(self, observation: Nest) -> Tensor:
        """`torsos` are in the order of `optree.tree_leaves(observation)`."""
        vectors = [torso(leaf) for torso, leaf in zip(self.torsos, optree.tree_leaves(observation), strict=True)]
        features: Tensor = vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)
        return features if self.trunk is None else self.trunk(features)

    def shown(self, observation: Nest) -> list[tuple[RunningMoments, Tensor]]:
        """Every module of running moments, with the numbers of these observations that it counts."""
        leaves = zip(self.torsos, optree.tree_leaves(observation), strict=True)
        flats = [(torso, leaf) for torso, leaf in leaves if isinstance(torso, Flat)]
        return [(torso.moments, torso.row(leaf)) for torso, leaf in flats if torso.moments is not None]


class Core(nn.Module):
    """The layer between torso and head, which may have memory.

        forward(x [T, B, D], first [T, B], state) → (y [T, B, output_size], state)

    The state is a tuple of `[B, H]` tensors, float32 whatever precision the module runs in. It returns to its initial
    value exactly where `first` is True, before x_t is consumed; single steps and unrolls give the same outputs. A
    `first` of one step `[1, B]` says that no episode begins after it, whatever T is.
    """

    def __init__(self, output_size: int, state_spec: tuple[ArraySpec, ...] = ()) -> None:
        super().__init__()
        self.output_size, self.state_spec = output_size, state_spec


class NoCore(Core):
    """No memory: y = x."""

    def forward(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        return x, state


class PolicyValueHead(nn.Module):
    """Policy parameters `[T, B, P]` as `ops.distributions` reads them, and values `[T, B]`, both float32.

    One linear layer computes both; the value is its last row. The policy's small gain makes the first policy nearly
    uniform. A continuous policy's log standard deviation is one parameter per action dimension, the same in all states,
    or `predicted` like the mean.
    """

    def __init__(self, input_size: int, action: ActionSpec, predicted: bool = False) -> None:
        super().__init__()
        self.log_std: nn.Parameter | None = None
        if isinstance(action, ContinuousAction):
            size = math.prod(action.shape)
            self.policy_size = 2 * size if predicted else size
            self.log_std = None if predicted else nn.Parameter(torch.zeros(size))
        else:
            self.policy_size = action.mask_size
        self.linear = nn.Linear(input_size, self.policy_size + 1)
        nn.init.orthogonal_(self.linear.weight[:-1], 0.01)
        nn.init.orthogonal_(self.linear.weight[-1:], 1.0)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        both = self.linear(features).float()
        policy, value = both.narrow(-1, 0, self.policy_size), both.select(-1, self.policy_size)
        if self.log_std is not None:
            policy = torch.cat([policy, self.log_std.float().expand_as(policy)], -1)
        return policy, value


class Body(nn.Module):
    """What all networks share: frame stack → torso → core → head.

    The recurrent state is (frames, core state), either of which may be `()`. It returns to its initial value
    wherever `first` is True, before that observation is consumed. With None for the frames, observations are stacks
    already. An observation's `action_mask` does not enter the network: it masks the output. Outputs and states stay
    float32 in a bfloat16 copy too.
    """

    def __init__(self, torso: nn.Module, core: Core, head: nn.Module, frame_stack: FrameStack | None = None) -> None:
        super().__init__()
        self.frame_stack, self.torso, self.core, self.head = frame_stack, torso, core, head
        self.state_spec: Nest = (frame_stack.state_spec if frame_stack else (), core.state_spec)
        self._keeps_moments = any(isinstance(module, RunningMoments) for module in torso.modules())

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Nest:
        """The state before an episode, `[batch, …]`, by default on the parameters' device."""
        return zeros(self.state_spec, batch, next(self.parameters()).device if device is None else device)

    def features(self, observation: Nest, first: Tensor, state: Nest) -> tuple[Tensor, Tensor | None, Nest]:
        """Features, the action mask where there is one, and the state after the last step."""
        frames, core_state = state
        observation, mask = split_mask(observation)
        if self.frame_stack is not None and frames is not None:
            observation, frames = self.frame_stack(observation, first, frames)
        features, core_state = self.core(self.torso(observation), first, core_state)
        return features, mask, (frames, core_state)

    def observe(self, observation: Nest, first: Tensor, state: Nest) -> None:
        """Update the running moments of observations, where the network keeps some."""
        for moments, rows in self.shown(observation, first, state):
            moments.update(rows)

    def shown(self, observation: Nest, first: Tensor, state: Nest) -> list[tuple[RunningMoments, Tensor]]:
        """Every module of running moments, with the numbers of this batch that it counts."""
        if not self._keeps_moments:
            return []
        observation, _ = split_mask(observation)
        if self.frame_stack is not None:
            observation, _ = self.frame_stack(observation, first, state[0])
        torso: Any = self.torso
        found: list[tuple[RunningMoments, Tensor]] = torso.shown(observation)
        return found


class ActorCritic(Body):
    """A body with a policy and a value on top; an action mask masks the policy's logits."""

    head: PolicyValueHead

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> Output:
        """`observation [T, B, …]`, `first [T, B]` and the state before them."""
        features, mask, state = self.features(observation, first, state)
        policy, value = self.head(features)
        if mask is not None:
            policy = mask_logits(policy, mask)
        return Output(policy, value, state)


class RunningMoments(nn.Module):
    """Mean and variance of all vectors `[…, size]` counted so far; 0 and 1 before the first.

    They are published with the weights, so actors, evaluators and resumed runs scale as the learner does.
    """

    farthest = 10.0
    """Scaled numbers are clipped to this many deviations from the mean."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean, self.variance = nn.Buffer(torch.zeros(size)), nn.Buffer(torch.ones(size))
        self.scale, self.count = nn.Buffer(torch.ones(size)), nn.Buffer(torch.zeros(1))

    def update(self, x: Tensor) -> None:
        self.count_in(self.of(x))

    def of(self, x: Tensor) -> Tensor:
        """The moments of these vectors alone, as `merged` and `count_in` take them."""
        return moments_of(x.reshape(-1, len(self.mean)).to(self.mean.dtype))

    @torch.no_grad()
    def count_in(self, seen: Tensor) -> None:
        """Count vectors of which only the moments are given (Chan et al. 1979, equations 2.1)."""
        count, mean, variance = torch.split(seen.to(self.mean.dtype), [1, len(self.mean), len(self.mean)])
        total = self.count + count
        share = count * total.clamp(min=1).reciprocal()
        apart = mean - self.mean
        self.variance.mul_(1 - share).add_(share * variance).add_(share * (1 - share) * apart.square())
        self.mean.add_(share * apart)
        self.count.copy_(total)
        self.scale.copy_((self.variance + SMALLEST_VARIANCE).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """x scaled to mean 0 and deviation 1."""
        return ((x - self.mean) * self.scale).clamp(-self.farthest, self.farthest)


@torch.no_grad()
def moments_of(rows: Tensor) -> Tensor:
    """Count, means and variances of rows `[M, size]`, concatenated to `[1 + 2 size]`."""
    count = rows.new_full((1,), len(rows))
    if not len(rows):
        return torch.cat([count, rows.new_zeros(2 * rows.shape[1])])
    variance, mean = torch.var_mean(rows, 0, correction=0)
    return torch.cat([count, mean, variance])


def merged(parts: Tensor) -> Tensor:
    """The moments `[…, 1 + 2 size]` of the union of N parts with moments `[N, …, 1 + 2 size]`.

    Computed in float64, so that the order of the parts does not show in float32.
    """
    size = parts.shape[-1] // 2
    count, mean, variance = torch.split(parts.double(), [1, size, size], -1)
    total = count.sum(0)
    share = count / total.clamp(min=1)
    common = (share * mean).sum(0)
    return torch.cat([total, common, (share * (variance + (mean - common).square())).sum(0)], -1)


@contextmanager
def unlearning(network: nn.Module) -> Iterator[None]:
    """What is computed within has no gradients by these parameters, which would cost as much again as those by inputs.
    """
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def is_exactly(module: Any, *kinds: type[nn.Module]) -> bool:
    """Whether a module computes what one of these classes computes: no subclass, no `forward` or hook of its own."""
    if type(module) not in kinds or "forward" in vars(module):
        return False
    return not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """The layer with orthogonal weights of this gain and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def zeros(spec: Nest, batch: int, device: torch.device | str | None = None) -> Nest:
    """The state of this spec before an episode, `[batch, …]`."""
    return optree.tree_map(
        lambda leaf: torch.zeros(batch, *leaf.shape, dtype=getattr(torch, leaf.dtype), device=device), spec
    )


def split_mask(observation: Nest) -> tuple[Nest, Any]:
    """An observation, or the spec of one, without its action mask; and the mask, or None."""
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return observation, None
    rest = dict(observation)
    return rest, rest.pop(ACTION_MASK)
