"""A stranger's run directory, data set or population runs no code, and nothing beside it is imported by accident."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import pappus
from pappus.api import configure
from pappus.cli import main
from pappus.data.specs import env_of_data
from pappus.errors import UserError
from pappus.population import saved_population
from pappus.systems import saved_config
from pappus.trust import Asked, remember

ROOT = Path(__file__).parents[1]
TINY = [
    "--runtime", "inline", "--steps", "40", "--envs-per-actor", "2", "--unroll-length", "8", "--evaluation.episodes",
    "1",
]
OWN_ENV = """\
import gymnasium as gym

def make(length=5):
    return gym.make("CartPole-v1", max_episode_steps=length)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a working directory and a memory of its own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    sys.modules.pop("their_code", None)


@pytest.fixture
def harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that a stranger's module writes when it is imported."""
    path = tmp_path / "harm"
    (tmp_path / "work" / "their_code.py").write_text(f"open({str(path)!r}, 'w')\n{OWN_ENV}")
    return path


def run_directory(tmp_path: Path, content: dict[str, Any]) -> Path:
    directory = tmp_path / "theirs"
    directory.mkdir(exist_ok=True)
    (directory / "config.yaml").write_text(yaml.safe_dump({"system": "apex-dqn", "env": "CartPole-v1", **content}))
    return directory


STRANGE = [
    ({"env": "their_code:make"}, "env='their_code:make'"),
    ({"system": "their_code:system"}, "system='their_code:system'"),
    ({"system": "their_code:algorithm@sync"}, "system='their_code:algorithm'"),
    ({"system": "ppo@python:topology"}, "system='python:topology'"),
    ({"env_options": {"backend": "their_code:make"}}, "env_options.backend='their_code:make'"),
    ({"env-options.backend": "their_code:make"}, "env_options.backend='their_code:make'"),
    ({"network": {"factory": "their_code:make"}}, "network.factory='their_code:make'"),
    ({"network.factory": "data:make"}, "network.factory='data:make'"),
    ({"topology": {"replay": {"sampler": "their_code:make"}}}, "topology.replay.sampler='their_code:make'"),
    ({"topology.replay.remover": "their_code:make"}, "topology.replay.remover='their_code:make'"),
    ({"env": "pappus.cli:main", "env_options": {"kwargs": {"words": ["systems"]}}}, "env='pappus.cli:main'"),
    ({"env_options": {"kwargs": {"inner": [{"id": "their_code:make"}]}}}, "env_options.kwargs="),
]


@pytest.mark.parametrize(("content", "named"), STRANGE, ids=[named for _, named in STRANGE])
@pytest.mark.parametrize("command", ["eval", "train --resume", "data record --out out --policy"])
def test_code_that_a_run_directory_names_is_not_imported(
    content: dict[str, Any], named: str, command: str, harm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run_directory(tmp_path, content)
    (directory / "checkpoints" / "step-1").mkdir(parents=True)
    assert main([*command.split(), str(directory)]) == 2
    error = capsys.readouterr().err.strip()
    assert named in error and "add --trust (Python: trust=True)" in error and "\n" not in error
    assert not harm.exists() and "their_code" not in sys.modules


def test_the_config_of_a_run_is_no_more_trusted_when_it_is_given_as_a_file(
    harm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_directory(tmp_path, {"system": "a2c", "network": {"factory": "their_code:network"}}) / "config.yaml"
    words = ["train", "a2c", "--config", str(file), *TINY]
    for line in (words, [*words, "--seeds", "1,2"]):
        assert main(line) == 2
        assert "asks for network.factory='their_code:network'" in capsys.readouterr().err and not harm.exists()
    assert main([*words, "--trust"]) == 2
    assert "their_code" in sys.modules and "asks for" not in capsys.readouterr().err
    own = file.rename(tmp_path / "mine.yaml")
    assert configure("a2c", "CartPole-v1", file=own).network.factory == "their_code:network"


def test_an_actor_asks_for_trust_in_the_backend_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    from pappus.remote import env_options

    file = str(run_directory(tmp_path, {"env_options": {"backend": "their_code:make"}}) / "config.yaml")
    with pytest.raises(UserError, match=r"env_options\.backend='their_code:make', which runs code"):
        env_options(file)
    assert env_options(file, trust=True).backend == "their_code:make"


def test_python_asks_for_trust_as_commands_do(harm: Path, tmp_path: Path) -> None:
    directory = run_directory(tmp_path, {"env": "their_code:make"})
    for read in (pappus.load_policy, pappus.evaluate, pappus.resume):
        with pytest.raises(UserError, match="env='their_code:make', which runs code"):
            read(directory)
    assert not harm.exists()
    assert saved_config(directory, trust=True)[1].env == "their_code:make"
    saved_config(directory, without=("env", "env_options.kwargs"))  # an env that is given again is not looked for


@pytest.mark.parametrize(("name", "value"), [
    ("cluster.address", "10.0.0.1:6379"), ("topology.wire.listen", "0.0.0.0:5000"), ("record", "/home/data"),
])
def test_a_run_that_goes_on_reaches_beyond_its_directory_only_if_trusted(
    name: str, value: str, tmp_path: Path
) -> None:
    directory = run_directory(tmp_path, {"system": "seed-vtrace", name: value})
    saved_config(directory)  # who only plays does without
    with pytest.raises(UserError, match=f"asks for {name}='{value}'"):
        saved_config(directory, without=())


@pytest.mark.parametrize("content", [
    {}, {"system": "impala"}, {"system": "ppo@seed"}, {"env": "ALE/Pong-v5"}, {"env_options": {"backend": "envpool"}},
    {"env_options": {"kwargs": {"render_mode": "rgb_array"}}}, {"env": "spec:/tmp/spec.yaml"},
])
def test_what_is_installed_is_free(content: dict[str, Any], tmp_path: Path) -> None:
    saved_config(run_directory(tmp_path, content), without=())
    assert not (tmp_path / "state").exists()


def test_what_this_user_asked_for_in_this_folder_is_free_there(
    harm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "a2c", "--env", "their_code:make", "--env-options.kwargs", "length", "7", *TINY]
    assert main([*words, "--run-dir", "run"]) == 0
    assert main(["eval", "run", "--episodes", "1"]) == 0
    moved = Path("run").rename("moved")
    assert main(["eval", str(moved), "--episodes", "1"]) == 0
    assert main(["train", "--resume", str(moved), "--steps", "60"]) == 0
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["env_options"]["kwargs"] = {"length": 8}
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    capsys.readouterr()
    assert main(["eval", str(moved), "--episodes", "1"]) == 2
    assert "env_options.kwargs={'length': 8}" in capsys.readouterr().err
    assert main(["eval", str(moved), "--episodes", "1", "--trust"]) == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["eval", "work/moved", "--episodes", "1"]) == 2
    assert "env='their_code:make'" in capsys.readouterr().err


def test_another_user_is_not_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked("env", "mine:make")
    assert not asked.known
    remember([asked])
    assert asked.known
    monkeypatch.setattr(os, "getuid", lambda: os.stat(asked.path).st_uid + 1)
    assert not asked.known


def test_a_memory_that_cannot_be_written_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember([Asked("env", "mine:make")])
    assert not Asked("env", "mine:make").known


def test_trust_without_a_run_directory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "impala", "--env", "CartPole-v1", "--trust"]) == 2
    assert "--trust is for what a run directory names" in capsys.readouterr().err


def population(tmp_path: Path, **changes: Any) -> Path:
    member = {"name": "seed-1", "setting": "", "words": ["their_code:system", "--env", "CartPole-v1"], **changes}
    (tmp_path / "population.json").write_text(json.dumps({"jobs": 1, "members": [member]}))
    return tmp_path


def test_a_strangers_population_gives_no_commands(tmp_path: Path, harm: Path) -> None:
    with pytest.raises(UserError, match=r"asks for its runs=.*which runs commands"):
        saved_population(population(tmp_path))
    assert saved_population(population(tmp_path), trust=True).members[0].words[0] == "their_code:system"


@pytest.mark.parametrize("name", ["..", "../../home", "/home", "a/b", ""])
def test_a_population_empties_no_folder_but_its_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no name of a run in its folder"):
        saved_population(population(tmp_path, name=name), trust=True)


@pytest.mark.parametrize("text", ["\x00", "[]", '{"members": 3}', '{"jobs": 1, "members": [{"name": 3}]}', "[" * 9999])
def test_garbage_instead_of_a_population_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "population.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        saved_population(tmp_path)


def test_the_env_of_a_strangers_data_set_is_not_imported(
    harm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    data = tmp_path / "set"
    assert main(["data", "record", "--policy", "random", "--env", "CartPole-v1", "--episodes", "1",
                 "--out", str(data)]) == 0
    path = data / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["pappus"]["env"] = "their_code:make"
    path.write_text(json.dumps(metadata))
    with pytest.raises(UserError, match="give it yourself with --env their_code:make; --env none does without"):
        env_of_data(str(data), "")
    assert env_of_data(str(data), "none").startswith("data:")
    del metadata["observation_space"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(UserError, match="asks for env='their_code:make'"):
        env_of_data(str(data), "none")
    assert not harm.exists()


@pytest.mark.parametrize("start", [
    ["-m", "pappus"], ["-c", "import sys; sys.path[:1] = []; from pappus.cli import main; raise SystemExit(main())"],
])
def test_a_command_imports_nothing_from_the_folder_that_it_is_given_in(start: list[str], tmp_path: Path) -> None:
    directory = run_directory(tmp_path, {"system": "impala"})
    for name in ("yaml", "numpy", "gymnasium", "torch", "optree", "cupy", "tensorflow", "json5", "orjson"):
        (directory / f"{name}.py").write_text("raise SystemExit('imported')")
    plugin = directory / "evil-1.dist-info"
    plugin.mkdir()
    (plugin / "entry_points.txt").write_text("[gymnasium.envs]\n__root__ = evil:x\n[torch.backends]\nx = evil:x\n")
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, *start, "eval", "."], cwd=directory, capture_output=True, text=True, env=environment
    )
    assert found.returncode == 2 and "holds no latest checkpoint" in found.stderr, found.stderr
    assert not (tmp_path / "harm").exists()


def test_a_module_that_is_named_is_found_in_the_working_directory_after_all_others(
    harm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("calendar.py").write_text("make = 1")
    assert main(["check-env", "calendar:make", "--seconds", "0.01"]) == 2
    assert "'calendar:make'" in capsys.readouterr().err
    assert main(["check-env", "no_such_module:make", "--seconds", "0.01"]) == 2
    assert os.getcwd() not in sys.path
    assert main(["check-env", "their_code:make", "--seconds", "0.01"]) == 0
    assert harm.exists() and sys.path[-1] == os.getcwd()
