"""The suite is worth something: known mistakes, made on purpose, move values by far more than its tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pappus.algorithms.a2c
import pappus.algorithms.ppo
import pappus.algorithms.pqn
import pappus.algorithms.r2d2
import pappus.algorithms.vtrace
import pappus.networks.modules
from pappus.algorithms.dqn import DQN
from pappus.algorithms.r2d2 import R2D2
from pappus.envs.gym_vector import NextStepStream, SameStepStream
from pappus.recording.transitions import TransitionLayout
from pappus.systems import ALGORITHMS, find_system
from pappus.types import ACTION_MASK
from tests.conformance.harness import TOLERANCE, ask, deviations, report, train
from tests.conformance.systems import ROWS, courses_of
from tests.envs.exact_envs import GAMMA

ROOM = 3
"""A mistake must be so many tolerances large: training that is a little worse on another machine hides none."""


@dataclass(frozen=True)
class Mistake:
    """A function of the project, by its owner and name, and what is put around it."""

    owner: Any
    name: str
    around: Callable[..., Any]

    def make(self, patch: pytest.MonkeyPatch) -> None:
        right = getattr(self.owner, self.name)
        patch.setattr(self.owner, self.name, lambda *args, **kwargs: self.around(right, *args, **kwargs))


def truncation_terminates(step: Any, self: Any, reward: Any, terminated: Any, truncated: Any) -> Any:
    made = step(self, reward, terminated, truncated)
    return made._replace(discount=np.where(truncated, np.float32(0), made.discount))


def all_is_valid(step: Any, *args: Any) -> Any:
    made = step(*args)
    return made._replace(valid=np.ones_like(made.valid))


def episodes_run_together(step: Any, self: Any, reward: Any, terminated: Any, truncated: Any) -> Any:
    made = step(self, reward, terminated, truncated)
    always, discount = np.ones_like(made.valid), 1 - np.asarray(terminated, np.float32)
    return made._replace(first=~always, reward=np.float32(reward), discount=discount, valid=always)


def rewards_discounted_once_more(vtrace: Any, value: Any, reward: Any, discount: Any, *args: Any, **kwargs: Any) -> Any:
    return vtrace(value, reward * GAMMA, discount, *args, **kwargs)


def bootstraps_discounted_once_more(returns: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    return returns(value * GAMMA, *args, **kwargs)


def items_discounted_once_less(batch: Any, self: Any, data: Any) -> Any:
    made = batch(self, data)
    return made._replace(discount=made.discount / np.float32(GAMMA))


def actions_get_lost(batch: Any, self: Any, data: Any) -> Any:
    made = batch(self, data)
    return made._replace(action=np.zeros_like(made.action))


def next_masks_ignored(loss: Any, self: Any, network: Any, target: Any, batch: Any, *args: Any) -> Any:
    later = batch.next_observation
    later = {**later, ACTION_MASK: torch.ones_like(later[ACTION_MASK])}
    return loss(self, network, target, batch._replace(next_observation=later), *args)


def masks_ignored(unroll: Any, self: Any, network: Any, batch: Any) -> Any:
    allowed = torch.ones_like(batch.observation[ACTION_MASK])
    return unroll(self, network, batch._replace(observation={**batch.observation, ACTION_MASK: allowed}))


def padding_is_learnt_from(loss: Any, self: Any, network: Any, target: Any, batch: Any, *args: Any) -> Any:
    return loss(self, network, target, batch._replace(valid=torch.ones_like(batch.valid)), *args)


def policy_mask_ignored(mask_logits: Any, logits: Any, mask: Any) -> Any:
    return logits


TRUNCATION = Mistake(NextStepStream, "step", truncation_terminates)
VALID = Mistake(NextStepStream, "step", all_is_valid)
VALID_SAME_STEP = Mistake(SameStepStream, "step", all_is_valid)
TOGETHER = Mistake(NextStepStream, "step", episodes_run_together)
TOGETHER_SAME_STEP = Mistake(SameStepStream, "step", episodes_run_together)
VTRACE = Mistake(pappus.algorithms.vtrace, "vtrace", rewards_discounted_once_more)
A2C_GAE = Mistake(pappus.algorithms.a2c, "gae", rewards_discounted_once_more)
GAE = Mistake(pappus.algorithms.ppo, "gae", rewards_discounted_once_more)
LAMBDA = Mistake(pappus.algorithms.pqn, "lambda_returns", rewards_discounted_once_more)
RETURNS = Mistake(pappus.algorithms.r2d2, "n_step_returns", bootstraps_discounted_once_more)
ITEMS = Mistake(TransitionLayout, "batch", items_discounted_once_less)
ACTIONS = Mistake(TransitionLayout, "batch", actions_get_lost)
POLICY_MASK = Mistake(pappus.networks.modules, "mask_logits", policy_mask_ignored)
NEXT_MASK = Mistake(DQN, "loss", next_masks_ignored)
PADDING = Mistake(R2D2, "loss", padding_is_learnt_from)
SEQUENCE_MASK = Mistake(R2D2, "_unroll", masks_ignored)

CASES = [
    (TRUNCATION, "impala", "next-step", "loop"),
    (TRUNCATION, "dqn", "next-step", "loop"),
    (TRUNCATION, "r2d2", "next-step", "edge"),
    (TRUNCATION, "ddpg", "next-step", "edge"),
    (VALID, "impala", "next-step", "loop"),
    (VALID, "dqn", "next-step", "edge"),
    (PADDING, "r2d2", "next-step", "edge"),
    (VALID_SAME_STEP, "ddpg", "same-step", "loop"),
    (TOGETHER, "impala", "next-step", "trap"),
    (TOGETHER, "dqn", "next-step", "trap"),
    (TOGETHER_SAME_STEP, "impala", "same-step", "edge"),
    (TOGETHER_SAME_STEP, "dqn", "same-step", "trap"),
    (VTRACE, "impala", "next-step", "chain"),
    (VTRACE, "appo", "next-step", "chain"),
    (GAE, "ppo", "next-step", "chain"),
    (A2C_GAE, "a2c", "next-step", "chain"),
    (LAMBDA, "pqn", "next-step", "chain"),
    (TRUNCATION, "pqn@seed", "next-step", "loop"),
    (TRUNCATION, "a3c", "next-step", "loop"),
    (TRUNCATION, "ppo", "next-step", "loop"),
    (VALID, "ppo-lstm", "next-step", "loop"),
    (TOGETHER, "ppo", "next-step", "trap"),
    (RETURNS, "r2d2", "next-step", "chain"),
    (ITEMS, "dqn", "next-step", "chain"),
    (ITEMS, "ddpg", "next-step", "chain"),
    (ITEMS, "cql-dqn", "next-step", "chain"),
    *((ITEMS, name, "next-step", "chain") for name in ("d4pg", "sac", "crossq")),
    *((ITEMS, name, "next-step", "chain") for name in ("td3-bc", "rebrac", "iql", "awac", "cql")),
    (ACTIONS, "bc", "next-step", "chain"),
    (POLICY_MASK, "impala", "choice", "bandit"),
    (NEXT_MASK, "dqn", "choice", "bandit"),
    (SEQUENCE_MASK, "r2d2", "choice", "bandit"),
]


NAMES = ["-".join((mistake.around.__name__, *where)) for mistake, *where in CASES]


def test_every_algorithm_is_seen_to_fail() -> None:
    seen = {find_system(ROWS[name].system).algorithm.make for _, name, _, _ in CASES}
    assert seen == {algorithm.make for algorithm in ALGORITHMS.values()}, "make a mistake with the new algorithm"


@pytest.mark.parametrize(("mistake", "name", "course", "world"), CASES, ids=NAMES)
def test_a_mistake_is_noticed(
    mistake: Mistake, name: str, course: str, world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesson = courses_of(ROWS[name])[course]
    with monkeypatch.context() as patch:
        mistake.make(patch)
        train(ROWS[name], lesson, tmp_path / "run")
    learnt, exact = ask(tmp_path / "run", lesson.worlds), lesson.worlds[world]
    assert max(deviations(learnt, exact).values()) > ROOM * TOLERANCE, report(learnt, exact)
