"""Every summary of every system says where its steps went, and the sum holds: received = trained + … + in flight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.config import NetworkConfig, ReplayConfig
from pappus.errors import PappusError
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.systems import SYSTEMS
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Timestep

ONLINE = [name for name, system in SYSTEMS.items() if system.defaults.topology.uses_data != "only"]
CONTROL = ("ddpg", "td3", "d4pg", "sac", "crossq")
SMALL: dict[str, Any] = {"runtime": "inline", "steps": 600, "evaluation.episodes": 1, "evaluation.max_seconds": 5.0}


def accounts_of(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    accounts = summary["accounts"]
    parts = ("trained", "stored", "dropped", "lost", "in_flight")
    assert accounts["balanced"] and accounts["received"] == sum(accounts[part] for part in parts), accounts
    assert not accounts["in_flight"] and not accounts["lost"], "nothing died"
    return {**accounts, "steps": summary["steps"] - summary["steps_before_resume"]}


@pytest.mark.parametrize("system", ONLINE)
def test_every_step_of_a_run_in_one_thread_is_accounted_for(system: str, tmp_path: Path) -> None:
    env = "Pendulum-v1" if any(name in system for name in CONTROL) else "CartPole-v1"
    pappus.train(system, env, SMALL, run_dir=tmp_path / "run")
    accounts = accounts_of(tmp_path / "run")
    if accounts["stored"]:
        assert not accounts["trained"] and accounts["received"] >= accounts["steps"] >= 600
    else:
        assert accounts["trained"] == accounts["steps"] >= 600


@pytest.mark.parametrize("system", ["impala", "seed-vtrace"])
def test_a_resumed_part_counts_what_was_in_flight_before_and_its_own_steps(system: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {**SMALL, "envs_per_actor": 3, "unroll_length": 7, "queue_size": 4, "batch_size": 6}
    if system == "impala":
        settings["actors"] = 3
    pappus.train(system, "CartPole-v1", settings, run_dir=run)
    before = accounts_of(run)
    pappus.resume(run, steps=1500)
    after = accounts_of(run)
    assert before["trained"] + after["trained"] >= 1500 and after["trained"] == after["steps"]


def test_a_run_that_fails_is_accounted_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(PappusError, match="not finite"):
        pappus.train("impala", "CartPole-v1", {**SMALL, "steps": 100_000, "optimizer.learning_rate": 1e30}, run_dir=run)
    assert accounts_of(run)["dropped"], "the batch that broke it"


def test_a_step_is_stored_when_its_item_is_in_the_table() -> None:
    env = EnvSpec(ArraySpec((2,), "float32"), DiscreteAction(2))
    algorithm = DQN(DQNConfig(n_step=3), env, NetworkConfig(hidden_sizes=(4,)))
    layout = layout_for(env, algorithm, ())
    table = layout.table(ReplayConfig(capacity=500, warm_up=1, tolerance=1000.0), 4)
    replay = DirectReplay(ReplaySpec(layout, table, max_steps=2000, batch_size=4, importance_exponent=0.0, seed=1))
    behaviour = {name: np.zeros((2, *spec.shape), spec.dtype) for name, spec in algorithm.behaviour.items()}
    sink, rng, recorded = replay.sink(2), np.random.default_rng(1), 0
    observation, ones = np.zeros((2, 2), np.float32), np.ones(2, np.float32)
    seen = Timestep(observation, np.ones(2, bool), ones, ones, np.zeros(2, bool))
    for _ in range(100):
        assert sink.ready()
        over = rng.random(2) < 0.1
        then = Timestep(observation, over, ones, (~over).astype(np.float32), np.ones(2, bool))
        recorded += sink.record(seen, (), np.zeros(2, np.int64), behaviour, then)
        seen = then
    assert sink.ready() and recorded == 200
    assert sink.stored == replay.info()["inserts"] and sink.stored + sink.open_steps() == recorded
    assert sink.open_steps() > 0
