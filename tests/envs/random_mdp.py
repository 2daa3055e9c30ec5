"""Random MDPs whose values linear algebra knows, and what a policy plays in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pappus.types import Array

NOISE = 0.5
"""Standard deviation of rewards."""


class Played(NamedTuple):
    """E episodes side by side, padded by zeros."""

    state: Array
    """`[T + 1, E]`."""
    action: Array
    """`[T, E]`."""
    reward: Array
    """`[T, E]`."""
    lengths: Array
    """`[E]`."""
    terminated: Array
    """`[E]`."""


class RandomMDP:
    """S states, A actions. Every step ends the episode with the probability `ends`; `horizon` truncates it."""

    def __init__(self, states: int, actions: int, ends: float, horizon: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.states, self.actions, self.ends, self.horizon = states, actions, ends, horizon
        self.next = random.dirichlet(np.full(states, 0.5), (states, actions))
        """P(s' | s, a) where the episode goes on."""
        self.reward = random.normal(size=(states, actions))
        """Means."""
        self.start = random.dirichlet(np.ones(states))

    def play(self, policy: Array, episodes: int, random: np.random.Generator) -> Played:
        """Episodes by a policy `[S, A]`."""
        state, action, reward = (np.zeros((self.horizon + more, episodes), kind) for more, kind in (
            (1, np.int64), (0, np.int64), (0, np.float64)
        ))
        state[0] = _drawn(np.broadcast_to(self.start, (episodes, self.states)), random)
        alive, lengths = np.ones(episodes, bool), np.zeros(episodes, np.int64)
        for t in range(self.horizon):
            action[t] = np.where(alive, _drawn(policy[state[t]], random), 0)
            noisy = self.reward[state[t], action[t]] + NOISE * random.normal(size=episodes)
            reward[t] = np.where(alive, noisy, 0.0)
            lengths += alive
            state[t + 1] = np.where(alive, _drawn(self.next[state[t], action[t]], random), 0)
            alive &= random.random(episodes) >= self.ends
        return Played(state, action, reward, lengths, ~alive)

    def q(self, policy: Array, discount: float) -> Array:
        """Q(s, a) without the horizon, `[S, A]`: (I − γ P_π)⁻¹ r."""
        moves = (1 - self.ends) * np.einsum("sat,tb->satb", self.next, policy)
        size = self.states * self.actions
        return np.linalg.solve(np.eye(size) - discount * moves.reshape(size, size), self.reward.ravel()).reshape(
            self.states, self.actions
        )

    def value(self, policy: Array, discount: float, steps: int | None = None) -> float:
        """The mean discounted return; that of the first `steps`, if they are given."""
        if steps is None:
            return float(self.start @ (policy * self.q(policy, discount)).sum(1))
        total, at = 0.0, self.start
        for t in range(steps):
            total += discount**t * float(np.einsum("s,sa,sa->", at, policy, self.reward))
            at = (1 - self.ends) * np.einsum("s,sa,sat->t", at, policy, self.next)
        return total


def random_policy(states: int, actions: int, sharpness: float, seed: int) -> Array:
    """Probabilities `[S, A]`; the sharper, the less they are alike."""
    logits = sharpness * np.random.default_rng(seed).normal(size=(states, actions))
    return np.asarray(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))


def _drawn(rows: Array, random: np.random.Generator) -> Array:
    """A choice by each row of probabilities `[E, n]`."""
    return np.asarray((rows.cumsum(1) < random.random((len(rows), 1))).sum(1)).clip(max=rows.shape[1] - 1)
