"""Systems as values: names, pairs, your own; every pair of algorithm and topology works or is refused with a reason."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from pappus import api, listing
from pappus.cli import main
from pappus.config import AlgorithmConfig, NetworkConfig, OptimizerConfig, RunConfig, Settings
from pappus.errors import UserError
from pappus.listing import pair_table
from pappus.settings import ALIASES
from pappus.system import AlgorithmSpec, System
from pappus.systems import ALGORITHMS, SYSTEMS, TOPOLOGIES, find_system
from pappus.topologies.offline import OfflineConfig
from tests.data_tools import record
from tests.warm_processes import run

FRESH = "needs unrolls of the newest weights, and impala's actors lag behind; use {0}@sync, or vtrace or appo"
REPLAY = "learns from replay, and {1} has none; use {0}@apex"
UNROLLS = "learns from fresh unrolls, each used once, and {1} trains on replayed items; use {0}@sync"
EPOCHS = "makes several updates from each batch, and a worker of a3c sends one gradient per unroll"
MADE_FOR = "is made for "
CONTROL = ("ddpg", "td3", "d4pg", "fast-td3", "sac", "crossq", "td3-bc", "rebrac", "iql", "awac", "cql")
"""Algorithms that are tried on continuous actions."""
OFF_POLICY = ("dqn", "r2d2", "ddpg", "td3", "d4pg", "fast-td3", "sac", "crossq")
REFUSED = {
    **{
        (name, other): UNROLLS
        for name in ("vtrace", "appo", "a2c", "ppo", "pqn") for other in ("single", "apex", "gorila", "offline")
    },
    **{(name, other): REPLAY for name in OFF_POLICY for other in ("sync", "impala", "a3c")},
    **{(name, "impala"): FRESH for name in ("a2c", "ppo", "pqn")},
    **{(name, "a3c"): EPOCHS for name in ("ppo", "pqn")},
    **{
        (name, other): MADE_FOR
        for name in ("bc", "cql-dqn", "td3-bc", "rebrac", "iql", "awac", "cql")
        for other in ("sync", "impala", "seed", "a3c", "gorila")
    },
    **{(name, other): MADE_FOR for name in ("bc", "rebrac") for other in ("single", "apex")},
    **{(name, "apex"): MADE_FOR for name in ("td3-bc", "iql", "awac", "cql")},
    **{
        (name, "gorila"): "trains parts of its network less often, and gorila's parameter servers apply each gradient"
        for name in ("td3", "fast-td3", "crossq")
    },
}
SMALL: dict[str, Any] = {
    "runtime": "inline", "steps": 64, "envs_per_actor": 2, "unroll_length": 8, "evaluation.episodes": 1,
    "checkpoint.every_seconds": 1000.0,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small data set of each env."""
    folder = tmp_path_factory.mktemp("data")
    return {env: record(folder / env, env, 30, num_envs=1) for env in ("CartPole-v1", "Pendulum-v1")}


@pytest.mark.parametrize(("algorithm", "topology"), [(one, other) for one in ALGORITHMS for other in TOPOLOGIES])
def test_every_pair_is_built_or_refused_with_its_reason(algorithm: str, topology: str, data: dict[str, Path]) -> None:
    pair = f"{algorithm}@{topology}"
    if (algorithm, topology) in REFUSED:
        with pytest.raises(UserError) as refusal:
            find_system(pair)
        assert str(refusal.value).startswith(f"{pair} cannot work: {algorithm} ")
        assert REFUSED[algorithm, topology].format(algorithm, topology) in str(refusal.value)
        return
    system = find_system(pair)
    env = "Pendulum-v1" if algorithm in CONTROL else "CartPole-v1"
    settings = {"data": str(data[env])} if topology == "offline" else {}
    run = api.describe(api.configure(system, env, settings), env, system)
    assert system.pair == pair and any(role.essential or role.durable for role in system.topology.build(run).roles)


def test_a_pair_with_a_name_is_the_named_system() -> None:
    assert find_system("vtrace@impala") is SYSTEMS["impala"] and find_system("a2c@a3c") is SYSTEMS["a3c"]
    assert find_system("ppo@seed").name == "ppo@seed"
    assert find_system("bc@offline") is SYSTEMS["bc"], "the first of those that share a pair"


def test_filtered_bc_is_bc_on_the_best_tenth_of_the_episodes() -> None:
    plain, filtered = (find_system(name).defaults for name in ("bc", "filtered-bc"))
    assert isinstance(plain.topology, OfflineConfig)
    assert replace(plain, topology=replace(plain.topology, best=0.1), system="filtered-bc") == filtered


def test_the_list_shows_every_system_and_one_of_them_with_its_figure() -> None:
    shown = listing.all_systems()
    assert all(name in shown for name in (*SYSTEMS, *ALGORITHMS, *TOPOLOGIES))
    assert "actor N ──unrolls──┘" in listing.one_system("impala")
    assert "--unroll-length 128" in listing.one_system("ppo@seed")
    first = {system.pair: name for name, system in reversed(SYSTEMS.items())}  # filtered-bc is bc on other episodes
    assert {entry for row in pair_table().values() for entry in row.values()} >= set(first.values())


def test_a_system_that_a_package_registers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "tests.own_system:small_impala", "pappus.systems")
    monkeypatch.setattr("pappus.names.entry_points", lambda group: [entry] if group == "pappus.systems" else [])
    assert find_system("theirs").defaults.system == "theirs"
    assert ["theirs", "vtrace@impala"] in [line.split()[:2] for line in listing.all_systems().splitlines()]
    with pytest.raises(UserError, match="did you mean 'theirs'"):
        find_system("their")


def test_a_registered_system_that_cannot_be_imported_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("broken", "tests.own_system:nothing", "pappus.systems")
    monkeypatch.setattr("pappus.names.entry_points", lambda group: [entry] if group == "pappus.systems" else [])
    assert "has no 'nothing'" in listing.all_systems()


@dataclass(frozen=True)
class Demanding(AlgorithmConfig):
    """A config of which some settings have no default."""

    width: int
    depth: int = 2


def test_a_config_without_all_defaults_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    own = System(AlgorithmSpec("own", ALGORITHMS["a2c"].make, Demanding(3)), TOPOLOGIES["sync"])
    monkeypatch.setattr("pappus.listing.find_system", lambda name: own)
    shown = listing.one_system("own")
    assert "--algorithm.width 3" in shown and "--algorithm.depth" not in shown


def test_a_system_given_as_a_value_is_passed_again_where_no_name_finds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = System(ALGORITHMS["vtrace"], TOPOLOGIES["impala"], "mine", {"unroll_length": 8})
    result = pappus.train(mine, "CartPole-v1", {**SMALL, "run_dir": tmp_path / "run"})
    assert result.policy.act(np.zeros(4, np.float32)) in (0, 1)
    assert result.summary.system == "mine" and "mine · CartPole-v1" in capsys.readouterr().out
    assert pappus.evaluate(result.directory, episodes=1, system=mine).mean > 0
    assert pappus.resume(result.directory, system=mine, steps=128).summary.steps >= 128
    assert main(["eval", str(result.directory)]) == 2
    assert "system 'mine' was given as a Python value" in capsys.readouterr().err


def test_python_settings_are_objects_names_and_dotted_names(tmp_path: Path) -> None:
    config = api.configure(
        "impala", "CartPole-v1",
        {"algorithm.entropy_cost": 0.5, "optimizer": OptimizerConfig(learning_rate=0.25), "network": {"core": "gru"}},
    )
    assert (config.algorithm, config.optimizer.learning_rate, config.network.core) == (
        ALGORITHMS["vtrace"].config.__class__(entropy_cost=0.5, reward_scale=0.05), 0.25, "gru"
    )
    for settings, sentence in (
        ({"steps": "ten"}, "steps='ten' must be a whole number"),
        ({"steps": True}, "steps=True must be a whole number"),
        ({"optimizer": 3}, "optimizer=3 is a group of settings"),
        ({"optimizer.name": "sgd"}, "optimizer.name='sgd' must be one of adam, radam, rmsprop, adagrad"),
        ({"network.hidden_sizes": 64}, "network.hidden_sizes=64 must be a list"),
        ({"algorithm": OptimizerConfig()}, "is a group of settings: give VTraceConfig"),
    ):
        with pytest.raises(UserError, match=sentence):
            api.configure("impala", "CartPole-v1", settings)


def test_a_group_that_is_given_in_several_ways_keeps_all_of_them() -> None:
    def network(settings: dict[str, Any]) -> Any:
        return api.configure("ppo", "CartPole-v1", settings).network

    one, other = {"network": {"core_size": 128}}, {"core": "lstm"}
    assert network({**one, **other}) == network({**other, **one}) != network(one)
    both = network({"network": NetworkConfig(core_size=128), "network.core": "lstm"})
    assert (both.core, both.core_size) == ("lstm", 128)
    with pytest.raises(UserError, match="system='impala' is no setting"):
        api.configure("ppo", "CartPole-v1", {"system": "impala"})


def test_an_editor_completes_every_setting_of_a_run() -> None:
    fields = set(RunConfig.__dataclass_fields__) - {"system", "env"}
    assert set(Settings.__annotations__) == fields | set(ALIASES)


OWN_SYSTEM = """
    from dataclasses import dataclass

    from pappus.algorithms.a2c import A2C, A2CConfig
    from pappus.system import AlgorithmSpec, Preset, System
    from pappus.systems import TOPOLOGIES

    @dataclass(frozen=True)
    class MyConfig(A2CConfig):
        greeting: str = "hello"
        \"\"\"An option of its own.\"\"\"

    class MyA2C(A2C):
        pass

    mine = AlgorithmSpec("mine", MyA2C, MyConfig())
    my_system = System(
        mine, TOPOLOGIES["sync"], settings={"envs_per_actor": 2, "unroll_length": 8},
        presets=(Preset(("mine@*",), "CartPole-*", {"algorithm.reward_scale": 0.5}),),
    )
"""


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A folder outside the repository, with a system of its own."""
    (tmp_path / "my_module.py").write_text(textwrap.dedent(OWN_SYSTEM))
    return tmp_path


def test_an_own_system_is_trained_evaluated_resumed_and_seeded_from_its_folder(own_folder: Path) -> None:
    line = "train my_module:my_system --env CartPole-v1 --steps 64 --evaluation.episodes 1"
    done = run(own_folder, f"{line} --algorithm.greeting hi --run-dir run")
    assert done.returncode == 0, done.stderr
    config = (own_folder / "run" / "config.yaml").read_text()
    assert "system: my_module:my_system" in config and "greeting: hi" in config and "reward_scale: 0.5" in config
    assert "mean return" in run(own_folder, "eval run --episodes 1").stdout
    assert run(own_folder, "train --resume run --steps 128").returncode == 0
    assert run(own_folder, f"{line} --seeds 1..2 --run-dir seeds").returncode == 0
    assert {path.name for path in (own_folder / "seeds").iterdir()} >= {"seed-1", "seed-2"}
    elsewhere = own_folder / "elsewhere"
    elsewhere.mkdir()
    strange = run(elsewhere, "eval ../run")
    assert strange.returncode == 2 and "asks for system='my_module:my_system', which runs code" in strange.stderr
    lost = run(elsewhere, "eval ../run --trust")
    assert lost.returncode == 2 and "there is no module 'my_module' here; run this in the folder" in lost.stderr


def test_an_own_algorithm_is_put_on_any_topology_that_carries_it(own_folder: Path) -> None:
    done = run(own_folder, "train my_module:mine@a3c --env CartPole-v1 --steps 64 --evaluation.episodes 1")
    assert done.returncode == 0, done.stderr
    refused = run(own_folder, "train my_module:mine@impala --env CartPole-v1")
    assert refused.returncode == 2 and "mine@impala cannot work" in refused.stderr
