"""All steps of a data set beside what the policy in question would do there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import optree
import torch

from pappus.algorithms.choices import ActionChoice, Fixed
from pappus.data.dataset import Dataset
from pappus.data.episode import Episode
from pappus.data.reading import with_last_inputs
from pappus.networks.modules import split_mask
from pappus.roles.acting import LocalPolicy
from pappus.types import Array, ArraySpec, ContinuousAction, EnvSpec, Nest, map_leaves

EPISODES_AT_ONCE = 32
STEPS_AT_ONCE = 128
SAMPLES = 8
"""Actions of the policy per observation, where their expectation is no sum."""
LARGEST_OBSERVATION = 512
"""Numbers of an observation that are looked at directly; of a larger one, the features of the policy's network are."""


class Logged(NamedTuple):
    """N steps of E episodes, one after the other; M = N + E observations, the final ones among them."""

    lengths: Array
    """T_e, `[E]`."""
    terminated: Array
    """`[E]`."""
    reward: Array
    """`[N]`."""
    action: Array
    """`[N, …]`, in the units of policies."""
    behaviour: Array | None
    """log b(a_t | o_t) `[N]`, where it was recorded."""
    feature: Array
    """What judges see of observations, `[M, F]` float32."""
    mask: Array | None
    """Action masks `[M, …]`."""
    log_prob: Array | None
    """log π(a_t | o_t) `[N]`; None where the policy has no density."""
    probabilities: Array | None
    """π(a | o) `[M, A]`, where the policy makes one discrete choice."""
    proposed: Array | None
    """Else actions of the policy, `[M, S, …]`."""

    @property
    def episode_of(self) -> Array:
        """Which episode a step belongs to, `[N]`."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def rows(self) -> Array:
        """The row of o_t among the M, for every step `[N]`; that of o_{t+1} is the next."""
        return np.arange(len(self.reward)) + self.episode_of

    @property
    def first_rows(self) -> Array:
        """The rows of o_0, `[E]`."""
        return np.cumsum(self.lengths + 1) - self.lengths - 1


class Asked(NamedTuple):
    """What is asked of the policy."""

    greedy: bool = False
    """The most likely action instead of a sampled one."""
    epsilon: float = 0.0
    """Share of random actions, where one of several is best."""
    seed: int = 0


def read_logged(
    dataset: Dataset, policy: LocalPolicy, spec: EnvSpec, last_inputs: bool, asked: Asked
) -> Logged:
    """Read all episodes, and replay them through the policy: its memory sees each from its start."""
    look = _Look(policy.network, spec.observation)
    generator = torch.Generator().manual_seed(asked.seed)
    episodes = dataset.read(range(dataset.num_episodes))
    parts = []
    while group := list(islice(episodes, EPISODES_AT_ONCE)):
        shown = [with_last_inputs(episode) for episode in group] if last_inputs else group
        parts += list(_replayed(shown, policy, look, asked, generator))
    return Logged(*(_joined(column) for column in zip(*parts, strict=True)))


def _replayed(
    episodes: Sequence[Episode], policy: LocalPolicy, look: _Look, asked: Asked, generator: torch.Generator
) -> Iterator[Logged]:
    """One `Logged` per episode."""
    shown = _side_by_side([episode.observation for episode in episodes])
    action = _side_by_side([episode.action for episode in episodes], len(_leaf(shown)))
    features, log_prob, probabilities, proposed = _said(shown, action, policy, look, asked, generator)
    _, mask = split_mask(shown)
    for i, episode in enumerate(episodes):
        length = episode.length
        yield Logged(
            np.array([length]), np.array([episode.terminated]), np.asarray(episode.reward, np.float64), episode.action,
            episode.behaviour.get("log_prob"), features[: length + 1, i],
            None if mask is None else mask[: length + 1, i], None if log_prob is None else log_prob[:length, i],
            None if probabilities is None else probabilities[: length + 1, i],
            None if proposed is None else proposed[: length + 1, i],
        )


def _said(
    shown: Nest, action: Array, policy: LocalPolicy, look: _Look, asked: Asked, generator: torch.Generator
) -> list[Any]:
    """Features, log-probabilities, probabilities and proposals, `[T + 1, N, …]` each, or None."""
    envs, state, parts = action.shape[1], policy.initial_state(action.shape[1]), []
    for start in range(0, len(action), STEPS_AT_ONCE):
        span = slice(start, start + STEPS_AT_ONCE)
        seen, taken = map_leaves(lambda leaf, span=span: leaf[span], shown), action[span]
        first = np.zeros((len(taken), envs), bool)
        first[0] = start == 0
        before = state
        choice, state = policy.choices(seen, first, state, asked.greedy, asked.epsilon)
        parts.append((look(seen, first, before), *_answers(choice, taken, generator)))
    return [_joined(column) for column in zip(*parts, strict=True)]


def _answers(choice: ActionChoice, action: Array, generator: torch.Generator) -> tuple[Array | None, ...]:
    """Log-probabilities `[T, N]`, probabilities `[T, N, A]`, proposals `[T, N, S, …]`."""
    dense = not (isinstance(choice, Fixed) and isinstance(choice.spec, ContinuousAction))
    with torch.inference_mode():
        log_prob = choice.log_prob(torch.from_numpy(action)).double().numpy() if dense else None
        if choice.probabilities is not None:
            return log_prob, choice.probabilities.numpy(), None
        return log_prob, None, choice.sample(SAMPLES, generator).movedim(0, 2).numpy()


class _Look:
    """Features of observations: the numbers themselves where they are few, and what the policy's network makes of them
    where they are many or where it remembers earlier ones."""

    def __init__(self, network: Any, observation: Nest) -> None:
        self._network = network
        self._specs: list[ArraySpec] = optree.tree_leaves(split_mask(observation)[0])
        few = sum(sum(spec.num_values or ()) or math.prod(spec.shape) for spec in self._specs) <= LARGEST_OBSERVATION
        asks = hasattr(network, "features") or (hasattr(network, "encoder") and not few)
        self._asks = asks and (not few or bool(optree.tree_leaves(network.state_spec)))
        self._itself = few or not self._asks

    def __call__(self, observation: Nest, first: Array, state: Nest) -> Array:
        """`[T, N, F]` float32."""
        leaves = optree.tree_leaves(split_mask(observation)[0])
        own = [_numbers(leaf, spec) for leaf, spec in zip(leaves, self._specs, strict=True) if self._itself]
        return np.concatenate([*own, self._by_network(observation, first, state)] if self._asks else own, -1)

    def _by_network(self, observation: Nest, first: Array, state: Nest) -> Array:
        tensors = map_leaves(torch.from_numpy, observation)
        with torch.inference_mode():
            if hasattr(self._network, "features"):
                seen = self._network.features(tensors, torch.from_numpy(first), state)[0]
            else:
                seen = self._network.encoder(split_mask(tensors)[0])
        return np.asarray(seen.float())


def _numbers(leaf: Array, spec: ArraySpec) -> Array:
    """A leaf `[T, N, …]` as rows of floats; categories are one-hot."""
    rows = leaf.reshape(*leaf.shape[:2], -1)
    if spec.num_values is None:
        return rows.astype(np.float32)
    return np.concatenate([np.eye(n, dtype=np.float32)[rows[..., i]] for i, n in enumerate(spec.num_values)], -1)


def _side_by_side(nests: Sequence[Nest], length: int = 0) -> Nest:
    """Nests of arrays `[T_e, …]` as `[T, N, …]`, padded by zeros to the longest, or to `length`."""

    def stack(*leaves: Array) -> Array:
        rows = max(length, *(len(leaf) for leaf in leaves))
        table = np.zeros((rows, len(leaves), *leaves[0].shape[1:]), leaves[0].dtype)
        for i, leaf in enumerate(leaves):
            table[: len(leaf), i] = leaf
        return table

    return map_leaves(stack, *nests)


def _leaf(nest: Nest) -> Array:
    return np.asarray(optree.tree_leaves(nest)[0])


def _joined(parts: Sequence[Any]) -> Any:
    """Arrays one after the other; None if one of them is missing."""
    return None if any(part is None for part in parts) else np.concatenate(parts)
