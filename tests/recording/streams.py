"""Random streams of several envs, and what a plain loop over them says of n-step returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.config import NetworkConfig
from pappus.types import Array, ArraySpec, DiscreteAction, EnvSpec, Timestep

ENV = EnvSpec({"row": ArraySpec((), "int64"), "where": ArraySpec((2,), "float32")}, DiscreteAction(5))
STATE: Any = ((), (ArraySpec((2,), "float32"), ArraySpec((1,), "float32")))


def dqn(n_step: int = 1, discount: float = 0.9, scale: float = 1.0) -> DQN:
    """An algorithm that learns from transitions."""
    return DQN(DQNConfig(n_step=n_step, discount=discount, reward_scale=scale), ENV, NetworkConfig())


def r2d2(burn_in: int, length: int, period: int, **settings: Any) -> R2D2:
    """An algorithm that learns from sequences."""
    return R2D2(R2D2Config(burn_in=burn_in, length=length, period=period, **settings), ENV, NetworkConfig(core="lstm"))


class Row(NamedTuple):
    """One step of one env: what was seen, what was done and said then, and what came of it."""

    env: int
    row: int
    first: bool
    action: int
    q: float
    value: float
    reward: float
    discount: float
    valid: bool


@dataclass
class Streams:
    """Envs side by side; `same_step` says which of them are reset in the step that ends an episode."""

    same_step: tuple[bool, ...]
    length: int
    seed: int
    end: float = 0.15
    """The share of steps that terminate, and as many are truncated."""
    rows: list[list[Row]] = field(init=False)
    """By env."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.rows = [list(self._one(env, same, rng)) for env, same in enumerate(self.same_step)]

    def _one(self, env: int, same_step: bool, rng: np.random.Generator) -> Iterator[Row]:
        first, over = True, False
        for row in range(self.length):
            q, value, reward = (float(np.float32(x)) for x in rng.normal(size=3))
            said = (env, row, first, int(rng.integers(5)), q, value)
            ending = str(rng.choice(["", "terminated", "truncated"], p=[1 - 2 * self.end, self.end, self.end]))
            if over or (same_step and ending == "truncated"):
                yield Row(*said, 0.0, 0.0, False)
                first, over = True, False
            elif ending == "terminated":
                yield Row(*said, reward, 0.0, True)
                first, over = same_step, not same_step
            else:
                yield Row(*said, reward, 1.0, True)
                first, over = False, ending == "truncated"

    def steps(self) -> Iterator[tuple[Timestep, Any, Array, dict[str, Array], Timestep]]:
        """What a recorder is told."""
        for rows in zip(*self.rows, strict=True):
            nothing = np.zeros(len(rows), np.float32)
            row, where = np.array([r.row for r in rows]), np.array([(r.env, -r.row) for r in rows], np.float32)
            first, valid = np.array([r.first for r in rows]), np.array([r.valid for r in rows])
            seen = Timestep({"row": row, "where": where}, first, nothing, nothing, valid)
            then = Timestep(None, first, *(np.array(x, np.float32) for x in (
                [r.reward for r in rows], [r.discount for r in rows]
            )), valid)
            behaviour = {
                "q": np.array([r.q for r in rows], np.float32), "value": np.array([r.value for r in rows], np.float32),
                "epsilon": nothing,
            }
            state = ((), (where + 0.5, where[:, :1] - 0.5))
            yield seen, state, np.array([r.action for r in rows]), behaviour, then

    def episodes(self) -> list[list[Row]]:
        """The rows of each episode up to a terminated or an invalid one, and of those that have not ended."""
        found: list[list[Row]] = []
        for rows in self.rows:
            over = True
            for row in rows:
                if row.first:
                    found.append([])
                    over = False
                if not over:
                    found[-1].append(row)
                over = over or ended(row)
        return found


def ended(row: Row) -> bool:
    """Whether an episode has no more to be learnt from after this row."""
    return not row.valid or row.discount == 0


def n_step(rows: list[Row], start: int, n: int, gamma: float, scale: float = 1.0) -> tuple[float, float, int]:
    """The summed rewards of an episode from `start` on, the discount of what follows, and the row that follows."""
    total, factor, t = 0.0, 1.0, start
    while t < start + n and t < len(rows) and rows[t].valid and factor:
        total += factor * scale * rows[t].reward
        factor *= gamma * rows[t].discount
        t += 1
    return total, factor, t
