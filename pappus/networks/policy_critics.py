"""Policies and critics of continuous control on one encoder: networks of SAC, CQL, IQL, AWAC and TD3+BC.

    observation ──encoder──▶ features ─┬──▶ policy      parameters of a distribution, or the action itself
                                       ├──▶ critics     Q_i(o, a): all i in one pass
                                       └──▶ value       V(o), where the method learns it

The encoder flattens, scales and encodes categories. For pictures it is a CNN, and the policy does not train it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pappus.networks.many_mlps import ManyMLPs
from pappus.networks.modules import Activation, Encoder, RunningMoments, split_mask, zeros
from pappus.networks.q_networks import LAST_LAYER_GAIN, DeterministicActorCritic
from pappus.ops.distributions import mask_logits
from pappus.ops.value_distributions import Atoms
from pappus.types import ActionSpec, ContinuousAction, Nest, map_leaves


class Seen(NamedTuple):
    """Features of observations `[B, D]`, and their action mask `[B, …]` where there is one."""

    features: Tensor
    mask: Tensor | None = None


class PolicyOutput(NamedTuple):
    """Parameters of the policy's distribution `[T, B, P]`, float32, and the state, which is empty."""

    policy: Any
    state: Nest


class PolicyCritics(nn.Module):
    """A stochastic policy, critics, and where asked for a value V(o) and a temperature.

    Parameters of a continuous policy are mean ++ log standard deviation. `squash`: those of a normal before its tanh,
    both outputs of the network (SAC). Otherwise the mean is a tanh, and the deviation one for all states (IQL, AWAC).
    Of discrete actions they are logits, and the critics see the action as one-hot vectors.
    """

    frame_stack = None
    state_spec: Nest = ()

    def __init__(
        self, encoder: Encoder, action: ActionSpec, sizes: tuple[int, ...], activation: Activation = "relu", *,
        layer_norm: bool = False, squash: bool = False, num_critics: int = 2, value: bool = False,
        temperature: float = 0.0,
    ) -> None:
        """`layer_norm` is for critics and value; a `temperature` is where a learnt one begins."""
        super().__init__()
        self.action, self.encoder = action, encoder
        self.continuous = isinstance(action, ContinuousAction)
        self.squash = squash and self.continuous
        self.action_size = math.prod(action.shape) if isinstance(action, ContinuousAction) else action.mask_size
        outputs = 2 * self.action_size if self.squash else self.action_size
        self.actor = ManyMLPs(1, encoder.output_size, sizes, outputs, activation, last_gain=LAST_LAYER_GAIN)
        free = self.continuous and not squash
        self.log_std = nn.Parameter(torch.zeros(self.action_size)) if free else None
        self.critics = ManyMLPs(
            num_critics, encoder.output_size + self.action_size, sizes, 1, activation, layer_norm
        )
        self.judge = ManyMLPs(1, encoder.output_size, sizes, 1, activation, layer_norm) if value else None
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature))) if temperature else None
        self._keeps_moments = any(isinstance(module, RunningMoments) for module in encoder.modules())

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Nest:
        return zeros(self.state_spec, batch, device)

    def see(self, observation: Nest) -> Seen:
        """Features of observations `[B, …]`, as replay delivers them."""
        observation, mask = split_mask(observation)
        features = self.encoder(map_leaves(lambda leaf: leaf.unsqueeze(0), observation))
        return Seen(features.squeeze(0), mask)

    def policy(self, seen: Seen) -> Tensor:
        """Parameters of the distribution over actions, `[…, P]`."""
        features = seen.features.detach()
        rows: Tensor = self.actor(features.flatten(0, -2)).view(*features.shape[:-1], -1)
        if self.log_std is not None:
            return torch.cat([rows.tanh(), self.log_std.float().expand_as(rows)], -1)
        return rows if seen.mask is None else mask_logits(rows, seen.mask)

    def q(self, seen: Seen, action: Tensor) -> Tensor:
        """Q_i(o, a) for actions `[B, …]`, `[critics, B]`."""
        values: Tensor = self.critics(torch.cat([seen.features, self.encoded(action)], -1))
        return values.squeeze(-1)

    def q_of_many(self, seen: Seen, action: Tensor) -> Tensor:
        """Q_i(o, a) of N actions at every observation, `[B, N, A]`: `[critics, B, N]`."""
        features = seen.features.unsqueeze(1).expand(-1, action.shape[1], -1)
        values: Tensor = self.critics(torch.cat([features, action], -1).flatten(0, 1))
        return values.view(-1, *action.shape[:2])

    def value(self, seen: Seen) -> Tensor:
        """V(o), `[B]`."""
        assert self.judge is not None
        value: Tensor = self.judge(seen.features)
        return value.view(-1)

    def encoded(self, action: Tensor) -> Tensor:
        """Actions `[B, …]` as the critics see them, `[B, A]`: within their bounds, as envs take them; or one-hot."""
        if self.continuous:
            return action.flatten(1).clamp(-1.0, 1.0)
        choices = zip(action.reshape(len(action), -1).unbind(-1), self.action.choices, strict=True)
        return torch.cat([F.one_hot(choice.long(), n) for choice, n in choices], -1).float()

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> PolicyOutput:
        """The policy for observations `[T, B, …]`."""
        observation, mask = split_mask(observation)
        return PolicyOutput(self.policy(Seen(self.encoder(observation), mask)), state)

    moments_from_replay = True

    def observe(self, observation: Nest, first: Tensor | None = None, state: Nest = ()) -> None:
        """Count observations `[T, B, …]` into the running moments, where the network keeps some."""
        if self._keeps_moments:
            count_in(self.encoder, split_mask(observation)[0])


class TwinDeterministic(DeterministicActorCritic):
    """`DeterministicActorCritic` with one encoder, and all critics in one pass."""

    def __init__(
        self, encoder: Encoder, action_shape: tuple[int, ...], sizes: tuple[int, ...], activation: Activation = "relu",
        *, layer_norm: bool = False, num_critics: int = 2, memory_spec: Nest = (), outputs: int = 1,
        critic_sizes: tuple[int, ...] = (),
    ) -> None:
        """`layer_norm` is for the critics, and `outputs` the number of theirs; without `critic_sizes` they have those
        of the policy."""
        nn.Module.__init__(self)
        self.action_shape, self.state_spec = action_shape, memory_spec
        size = math.prod(action_shape)
        self.actor: Any = ManyMLPs(1, encoder.output_size, sizes, size, activation, last_gain=LAST_LAYER_GAIN)
        critics = ManyMLPs(
            num_critics, encoder.output_size + size, critic_sizes or sizes, outputs, activation, layer_norm
        )
        self.critics = nn.ModuleList([encoder, critics])
        self._keeps_moments = any(isinstance(module, RunningMoments) for module in encoder.modules())

    def policy(self, observation: Nest) -> Tensor:
        """The policy's action, flattened to `[T, B, A]`."""
        features = self.critics[0](observation).detach()
        action: Tensor = self.actor(features.flatten(0, 1)).view(*features.shape[:2], -1)
        return action.tanh()

    def q(self, observation: Nest, action: Tensor) -> Tensor:
        """Q(o, a) of the first critic, `[T, B]`."""
        encoder, critics = self.critics
        rows = torch.cat([encoder(observation), action], -1)
        values: Tensor = critics.first(rows.flatten(0, 1))  # type: ignore[operator]
        return values.view(rows.shape[:2])

    def judge(self, observation: Nest, action: Tensor) -> list[Tensor]:
        """Q(o, a) of every critic, `[T, B]` each."""
        encoder, critics = self.critics
        rows = torch.cat([encoder(observation), action], -1)
        return list(critics(rows.flatten(0, 1)).view(-1, *rows.shape[:2]).unbind(0))

    moments_from_replay = True

    def observe(self, observation: Nest, first: Tensor | None = None, state: Nest = ()) -> None:
        """Count observations `[T, B, …]` into the running moments, where the network keeps some."""
        if self._keeps_moments:
            count_in(self.critics[0], observation)


class DistributionalDeterministic(TwinDeterministic):
    """The same with critics that give the distribution of what is earned, as logits of atoms: Q is its mean."""

    def __init__(self, encoder: Encoder, *args: Any, atoms: Atoms, **kwargs: Any) -> None:
        """The arguments of `TwinDeterministic`, and the atoms."""
        super().__init__(encoder, *args, **kwargs, outputs=atoms.count)
        self.atoms = atoms

    def q(self, observation: Nest, action: Tensor) -> Tensor:
        """Q(o, a) of the first critic, `[T, B]`."""
        encoder, critics = self.critics
        rows = torch.cat([encoder(observation), action], -1)
        logits: Tensor = critics.first(rows.flatten(0, 1))  # type: ignore[operator]
        return self.atoms.mean(logits).view(rows.shape[:2])

    def logits(self, observation: Nest, action: Tensor) -> Tensor:
        """Of every critic, `[critics, T, B, N]`."""
        encoder, critics = self.critics
        rows = torch.cat([encoder(observation), action], -1)
        logits: Tensor = critics(rows.flatten(0, 1))
        return logits.view(-1, *rows.shape[:2], self.atoms.count)

    def judge(self, observation: Nest, action: Tensor) -> list[Tensor]:
        """Q(o, a) of every critic, `[T, B]` each."""
        return list(self.atoms.mean(self.logits(observation, action)).unbind(0))


def count_in(encoder: Any, observation: Nest) -> None:
    """Count observations `[T, B, …]` into the running moments of an encoder."""
    for moments, rows in encoder.shown(observation):
        moments.update(rows)
