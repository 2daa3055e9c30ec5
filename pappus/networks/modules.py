"""The policy-value and Q networks, as torch modules.

    observation ──FrameStack──▶ torso ──▶ core ──▶ head ──▶ Output or QOutput
                 (optional)            (memory)

Everything is time-major: observations `[T, B, …]`, features `[T, B, D]`; a single step has T = 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import optree
import torch
from torch import Tensor, nn

from pappus.networks.frame_stack import FrameStack
from pappus.networks.moments import RunningMoments
from pappus.networks.torsos import orthogonal
from pappus.ops.distributions import mask_logits
from pappus.types import ACTION_MASK, ActionSpec, ArraySpec, ContinuousAction, Nest

State: TypeAlias = tuple[Tensor, ...]

FORBIDDEN = -1e9
"""The value of an action that the mask does not allow: finite, so that 0 times it is 0."""


class Output(NamedTuple):
    """Policy parameters `[T, B, P]` and values `[T, B]`, both float32, and the state after the last step."""

    policy: Any
    value: Any
    state: Nest


class QOutput(NamedTuple):
    """Values `[T, B, A]`, the quantiles that they are the mean of `[T, B, A, K]`, both float32, and the state after the
    last step."""

    q: Any
    quantiles: Any
    state: Nest


class Core(nn.Module):
    """The layer between torso and head, which may have memory.

        forward(x [T, B, D], first [T, B], state) → (y [T, B, output_size], state)

    The state is a tuple of `[B, H]` tensors, float32 whatever precision the module runs in. It returns to its initial
    value exactly where `first` is True, before x_t is consumed; single steps and unrolls give the same outputs.
    """

    def __init__(self, output_size: int, state_spec: tuple[ArraySpec, ...] = ()) -> None:
        super().__init__()
        self.output_size = output_size
        self.state_spec = state_spec

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> State:
        """Zeros, as after a reset."""
        return tuple(torch.zeros(batch, *spec.shape, device=device) for spec in self.state_spec)

    def forward(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError


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


class QHead(nn.Module):
    """Action values `[T, B, A, K]`, float32: K quantiles of each action, or with K = 1 the value itself.

    Dueling (Wang et al. 2016): Q = V + A − mean A; V is the last row of the layer that computes both. With `hidden`
    units, each of the two streams has a hidden layer of its own.
    """

    def __init__(
        self, input_size: int, num_actions: int, dueling: bool = True, hidden: int = 0, quantiles: int = 1
    ) -> None:
        super().__init__()
        self.num_actions, self.dueling, self.quantiles = num_actions, dueling, quantiles
        streams = ("advantage", "value") if dueling else ("advantage",)
        self.hidden = nn.ModuleList(orthogonal(nn.Linear(input_size, hidden), math.sqrt(2)) for _ in streams if hidden)
        outputs = {"advantage": num_actions * quantiles, "value": quantiles}
        if hidden:
            self.outputs = nn.ModuleList(orthogonal(nn.Linear(hidden, outputs[name]), 0.1) for name in streams)
        else:
            self.outputs = nn.ModuleList([orthogonal(nn.Linear(input_size, sum(outputs[n] for n in streams)), 0.1)])

    def mixing(self) -> Tensor:
        """Dueling as a matrix `[A + 1, A]`, for K = 1: Q = (A, V) · M."""
        count = self.num_actions
        return torch.cat([torch.eye(count) - 1 / count, torch.ones(1, count)])

    def forward(self, features: Tensor) -> Tensor:
        if self.hidden:
            parts = [
                output(hidden(features).relu_()) for hidden, output in zip(self.hidden, self.outputs, strict=True)
            ]
            rows = torch.cat(parts, -1).float()
        else:
            rows = self.outputs[0](features).float()
        both: Tensor = rows.view(*rows.shape[:-1], -1, self.quantiles)
        if not self.dueling:
            return both
        advantage, value = both.narrow(-2, 0, self.num_actions), both.narrow(-2, self.num_actions, 1)
        return value + advantage - advantage.mean(-2, keepdim=True)


class Body(nn.Module):
    """What all networks share: frame stack → torso → core.

    The recurrent state is (frames, core state), either of which may be `()`. It returns to its initial value
    wherever `first` is True, before that observation is consumed. An observation's `action_mask` does not enter
    the network: it masks the output. Outputs and states stay float32 in a bfloat16 copy too.
    """

    def __init__(self, torso: nn.Module, core: Core, frame_stack: FrameStack | None = None) -> None:
        super().__init__()
        self.frame_stack = frame_stack
        self.torso = torso
        self.core = core
        self.state_spec: Nest = (frame_stack.state_spec if frame_stack else (), core.state_spec)
        self._keeps_moments = any(isinstance(module, RunningMoments) for module in torso.modules())

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Nest:
        """The state before an episode, `[batch, …]`, by default on the parameters' device."""
        device = next(self.parameters()).device if device is None else device
        return optree.tree_map(
            lambda leaf: torch.zeros(batch, *leaf.shape, dtype=getattr(torch, leaf.dtype), device=device),
            self.state_spec,
        )

    def features(self, observation: Nest, first: Tensor, state: Nest) -> tuple[Tensor, Tensor | None, Nest]:
        """Features, the action mask where there is one, and the state after the last step."""
        frames, core_state = state
        observation, mask = _split_mask(observation)
        if self.frame_stack is not None:
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
        observation, _ = _split_mask(observation)
        if self.frame_stack is not None:
            observation, _ = self.frame_stack(observation, first, state[0])
        torso: Any = self.torso
        found: list[tuple[RunningMoments, Tensor]] = torso.shown(observation)
        return found


class ActorCritic(Body):
    """A body with a policy and a value on top; an action mask masks the policy's logits."""

    def __init__(
        self, torso: nn.Module, core: Core, head: PolicyValueHead, frame_stack: FrameStack | None = None
    ) -> None:
        super().__init__(torso, core, frame_stack)
        self.head = head

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> Output:
        """`observation [T, B, …]`, `first [T, B]` and the state before them."""
        features, mask, state = self.features(observation, first, state)
        policy, value = self.head(features)
        if mask is not None:
            policy = mask_logits(policy, mask)
        return Output(policy, value, state)


class QNetwork(Body):
    """A body with action values on top; an action mask forbids actions.

    Where the mask allows none (many envs show an empty mask with the last observation of an episode), every action is
    worth 0: nothing more can be earned there, and no such value is ever learned.
    """

    def __init__(self, torso: nn.Module, core: Core, head: QHead, frame_stack: FrameStack | None = None) -> None:
        super().__init__(torso, core, frame_stack)
        self.head = head

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> QOutput:
        """`observation [T, B, …]`, `first [T, B]` and the state before them."""
        features, mask, state = self.features(observation, first, state)
        quantiles = self.head(features)
        q = quantiles.mean(-1) if self.head.quantiles > 1 else quantiles.squeeze(-1)
        if mask is not None:
            allowed = mask.bool()
            anything = allowed.any(-1, keepdim=True)
            q = torch.where(allowed, q, torch.where(anything, FORBIDDEN, 0.0))
            quantiles = torch.where(anything.unsqueeze(-1), quantiles, 0.0)
        return QOutput(q, quantiles, state)


def _split_mask(observation: Nest) -> tuple[Nest, Tensor | None]:
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return observation, None
    rest = dict(observation)
    return rest, rest.pop(ACTION_MASK)
