"""SEED with synchronous batches: central inference for algorithms that need fresh data (PPO, A2C).

    actor 0 ──observations──▶ ┌───────────┐               ┌──────────┐
            ◀────actions───── │ inference │ ─one batch──▶ │ learner  │
    actor 1 ──observations──▶ │ (states,  │               └────┬─────┘
            ◀────actions───── │  unrolls) │ ◀─────weights──────┤
    elsewhere ⇄ gRPC          └───────────┘                    └──▶ evaluator

A batch holds one unroll of every env, all acted with the newest weights: when it is full, envs wait until the learner
has published the weights that it led to. With `ahead` = 1 they play the next batch meanwhile, with weights that are one
batch old. On a GPU, inference and learning share the device, and experience stays there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pappus.config import RunConfig
from pappus.core import EpochAlgorithm
from pappus.errors import UserError
from pappus.topologies.program import Program, Run
from pappus.topologies.seed import SeedConfig, options_of, seed


@dataclass(frozen=True)
class SeedSyncConfig(SeedConfig):
    """Central inference; a batch is one unroll of every env."""

    ahead: int = 0
    """Batches that envs may start while the learner still trains on earlier ones: 1 keeps envs and learner busy, with a
    policy lag of one batch."""

    many_learners: ClassVar[bool] = False
    waits_for_all_actors: ClassVar[bool] = True  # what a lost actor had begun stays reserved until its successor comes
    slack_option: ClassVar[str] = ""

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if self.ahead < 0:
            raise UserError(f"topology.ahead={self.ahead} must not be negative; 0 waits for the learner's update")
        envs = config.actors * config.envs_per_actor
        if envs and not self.wire.listen and config.batch_size not in (0, envs):
            raise UserError(
                f"batch_size={config.batch_size}: a batch is one unroll of each of the {envs} envs; leave it out, or "
                "change --actors, --envs-per-actor"
            )
        if not config.network.factory:  # the program asks an own network whether it has a memory
            config.algorithm.check_batch(config.unroll_length, config.batch_envs, config.network.core != "none")

    def policy_lag(self, config: RunConfig) -> float:
        return float(self.ahead)

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """Cheap envs are stepped fastest in the learner's own thread."""
        return super().actors_for(config, cores, heavy) if heavy or config.device != "cpu" else 1

    def takes_turns(self, config: RunConfig) -> bool:
        """With one actor only one of actor, inference and learner has work at any time, unless envs go ahead."""
        return config.actors == 1 and self.ahead == 0 and not self.wire.listen and config.device == "cpu"


def seed_sync(run: Run) -> Program:
    """The program of SEED, with synchronous batches."""
    if isinstance(run.algorithm, EpochAlgorithm):
        run.algorithm.check_batch(run.config.unroll_length, run.config.batch_envs)
    options = options_of(run)
    assert isinstance(options, SeedSyncConfig)
    return seed(run, "seed-sync", synchronous=True, ahead=options.ahead)
