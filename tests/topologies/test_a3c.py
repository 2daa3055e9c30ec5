from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pappus
from pappus.api import configure, describe, execute
from pappus.errors import UserError
from pappus.runtimes.inline import InlineRuntime
from pappus.systems import find_system
from pappus.telemetry.checkpoint import CheckpointStore, load_state
from pappus.telemetry.weights import stored_weights
from pappus.topologies.a3c import A3CConfig, a3c
from pappus.topologies.program import Program
from tests.config_tools import check
from tests.contracts.runtime_contract import FakeController

WORKERS = [0, 1, 2]
SMALL: dict[str, Any] = {
    "runtime": "inline", "actors": len(WORKERS), "envs_per_actor": 2, "unroll_length": 5, "network.hidden_sizes": [8],
    "evaluation.episodes": 1,
}
LOCK_FREE: dict[str, Any] = {**SMALL, "topology.updates": "lock-free"}
SERIALISED: dict[str, Any] = {**SMALL, "topology.updates": "serialised", "topology.shards": 2}
BOTH = pytest.mark.parametrize("settings", [LOCK_FREE, SERIALISED], ids=["lock-free", "serialised"])


class UntilLearnt(FakeController):
    """Ends the run with the role that counts."""

    def role_finished(self, role: str) -> None:
        self.is_over = True


def program(settings: dict[str, Any]) -> Program:
    return find_system("a3c").topology.build(describe(configure("a3c", "CartPole-v1", settings), "CartPole-v1"))


def learnt(settings: dict[str, Any]) -> InlineRuntime:
    """An inline run that has come to its end."""
    runtime = InlineRuntime(program(settings), UntilLearnt())  # type: ignore[arg-type]
    runtime.run()
    return runtime


def weights_of(runtime: InlineRuntime) -> torch.Tensor:
    counting = [role.save() for role in runtime.roles.values() if role.progress() is not None or "server" in role.name]
    return torch.cat([state["weights"] for state in counting])


def test_lock_free_workers_share_one_shared_parameters_which_a_durable_master_looks_after() -> None:
    made = program(LOCK_FREE)
    assert [node.name for node in made.roles] == ["worker-0", "worker-1", "worker-2", "master", "evaluator"]
    assert [node.name for node in made.roles if node.durable] == ["master"]
    ends = {spec.name: set(map(str, spec.ends())) for spec in made.roles}
    for i in WORKERS:
        assert ends[f"worker-{i}"] == {"shared parameters.port()", f"steps.counter({i})", f"updates.counter({i})"}
    assert ends["master"] == {
        "shared parameters.port()", "weights.writer()", "steps.reader()", "updates.reader()"
    }
    assert ends["evaluator"] == {"weights.reader()"}


def test_serialised_workers_send_gradients_to_durable_shards() -> None:
    made = program(SERIALISED)
    servers = ["parameter-server-0", "parameter-server-1"]
    assert [node.name for node in made.roles] == ["worker-0", "worker-1", "worker-2", *servers, "evaluator"]
    assert [node.name for node in made.roles if node.durable] == servers
    ends = {spec.name: set(map(str, spec.ends())) for spec in made.roles}
    for i in WORKERS:
        assert ends[f"worker-{i}"] == {
            f"gradients-0.sink({i})", f"gradients-1.sink({i})", "weights-0.reader()",
            "weights-1.reader()", f"steps.counter({i})",
        }


@BOTH
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_runs_with_one_seed_are_one_run_and_with_another_seed_another(settings: dict[str, Any], core: str) -> None:
    settings = {**settings, "network.core": core, "network.core_size": 8, "steps": 400}
    one, same, other = (weights_of(learnt({**settings, "seed": seed})).tolist() for seed in (1, 1, 2))
    assert one == same and one != other


def test_with_one_worker_both_ways_are_the_same_updates() -> None:
    """Nobody comes between: what is left is one optimizer, wherever it is."""
    one = {"actors": 1, "steps": 400, "topology.shards": 1, "optimizer.anneal": False}
    torch.testing.assert_close(weights_of(learnt({**LOCK_FREE, **one})), weights_of(learnt({**SERIALISED, **one})))


@BOTH
def test_every_gradient_is_an_update_and_its_staleness_is_known(settings: dict[str, Any], tmp_path: Path) -> None:
    result = pappus.train("a3c", "CartPole-v1", run_dir=tmp_path / "run", **{**settings, "steps": 600})
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    kind = "worker" if settings is LOCK_FREE else "parameter-server"
    assert f'"{kind}/staleness"' in metrics and f'"{kind}/staleness_max": 2.0' in metrics, "three workers take turns"
    assert 600 <= result.summary.steps < 600 + 3 * 10 and result.summary.updates >= 600 // 10


def test_stale_gradients_are_dropped_if_asked_for() -> None:
    strict = learnt({**SERIALISED, "topology.max_staleness": 0, "steps": 600})
    counts = [strict.roles[f"parameter-server-{i}"].save()["updates"] for i in (0, 1)]
    assert max(counts) < 600 // 10, "of three that were computed at once, one is fresh"


@BOTH
def test_a_resumed_run_goes_on_with_weights_statistics_and_counts(settings: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = pappus.train("a3c", "CartPole-v1", run_dir=run, steps=300, **settings).summary
    store = CheckpointStore(run / "checkpoints")
    before = store.latest()
    assert before is not None
    second = pappus.resume(run, steps=600).summary
    assert second.steps >= 600 and second.updates > first.updates
    latest = store.latest()
    assert latest is not None and stored_weights(latest).shape == stored_weights(before).shape
    name = "master" if settings is LOCK_FREE else "parameter-server-0"
    states = [load_state(path, name) for path in (before, latest)]
    assert states[0]["updates"] == first.updates and states[1]["updates"] == second.updates
    assert pappus.evaluate(run, episodes=1).mean > 0


@pytest.mark.parametrize(
    ("begun", "changed", "sentence"),
    [
        (LOCK_FREE, SERIALISED, "of master, but this config has parameter-server-0, .* --topology.updates lock-free"),
        (SERIALISED, {**LOCK_FREE, "topology.shards": 1}, "with --topology.updates serialised --topology.shards 2"),
        (SERIALISED, {"topology.shards": 1}, "parameter-server-1, but this config has parameter-server-0; resume"),
        (SERIALISED, {"topology.shards": 3}, "resume with --topology.shards 2"),
    ],
)
def test_weights_are_resumed_only_by_the_roles_that_saved_them(
    tmp_path: Path, begun: dict[str, Any], changed: dict[str, Any], sentence: str
) -> None:
    pappus.train("a3c", "CartPole-v1", run_dir=tmp_path / "run", **{**begun, "steps": 100})
    before = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(UserError, match=sentence):
        pappus.resume(tmp_path / "run", **{**changed, "steps": 200})
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    assert pappus.resume(tmp_path / "run", steps=200).summary.steps >= 200


def test_weights_of_a_system_without_a_master_are_refused(tmp_path: Path) -> None:
    small = {"runtime": "inline", "envs_per_actor": 2, "network.hidden_sizes": [8], "evaluation.episodes": 1}
    pappus.train("a2c", "CartPole-v1", run_dir=tmp_path / "run", steps=100, **small)
    config = configure("a3c", "CartPole-v1", {**LOCK_FREE, "steps": 200})
    with pytest.raises(UserError, match="of learner, but this config has master; resume with the topology settings"):
        execute(config, "CartPole-v1", tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"actors": 0}, "actors=0 must be at least 1"),
        ({"batch_size": 8}, "batch_size=8: a worker of a3c learns from one unroll of all its envs; set envs_per_actor"),
        ({"device": "cuda"}, "a3c's many workers share no device; use cpu, or impala"),
        ({"topology.updates": "serialised", "topology.shards": 0}, "topology.shards=0 must be at least 1"),
        ({"topology.updates": "serialised", "topology.max_staleness": -1}, "max_staleness=-1"),
        ({"topology.shards": 2}, "shards=2, .* lock-free updates do not have; use --topology.updates serialised"),
        ({"topology.max_staleness": 5}, "max_staleness=5 .*use --topology.updates serialised"),
        ({"optimizer.decay": 1.0}, r"optimizer.decay=1.0 and momentum=0.9 must be below 1 for adam"),
        ({"topology.updates": "locked"}, "topology.updates='locked' must be one of auto, lock-free, serialised"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check("a3c", "CartPole-v1", settings)


def test_a_worker_makes_one_gradient_of_an_unroll() -> None:
    with pytest.raises(UserError, match=r"algorithm\.epochs=2: workers of a3c send one gradient per unroll; use 1"):
        check("vtrace@a3c", "CartPole-v1", {"algorithm.epochs": 2})


def test_a_network_with_running_statistics_is_refused() -> None:
    run = describe(configure("a3c", "CartPole-v1", SMALL), "CartPole-v1")
    build = run.algorithm.build_network

    def with_statistics() -> nn.Module:
        network = build()
        network.add_module("norm", nn.BatchNorm1d(4))
        return network

    run.algorithm.build_network = with_statistics  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"gradients do not train \(norm\.running_mean.*a3c's workers.*or use impala"):
        a3c(run)


def test_an_algorithm_that_learns_from_replay_is_refused() -> None:
    run = describe(configure("dqn", "CartPole-v1", {}), "CartPole-v1")
    with pytest.raises(UserError, match="DQN learns from replay, which this topology does not have"):
        a3c(replace(run, config=replace(run.config, topology=A3CConfig())))
