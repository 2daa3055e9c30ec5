"""One agent in one thread: the reference that the distributed architectures are measured against (Mnih et al. 2015).

    env ⇄ actor ──items, priorities──▶ replay ──batch──▶ learner
            ▲                             └──priorities──┘ │
            └─────────────────── weights ◀─────────────────┘──▶ evaluator

It is the program of Ape-X with one actor. In the inline runtime, which is the default here, the roles take turns as
the table's rate limiter allows, and every run with the same seed is the same run.
"""

from __future__ import annotations

from dataclasses import dataclass

from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.topologies.apex import ApexConfig


@dataclass(frozen=True)
class SingleConfig(ApexConfig):
    """As for Ape-X, with one actor, which checks for new weights at every step."""

    refresh_every: int = 1

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        return 1

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if config.actors != 1:
            raise UserError(f"actors={config.actors}: {config.system} has one actor; use apex-dqn or apex-ddpg")

    def takes_turns(self, config: RunConfig) -> bool:
        """The table's limiter says whose turn it is."""
        return True
