"""Runs that learn from data."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus
from pappus.api import configure, describe
from pappus.beginnings import with_data
from pappus.cli import main
from pappus.data.dataset import open_dataset
from pappus.errors import UserError
from pappus.systems import find_system
from pappus.telemetry.checkpoint import CheckpointStore, load_state
from pappus.telemetry.run_folders import find_checkpoint
from pappus.telemetry.weights import stored_weights
from pappus.topologies.data_tables import data_table, memory_limit
from tests.data_tools import record

SMALL: dict[str, Any] = {
    "batch_size": 16, "network.hidden_sizes": (8,), "evaluation.episodes": 1, "evaluation.at_steps": (30,),
    "runtime": "inline",
}
PRIORITIZED = {"topology.replay.sampler": "prioritized"}
SHORT = {"algorithm.burn_in": 2, "algorithm.length": 6, "algorithm.period": 3, "network.core_size": 8}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return {
        env: record(folder / env, env, steps, num_envs=4)
        for env, steps in (("CartPole-v1", 300), ("Pendulum-v1", 1))
    }


def weights_of(run: Path) -> bytes:
    checkpoint = CheckpointStore(run / "checkpoints").latest()
    assert checkpoint is not None
    return (checkpoint / "learner.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("system", "env", "settings"),
    [
        ("dqn@offline", "CartPole-v1", PRIORITIZED), ("td3@offline", "Pendulum-v1", {}),
        ("r2d2@offline", "CartPole-v1", {**SHORT, **PRIORITIZED}),
        ("dqn@offline", "CartPole-v1", {"topology.readers": 3, "topology.best": 0.5}),
        ("td3-bc", "Pendulum-v1", {"network.hidden_sizes": (8, 8)}),  # with moments of observations
        ("rebrac", "Pendulum-v1", {"network.hidden_sizes": (8, 8)}),  # with next actions
        ("bc", "CartPole-v1", {}), ("cql-dqn", "CartPole-v1", {}), ("iql", "CartPole-v1", {}),
        ("awac", "Pendulum-v1", {"network.hidden_sizes": (8, 8)}),  # draws actions for its loss
        ("cql", "Pendulum-v1", {"network.hidden_sizes": (8, 8)}),
        ("sac@offline", "Pendulum-v1", {}), ("d4pg@offline", "Pendulum-v1", PRIORITIZED),
        ("fast-td3@offline", "Pendulum-v1", {}),  # with moments, and a policy that rests
        ("crossq@offline", "Pendulum-v1", {"algorithm.critic_sizes": (8,)}),  # with moments of layers
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    sets: dict[str, Path], tmp_path: Path, system: str, env: str, settings: dict[str, Any]
) -> None:
    given = {**SMALL, **settings, "data": sets[env], "optimizer.anneal": False}
    pappus.train(system, steps=60, run_dir=tmp_path / "whole", **given)
    pappus.train(system, steps=25, run_dir=tmp_path / "parts", **given)
    result = pappus.resume(tmp_path / "parts", steps=60)
    assert (result.summary.steps, result.summary.updates) == (60, 60)
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")
    assert "read again" not in (tmp_path / "parts" / "log.txt").read_text()


def resumed_line(run: Path) -> str:
    return next(line for line in (run / "log.txt").read_text().splitlines() if "resumed: " in line)


def keep_episodes(data: Path, chosen: list[int]) -> None:
    """Leave only these episodes in a data set, in this order."""
    import h5py

    file, metadata = data / "data" / "main_data.hdf5", data / "data" / "metadata.json"
    with h5py.File(file, "r") as old, h5py.File(data / "new", "w") as new:
        for number, of in enumerate(chosen):
            old.copy(f"episode_{of}", new, f"episode_{number}")
        steps = sum(len(episode["rewards"]) for episode in new.values())
    (data / "new").rename(file)
    content = {**json.loads(metadata.read_text()), "total_episodes": len(chosen), "total_steps": steps}
    metadata.write_text(json.dumps(content))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "more": (lambda data: record(data, "CartPole-v1", 100, seed=7), r"data changed: (.*) before, (?!\1).* now"),
    "fewer": (lambda data: keep_episodes(data, [2, 0, 1]), r"data changed: .* before, 3 episodes, \d+ steps, .* now"),
    "another order": (
        lambda data: keep_episodes(data, [1, 0, *range(2, open_dataset(data).num_episodes)]),
        "data changed: other episodes, .* again",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("system", ["bc", "dqn@single"])
def test_a_run_whose_data_changed_goes_on_with_what_is_there_and_says_so(
    sets: dict[str, Path], tmp_path: Path, system: str, change: str
) -> None:
    data, (changes, sentence) = shutil.copytree(sets["CartPole-v1"], tmp_path / "data"), CHANGES[change]
    given = {**SMALL, **({"envs_per_actor": 2, "topology.replay.warm_up": 20} if system == "dqn@single" else {})}
    pappus.train(system, data=data, steps=60, run_dir=tmp_path / "run", **given)
    changes(data)
    result = pappus.resume(tmp_path / "run", steps=90)
    assert result.summary.exit_reason == "steps done" and result.summary.steps == 90
    assert re.search(sentence, resumed_line(tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert system != "bc" or lines[-1]["replay/size"] == open_dataset(data).num_steps


def test_streamed_data_that_changed_is_told_of(sets: dict[str, Path], tmp_path: Path) -> None:
    data = shutil.copytree(sets["CartPole-v1"], tmp_path / "data")
    pappus.train("bc", data=data, steps=30, run_dir=tmp_path / "run", **{**SMALL, "topology.memory": "20KiB"})
    record(data, "CartPole-v1", 100, seed=7)
    pappus.resume(tmp_path / "run", steps=40)
    assert "replay: data changed: " in (tmp_path / "run" / "log.txt").read_text()


def test_a_run_may_record_into_the_data_that_it_learns_from(sets: dict[str, Path], tmp_path: Path) -> None:
    data = shutil.copytree(sets["CartPole-v1"], tmp_path / "data")
    given = {**SMALL, "envs_per_actor": 2, "topology.replay.warm_up": 20}
    before = open_dataset(data).num_steps
    given |= {"data": data, "record": data, "data_share": 0.3}
    pappus.train("dqn", "CartPole-v1", steps=60, run_dir=tmp_path / "run", **given)
    assert open_dataset(data).num_steps > before
    assert pappus.resume(tmp_path / "run", steps=120).summary.exit_reason == "steps done"
    assert "data changed: " in resumed_line(tmp_path / "run")


def test_a_run_begins_with_the_weights_of_another_and_says_so(sets: dict[str, Path], tmp_path: Path) -> None:
    given = {**SMALL, "data": sets["CartPole-v1"]}
    pappus.train("dqn@offline", steps=20, run_dir=tmp_path / "one", **given)
    still = {"optimizer.learning_rate": 1e-30, "evaluation.at_steps": ()}
    small = {**SMALL, **still, "envs_per_actor": 2, "topology.replay.warm_up": 20}
    begun = pappus.train("dqn", "CartPole-v1", steps=40, run_dir=tmp_path / "two", init_from=tmp_path / "one", **small)
    one, two = (stored_weights(find_checkpoint(tmp_path / name, "latest")) for name in ("one", "two"))
    assert (one == two).all()
    target = load_state(find_checkpoint(tmp_path / "two", "latest"), "learner")["target"]
    assert (target.numpy() == one).all()
    assert "starts from the weights of" in (tmp_path / "two" / "log.txt").read_text()
    assert begun.summary.to_dict()["init_from"] == str(tmp_path / "one")
    with pytest.raises(UserError, match=r"holds \d+ weights, but the network of 'dqn' has \d+; give a run of"):
        other = {**small, "network.hidden_sizes": (9,), "init_from": tmp_path / "one"}
        pappus.train("dqn", "CartPole-v1", steps=40, run_dir=tmp_path / "three", **other)
    assert not (tmp_path / "three").exists()


def test_weights_of_another_network_are_refused_also_where_there_are_as_many(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "clone"
    pappus.train("bc", steps=5, run_dir=run, **SMALL, data=sets["CartPole-v1"])
    with pytest.raises(UserError, match=r"weights of another network: '\S+' has \d+ there and \d+ in that of 'dqn'"):
        pappus.train("dqn", "CartPole-v1", steps=40, run_dir=tmp_path / "two", init_from=run, **SMALL)
    assert not (tmp_path / "two").exists()


REPLAYED = {"dqn": "CartPole-v1", **dict.fromkeys(("ddpg", "td3", "d4pg", "fast-td3", "sac", "crossq"), "Pendulum-v1")}


@pytest.mark.parametrize("topology", ["single", "apex", "seed"])
@pytest.mark.parametrize("algorithm", REPLAYED)
def test_a_share_of_every_batch_comes_from_data(
    sets: dict[str, Path], tmp_path: Path, algorithm: str, topology: str
) -> None:
    small = {**SMALL, "envs_per_actor": 2, "actors": 1, "topology.replay.warm_up": 20}
    if algorithm == "crossq":
        small["algorithm.critic_sizes"] = (8,)
    env = REPLAYED[algorithm]
    result = pappus.train(
        f"{algorithm}@{topology}", data=sets[env], data_share=0.25, steps=100, run_dir=tmp_path / "run", **small
    )
    assert result.summary.updates > 0 and result.summary.env == env
    assert "reader-0: read" in (tmp_path / "run" / "log.txt").read_text()


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    r"--data is missing: 'dqn@offline' learns from a data set": ("dqn@offline", {"env": "CartPole-v1"}),
    r"'impala' learns from what its actors see; use a system @offline": ("impala", {"data": ""}),
    r"'gorila-dqn' learns from what its actors see": ("gorila-dqn", {"data": ""}),
    r"data_share=1.5 must lie between 0 and 1": ("dqn", {"data": "", "data_share": 1.5}),
    r"data_share=0.01 of batch_size=16 takes no item from one table": ("dqn", {"data": "", "data_share": 0.01}),
    r"data_share=0.3 has no effect in 'dqn@offline': all its": ("dqn@offline", {"data": "", "data_share": 0.3}),
    r"data_share=0.3 has no effect in 'dqn': there is no --data": ("dqn", {"env": "CartPole-v1", "data_share": 0.3}),
    r"data_share=0.5 has no effect in 'bc': all its": ("bc", {"data": "", "data_share": 0.5}),
    r"data_share=0.5 has no effect in 'dqn': there is no --data": ("dqn", {"env": "CartPole-v1", "data_share": 0.5}),
    r"record='x': 'dqn@offline' plays no episodes to record": ("dqn@offline", {"data": "", "record": "x"}),
    r"actors=2, envs=0: 'dqn@offline' learns from data and steps no envs": ("dqn@offline", {"data": "", "actors": 2}),
    r"topology.memory='much' is no amount of memory": ("dqn@offline", {"data": "", "topology.memory": "much"}),
    r"topology.memory='1.2.3GiB' is no amount": ("dqn@offline", {"data": "", "topology.memory": "1.2.3GiB"}),
    r"4,096 bytes hold no batch of 16 items .* give at least \d+KiB": ("dqn@offline", {
        "data": "", "topology.memory": "4KiB",
    }),
    r"target_return=9.0: without an env nothing is evaluated": ("dqn@offline", {
        "data": "", "env": "none", "target_return": 9.0,
    }),
    r"'dqn' plays an env beside the data, and there is none; give --env ID": ("dqn", {"data": "", "env": "none"}),
    r"topology.best=2.0 must be a share of all episodes, above 0": ("dqn@offline", {"data": "", "topology.best": 2}),
    r"its observation is float32 \[4\], the env's float32 \[6\]": ("dqn@offline", {"data": "", "env": "Acrobot-v1"}),
    r"'nowhere' holds no latest checkpoint, as it is no folder": ("dqn@offline", {"data": "", "init_from": "nowhere"}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    sets: dict[str, Path], tmp_path: Path, sentence: str
) -> None:
    system, given = REFUSED[sentence]
    if "data" in given:
        given = {**given, "data": sets["CartPole-v1"]}
    with pytest.raises(UserError, match=sentence):
        pappus.train(system, given.get("env", ""), {**SMALL, **given, "run_dir": tmp_path / "run"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["option", "file"])
@pytest.mark.parametrize(("system", "why"), [("dqn", "there is no --data"), ("bc", "all its batches come from data")])
def test_a_share_of_data_that_means_nothing_is_refused_on_the_command_line_and_in_a_file(
    sets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str, why: str, given: str
) -> None:
    (tmp_path / "share.yaml").write_text("data_share: 0.5\n")
    asked = ["--data-share", "0.5"] if given == "option" else ["--config", str(tmp_path / "share.yaml")]
    data = ["--data", str(sets["CartPole-v1"])] if system == "bc" else ["--env", "CartPole-v1"]
    assert main(["train", system, *data, *asked, "--run-dir", str(tmp_path / "run")]) == 2
    assert f"data_share=0.5 has no effect in '{system}': {why}; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_share_of_data_that_is_the_usual_one_is_taken_and_may_be_left_out(sets: dict[str, Path]) -> None:
    given = [configure("dqn", "", {"data": sets["CartPole-v1"], **share}) for share in ({}, {"data_share": 0.5})]
    assert [config.batch_from_data for config in given] == [config.batch_size // 2 for config in given]


def test_a_run_of_an_older_version_that_names_a_share_without_data_goes_on(tmp_path: Path) -> None:
    run, small = tmp_path / "run", {**SMALL, "envs_per_actor": 2, "topology.replay.warm_up": 20}
    pappus.train("dqn", "CartPole-v1", steps=40, run_dir=run, **small)
    written = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(written.replace("data_share: null", "data_share: 0.5"))
    assert "data_share: 0.5" in (run / "config.yaml").read_text()
    assert pappus.resume(run, steps=60).summary.exit_reason == "steps done"
    with pytest.raises(UserError, match=r"data_share=0.5 has no effect in 'dqn'"):
        pappus.resume(run, steps=80, data_share=0.5)


@pytest.mark.parametrize("system", ["dqn@offline", "r2d2@offline"])
def test_data_that_does_not_fit_is_streamed(sets: dict[str, Path], tmp_path: Path, system: str) -> None:
    given = {**SMALL, **(SHORT if system == "r2d2@offline" else {}), "data": sets["CartPole-v1"]}
    given |= {"topology.replay.capacity": 60, "topology.replay.samples_per_insert": 2.0, "topology.readers": 2}
    result = pappus.train(system, steps=60, run_dir=tmp_path / "run", **given)
    assert result.summary.steps == 60
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["replay/size"] <= 60 < lines[-1]["replay/inserts"]
    assert pappus.resume(tmp_path / "run", steps=70).summary.steps == 70
    assert "resumed: data is read again, and batches are drawn" in (tmp_path / "run" / "log.txt").read_text()


def test_the_memory_that_a_table_may_take_decides_about_its_size(sets: dict[str, Path]) -> None:
    def table_of(**settings: Any) -> Any:
        given = {**SMALL, "data": sets["CartPole-v1"], **settings}
        run = describe(*with_data(configure("dqn@offline", "", given), ""))
        replay: Any = run.config.topology
        return data_table(run, replay.replay, replay.memory, 1.0, 1, 2, 16)

    whole, part = table_of(), table_of(**{"topology.memory": "20KiB"})
    steps = open_dataset(sets["CartPole-v1"]).num_steps
    assert whole.items == whole.spec.table.max_size == whole.spec.table.rate_limiter.min_size == steps
    assert part.items == 0 and 20 <= part.spec.table.max_size < 200
    assert memory_limit("1.5GiB") == 3 << 29 and memory_limit("20KB") == 20_000


def test_the_memory_that_a_refusal_asks_for_is_enough(sets: dict[str, Path], tmp_path: Path) -> None:
    def train(memory: str) -> None:
        given = {**SMALL, "data": sets["CartPole-v1"], "topology.memory": memory, "topology.readers": 2}
        pappus.train("dqn@offline", steps=5, run_dir=tmp_path / "run", **given)

    with pytest.raises(UserError, match="hold no batch") as refused:
        train("1KiB")
    found = re.search(r"at least (\d+KiB)", str(refused.value))
    assert found is not None
    train(found[1])


@pytest.mark.parametrize("memory", ["", "40KiB"])
@pytest.mark.parametrize("counted", [5, 5_000])
def test_metadata_that_count_other_steps_than_the_episodes_have_are_refused(
    sets: dict[str, Path], tmp_path: Path, counted: int, memory: str
) -> None:
    copy = shutil.copytree(sets["CartPole-v1"], tmp_path / "copy")
    metadata = copy / "data" / "metadata.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "total_steps": counted}))
    with pytest.raises(UserError, match=f"steps, but its metadata counts {counted:,}; correct total_steps"):
        given = {**SMALL, "data": copy, "topology.memory": memory}
        pappus.train("dqn@offline", steps=5, run_dir=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
    assert main(["data", "info", str(copy)]) == 1


def test_on_policy_algorithms_are_refused() -> None:
    with pytest.raises(UserError, match="ppo learns from fresh unrolls, each used once, and offline trains"):
        find_system("ppo@offline")


def test_without_an_env_nothing_is_evaluated_and_the_policy_acts(sets: dict[str, Path], tmp_path: Path) -> None:
    result = pappus.train(
        "dqn@offline", "none", data=sets["CartPole-v1"], steps=10, run_dir=tmp_path / "run", **SMALL
    )
    assert result.summary.eval_return is None and result.summary.env.startswith("data:")
    assert result.policy.act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(UserError, match="exists only as data"):
        pappus.evaluate(tmp_path / "run", 1)


def test_evaluations_come_ten_times_a_run_and_a_target_ends_it(sets: dict[str, Path], tmp_path: Path) -> None:
    given = {**SMALL, "data": sets["CartPole-v1"], "evaluation.at_steps": (), "target_return": 1.0}
    result = pappus.train("dqn@offline", steps=5_000, run_dir=tmp_path / "run", **given)
    assert result.summary.exit_reason == "target reached"
    assert result.summary.solved_at_step is not None and 500 <= result.summary.solved_at_step < 1_000
