from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.api import configure, describe
from pappus.config import NetworkConfig
from pappus.core import Waitable, WeightsWriter
from pappus.edges.counters import CounterEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import DeadlockError, UserError
from pappus.experience import Transitions
from pappus.recording.transitions import TABLE
from pappus.roles.learner import Learner
from pappus.roles.replay_server import ReplayServer
from pappus.roles.role import Role
from pappus.runtimes.inline import InlineRuntime
from pappus.systems import find_system
from pappus.topologies.program import Program, Run, off_policy, on_policy
from pappus.types import ArraySpec, DiscreteAction, EnvSpec
from tests.config_tools import check
from tests.contracts.runtime_contract import FakeController

RECALL = "tests.envs.memory_envs:delayed_recall"
SMALL: dict[str, Any] = {
    "runtime": "inline", "actors": 2, "envs_per_actor": 3, "batch_size": 8, "network.hidden_sizes": [8],
    "topology.replay.capacity": 5000, "topology.replay.warm_up": 50, "topology.replay.tolerance": 2.0,
}
SEQUENCES: dict[str, Any] = {
    **SMALL, "algorithm.burn_in": 4, "algorithm.length": 8, "algorithm.period": 4, "topology.replay.warm_up": 10,
    "network.core_size": 4, "env_options.kwargs": {"delay": 11},
}
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("apex-dqn", "CartPole-v1", {**SMALL, "topology.replay.samples_per_insert": 2.0}),
    ("dqn", "CartPole-v1", {**SMALL, "actors": 1, "algorithm.quantiles": 3, "topology.replay.samples_per_insert": 2.0}),
    ("r2d2", RECALL, SEQUENCES),
]


class UntilLearnt(FakeController):
    """Ends the run with the learner."""

    def role_finished(self, role: str) -> None:
        self.is_over = self.is_over or role == "learner"


def program(system: str, env: str, settings: dict[str, Any]) -> Program:
    return find_system(system).topology.build(describe(configure(system, env, settings), env))


def roles(made: Program) -> tuple[Learner, dict[str, Any]]:
    """The learner and the table's counts at the end of an inline run."""
    runtime = InlineRuntime(made, UntilLearnt())  # type: ignore[arg-type]
    runtime.run()
    learner, replay_server = runtime.roles["learner"], runtime.roles["replay"]
    assert isinstance(learner, Learner) and isinstance(replay_server, ReplayServer)
    return learner, replay_server._host.service.info(TABLE)


def test_the_program_is_the_papers_figure() -> None:
    made = program("apex-dqn", "CartPole-v1", {
        "actors": 3, "envs_per_actor": 4, "runtime": "inline", "batch_size": 512, "algorithm.n_step": 3,
    })
    assert [node.name for node in made.roles] == [
        "actor-0", "actor-1", "actor-2", "replay", "learner", "evaluator"
    ]
    assert [node.name for node in made.roles if node.essential] == ["learner"]
    replay, weights, steps = made.edges["replay"], made.edges["weights"], made.edges["steps"]
    assert isinstance(replay, ReplayEdge) and replay.spec.batch_size == 512
    assert replay.spec.layout.experience == Transitions(3, 0.99)
    assert isinstance(weights, WeightsEdge) and weights.size == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3
    assert isinstance(steps, CounterEdge) and steps.writers == 3
    ends = {spec.name: set(map(str, spec.ends())) for spec in made.roles}
    assert ends["actor-2"] == {"replay.sink(4)", "weights.reader()", "steps.counter(2)"}
    assert ends["replay"] == {"replay.host()"}
    assert ends["learner"] == {"replay.source()", "weights.writer()", "steps.reader()"}
    assert ends["evaluator"] == {"weights.reader()"}


@pytest.mark.parametrize(("system", "env", "settings"), RUNS, ids=[run[0] for run in RUNS])
def test_runs_with_one_seed_are_one_run_and_with_another_seed_another(
    system: str, env: str, settings: dict[str, Any]
) -> None:
    saved = [
        roles(program(system, env, {**settings, "steps": 220, "seed": seed, "algorithm.target_every": 5}))[0].save()
        for seed in (1, 1, 2)
    ]
    one, same, other = (np.concatenate([state["weights"], state["target"]]) for state in saved)
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert saved[0]["updates"] > 10


@pytest.mark.parametrize(("samples_per_insert", "steps"), [(1.5, 1600), (4.0, 500)])
def test_items_are_used_as_often_as_the_config_says(samples_per_insert: float, steps: int) -> None:
    settings = {**SMALL, "topology.replay.samples_per_insert": samples_per_insert, "steps": steps}
    learner, counts = roles(program("apex-dqn", "CartPole-v1", settings))
    assert counts["samples"] == 8 * learner.updates
    assert counts["samples"] / (counts["inserts"] - 50) == pytest.approx(samples_per_insert, rel=0.01)


@pytest.mark.parametrize("warm_up", [1, 200])
def test_nothing_is_learnt_before_enough_is_there(warm_up: int) -> None:
    made = program("apex-dqn", "CartPole-v1", {**SMALL, "topology.replay.warm_up": warm_up, "steps": 1})
    learner, counts = roles(made)
    assert learner.updates == 1 and warm_up <= counts["inserts"] < warm_up + 50


@pytest.mark.timeout(60)
def test_rows_that_are_no_items_do_not_keep_the_run_from_going_on() -> None:
    """Every episode has one step and a final observation, so that there are twice as many rows as items."""
    settings = {
        **SMALL, "steps": 2000, "topology.replay.capacity": 1500, "topology.replay.samples_per_insert": 0.02,
        "topology.refresh_every": 10_000, "env_options.kwargs": {"delay": 0}, "actors": 1,
    }
    _, counts = roles(program("apex-dqn", RECALL, settings))
    assert counts["inserts"] >= 2000 and 50 <= counts["size"] < 1500


class Lazy(Role):
    """A learner that publishes weights once and learns nothing."""

    def __init__(
        self, name: str, incarnation: int, run: Run, source: Any, weights: WeightsWriter, **rest: Any
    ) -> None:
        super().__init__(name)
        self._source, self._weights = source, weights
        weights.publish(np.zeros(run.weights_size, np.float32), 0)

    def step(self) -> Waitable | None:
        return cast(Waitable, self._source)


def test_a_deadlock_says_what_the_limiter_waits_for() -> None:
    made = program("apex-dqn", "CartPole-v1", {**SMALL, "actors": 1})
    made.roles = [dataclasses.replace(n, build=Lazy) if n.name == "learner" else n for n in made.roles]
    with pytest.raises(DeadlockError) as caught:
        InlineRuntime(made, FakeController()).run()  # type: ignore[arg-type]
    assert "actor-0 waits for replay (the rate limiter blocks inserts" in str(caught.value)
    assert "learner waits for replay (table 'replay': inserts wait for" in str(caught.value)


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("apex-dqn", "CartPole-v1", {"core": "lstm"}, "core='lstm' needs sequences"),
    ("dqn", "CartPole-v1", {"core": "gru"}, "core='gru' needs sequences"),
    ("apex-dqn", "Pendulum-v1", {}, "a Q network needs one discrete choice"),
    ("r2d2", "Pendulum-v1", {}, "a Q network needs one discrete choice"),
]


@pytest.mark.parametrize(("system", "env", "settings", "reason"), REFUSED)
def test_a_pair_that_cannot_work_is_refused_with_one_sentence(
    system: str, env: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError) as caught:
        program(system, env, settings)
    text = str(caught.value)
    assert text.startswith(reason) and "; use " in text and "\n" not in text and not text.endswith(".")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"actors": 0}, "actors=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"topology.replay.warm_up": 0}, "warm_up=0"),
        ({"topology.replay.warm_up": 11, "topology.replay.capacity": 10}, "warm_up=11"),
        ({"topology.replay.samples_per_insert": 0.0}, "samples_per_insert=0.0"),
        ({"topology.replay.priority_exponent": 1.5}, "priority_exponent=1.5"),
        ({"topology.replay.importance_exponent": -0.5}, "importance_exponent=-0.5"),
        ({"topology.refresh_every": 0}, "refresh_every=0"),
        ({"topology.prefetch": 0}, "prefetch=0"),
        ({"topology.replay.tolerance": 0.5}, "tolerance=0.5"),
        ({"algorithm.epsilon.base": 1.5}, "epsilon.base=1.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check("apex-dqn", "CartPole-v1", settings)


@pytest.mark.parametrize(
    ("system", "settings", "reason"),
    [
        ("r2d2", {"algorithm.eta": 3.0}, "eta=3.0"),
        ("r2d2", {"algorithm.period": 80}, "period=80"),
        ("td3", {"algorithm.noise.sigma": -1.0}, "sigma=-1.0"),
        ("td3", {"algorithm.smoothing": -1.0}, "smoothing=-1.0"),
        ("gorila-dqn", {"topology.shards": 0}, "shards=0"),
        ("gorila-dqn", {"topology.replay_memory": "shared"}, "replay_memory='shared' must be one of local, central"),
        ("gorila-dqn", {"device": "cuda"}, "gorila's many learners share no device"),
    ],
)
def test_settings_of_the_others_that_cannot_work_are_refused(
    system: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        check(system, "Pendulum-v1" if system == "td3" else "Acrobot-v1", settings)


def test_one_agent_in_one_thread_has_one_actor() -> None:
    with pytest.raises(UserError, match="actors=2: dqn has one actor; use apex-dqn or apex-ddpg"):
        check("dqn", "CartPole-v1", {"actors": 2})


def test_algorithms_and_topologies_that_do_not_fit_are_told_apart() -> None:
    env = EnvSpec(ArraySpec((4,), "float32"), DiscreteAction(2))
    fresh = VTrace(VTraceConfig(), env, NetworkConfig())
    replayed = find_system("dqn").algorithm.make(find_system("dqn").defaults.algorithm, env, NetworkConfig())
    assert on_policy(fresh) is fresh and off_policy(replayed) is replayed
    with pytest.raises(UserError, match="VTrace learns from fresh unrolls and not from replay; use sync"):
        off_policy(fresh)
    with pytest.raises(UserError, match="DQN learns from replay, which this topology does not have; use apex"):
        on_policy(replayed)
