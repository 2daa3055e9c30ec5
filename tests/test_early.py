"""What is refused before torch is loaded, and that nothing is refused then which would be right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from pappus import early
from pappus.config import AUTO, EnvOptions
from pappus.configured import configured
from pappus.envs import env_spec
from pappus.errors import UserError
from pappus.feasible import check_feasible
from pappus.light import light_system
from pappus.names import PAIRS
from pappus.settings import ALIASES, parse
from pappus.systems import SYSTEMS

ROOT = Path(__file__).parents[1]
REFUSED = {
    "frob": "unknown command",
    "train": "which system?",
    "train imapla --env CartPole-v1": "unknown system",
    "train impala": "--env is missing",
    "train ppo@seed": "--env is missing",
    "train bc": "--data is missing: 'bc'",
    "train bc@offline": "--data is missing",
    "train impala stray --env CartPole-v1": "options begin with --; see pappus train impala --help",
    "train impala --env CartPole-v1 --setps 3": "unknown option --setps; did you mean 'steps'?",
    "train impala --env CartPole-v1 --optimizer.learning-rat 3": "did you mean 'optimizer.learning-rate'?",
    "train impala --env CartPole-v1 --steps ten": "--steps='ten' must be a whole number",
    "train impala --env CartPole-v1 --steps -1": "steps=-1 must be at least 1",
    "train impala --env CartPole-v1 --seeds 1,2 --steps -1": "steps=-1 must be at least 1",
    "train impala --env CartPole-v1 --supervision.max-deaths-in-a-row -1": "must not be negative",
    "train impala --env CartPole-v1 --config missing.yaml": "config file 'missing.yaml' cannot be read",
    "train impala --env CartPol-v1 --runtime inline": "env 'CartPol-v1' is no Gymnasium id",
    "train ppo@apex --env CartPole-v1": "ppo@apex cannot work",
    "train foo@sync --env CartPole-v1": "unknown algorithm 'foo'",
    "train impala --env CartPole-v1 --algorithm.entropy-cst 1": "did you mean 'algorithm.entropy-cost'?",
    "train impala --env CartPole-v1 --algorithm.entropy-cost much": "must be a number",
    "train impala --env CartPole-v1 --algorithm.rho-clip -1": "algorithm.rho_clip=-1.0 must be positive",
    "train vtrace@seed --env CartPole-v1 --algorithm.epochs 0": "algorithm.epochs=0 must be at least 1",
    "train apex-dqn --env CartPole-v1 --topology.replay.capcity 1": "did you mean 'topology.replay.capacity'?",
    "train apex-dqn --env CartPole-v1 --topology.replay.capacity many": "must be a whole number",
    "train seed-vtrace --env CartPole-v1 --topology.inference-deadline-ms -7": "must not be negative; -1 chooses",
    "train impala --env CartPole-v1 --listen 127.0.0.1:1": "accepts no remote envs",
    "train impala --env CartPole-v1 --network.core gruu": "must be one of none, lstm, gru",
    "train impala --env CartPole-v1 --optimizer.learning-rate 0": "optimizer.learning_rate=0.0 must be positive",
    "train impala --env CartPole-v1 --device tpu": "device='tpu' is unknown",
    "train impala --env CartPole-v1 --run-dir empty": "holds a run already",
    "train impala --env CartPole-v1 --run-dir empty/config.yaml/below": "is a file; give another",
    "train impala --env CartPole-v1 --init-from nowhere": "holds no latest checkpoint",
    "train impala --env CartPole-v1 --seeds 5..1": "names no seeds",
    "train impala --env CartPole-v1 --seeds 1,2 --jobs 0": "must be a number of runs",
    "train impala --env CartPole-v1 --vary steps": "names no values",
    "train impala --env CartPole-v1 --seeds 1..99999999999": "are more than 10,000 runs",
    "train impala --env CartPole-v1 --seeds=": "names no seeds",
    "train impala --env CartPole-v1 --config nan.yaml": "steps=nan must be a whole number (in nan.yaml)",
    f"train impala --env CartPole-v1 --run-dir {'x' * 300}": "cannot be made: File name too long",
    "train bc --data nowhere": "'nowhere' is no data set",
    "serve seed-vtrace --env-spec missing.yaml": "cannot be read",
    "actor --connect nonsense --env CartPole-v1": "is neither HOST:PORT nor unix:PATH",
    "train impala --env CartPole-v1 --log wanb": "--log 'wanb' is unknown; did you mean 'wandb'?",
    "train impala --env CartPole-v1 --log none csv": "none excludes the others",
    "train impala --env CartPole-v1 --callback mine": "--callback 'mine' must be module:name",
    "train impala --env CartPole-v1 --hooks.queue-size 0": "hooks.queue_size=0 must be at least 1",
    "train impala --env CartPole-v1 --steps 1.5k5": "--steps='1.5k5' must be a whole number",
    "train impala --env CartPole-v1 --steps 1.5": "--steps=1.5 must be a whole number",
    "eval empty --episodes 1.5": "'1.5' must be a whole number, such as 20, 1e6 or 2M",
    "train rainbow --env ALE/Pong-v5": "unknown system 'rainbow'; did you mean 'apex-dqn' (prioritized, double",
    "train ppo --env CartPole-v1 --gamma 0.9": "--gamma; did you mean 'algorithm.discount', as it is called here?",
    "train dqn --env CartPole-v1 --gae 0.9": "'algorithm.gae-lambda' in systems that have it, and this one has not",
    "tune impala": "--env is missing",
    "tune impala --env CartPole-v1 --seconds 3": "--seconds 3 must be at least 10",
    "tune impala --env CartPole-v1 --allow lags": "--allow 'lags' is unknown; did you mean 'lag'?",
    "tune bc --env CartPole-v1": "bc steps no envs",
    "tune impala --env CartPole-v1 --seeds 1..3": "pappus tune takes no --seeds",
    "tune impala --env CartPole-v1 --out empty/config.yaml": "is there, and not from pappus tune",
    "train impala --env CartPole-v1 --tune --runtime ray": "pappus tune measures this machine",
    "completion tcsh": "invalid choice: 'tcsh'",
    "train --resume nowhere": "'nowhere' is no run directory",
    "train --resume empty": "'empty' holds no checkpoint to resume from",
    "train --resume empty --config x.yaml": "--config and --resume exclude each other",
    "eval nowhere": "'nowhere' is no run directory",
    "eval garbage": "cannot be read",
    "eval empty": "'empty' holds no latest checkpoint",
    "data record --policy nowhere --out out": "'nowhere' is no run directory",
    "data estimate nowhere --data x": "'nowhere' is no run directory",
    "data info nowhere": "is no data set",
    "systems nope": "unknown system 'nope'",
    "systems ppo@apex": "ppo@apex cannot work",
    "check-env nope": "is no Gymnasium id",
    "check-env CartPole-v1 --seconds nan": "--seconds nan must be positive and finite",
    "actor --connect 127.0.0.1:1 --env CartPole-v1 --patience nan": "patience=nan must not be negative",
    "train ppo --env CartPole-v1 --batch-size 7": "batch_size=7: a batch is one unroll of each of the 16 envs",
    "train ppo --env CartPole-v1 --seeds 1,2 --batch-size 7": "one unroll of each of the 16 envs",
    "train ppo --env CartPole-v1 --algorithm.minibatches 7": "does not divide a batch of 128 steps of 16 envs",
    "train apex-dqn --env CartPole-v1 --topology.replay.warm-up 200000": "must lie between 1 and capacity=100000",
    "train apex-dqn --env CartPole-v1 --topology.replay.sampler rank": "no selector is called 'rank'",
    "train seed-vtrace --env CartPole-v1 --listen nonsense": "is neither HOST:PORT nor unix:PATH",
    "train a3c --env CartPole-v1 --batch-size 3": "a worker of a3c learns from one unroll",
    "train impala --env CartPole-v1 --actors 2 --learners 3": "actors=2 must be at least 1 for every learner",
    "train impala --env CartPole-v1 --record empty/config.yaml": "'empty/config.yaml' is a file",
    "train impala --env CartPole-v1 --env-options.backend nope": "is not installed; use auto",
    "train impala --env CartPole-v1 --network.factory nope:x": "there is no module 'nope' here",
    "train impala --env nope:make": "there is no module 'nope' here",
    "train nope:system --env CartPole-v1": "there is no module 'nope' here",
    "train ppo@nope:topology --env CartPole-v1": "there is no module 'nope' here",
    "train dqn --env Pendulum-v1": "dqn needs one discrete choice",
    "train td3@seed --env CartPole-v1": "td3@seed needs continuous actions",
    "train sac --env HalfCheetah-v5": "env 'HalfCheetah-v5' needs MuJoCo, which is not installed; run pip install",
    "train --resume damaged": "is damaged, checkpoint.json",
    "verify damaged": "is damaged, checkpoint.json",
    "replay serve": "--config",
    "export nowhere": "'nowhere' is no run directory",
    "export empty": "'empty' holds no latest checkpoint",
    "export empty --format pickle": "invalid choice: 'pickle'",
    "export empty --out policy.onnx": "names a file; give a folder",
    "export empty --observations 0": "--observations 0 must be at least 1",
    "push nowhere out": "'nowhere' is no run directory",
    "push empty out": "'empty' holds no latest checkpoint",
    "pull nowhere out": "'nowhere' holds no run",
    "pull empty out": "'empty' holds no checkpoint",
    "replay serve --config garbage/config.yaml": "cannot be read",
}


def test_these_are_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    for name, content in (("empty", b"system: impala\nenv: CartPole-v1\n"), ("garbage", b"\xff\x00")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_bytes(content)
    (tmp_path / "nan.yaml").write_text("steps: .nan\n")
    damaged = tmp_path / "damaged/checkpoints/step-000000000001"
    damaged.mkdir(parents=True)
    (tmp_path / "damaged/config.yaml").write_text("system: impala\nenv: CartPole-v1\n")
    (damaged / "checkpoint.json").write_text("half of a")
    code = (
        "import json, sys, pappus; pappus.Callback, pappus.runs; from pappus.cli import main\n"
        "sys.modules['mujoco'] = None\n"
        "for line in json.load(sys.stdin):\n"
        "    print(line, '→', main(line.split()), 'torch' in sys.modules, file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], input=json.dumps(list(REFUSED)), cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
    )
    lines = found.stderr.splitlines()
    assert len(lines) == 2 * len(REFUSED), found.stderr
    for sentence, done, (line, expected) in zip(lines[::2], lines[1::2], REFUSED.items(), strict=True):
        code = 1 if expected.startswith("is damaged") else 2
        assert expected in sentence and done == f"{line} → {code} False", f"{sentence}\n{done}"


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_option_of_a_system_is_refused_early(name: str) -> None:
    words = [word for option in _options(SYSTEMS[name].defaults) for word in option]
    early.check_options(words, "pappus train")
    for short in ALIASES:
        special = {
            "on_storage_failure": "stop", "callback": "module:name", "price": "hour=1", "budget": "joules=1",
            "page_listen": "localhost:0",
        }
        word = special.get(short, "none")
        early.check_options([f"--{short}", word], "pappus train")
    early.check_options(["--actors", "auto"], "pappus train")
    early.check_start(name, "CartPole-v1", "", "")
    of_system = early.started(name, "CartPole-v1", "", "", False)
    assert of_system is not None
    early.check_options(words, "pappus train", of_system)


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5", "x/minatar-y", "Pendulum-v1"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_read_without_torch_are_the_configs_of_the_systems(name: str, env: str) -> None:
    """Values, types and rules."""
    light, whole = configured(light_system(name), env), configured(SYSTEMS[name], env)
    assert asdict(light) == asdict(whole)
    for part in ("algorithm", "topology"):
        ours, theirs = type(getattr(light, part)), type(getattr(whole, part))
        kinds = [str(get_type_hints(one)).replace(" (light)", "") for one in (ours, theirs)]
        assert kinds[0] == kinds[1] and hasattr(ours, "__post_init__") == hasattr(theirs, "__post_init__")


def test_switches_that_are_turned_off_pass_early() -> None:
    early.check_options(["--optimizer.no-anneal", "--checkpoint.every-seconds=3", "--actors", "4..64"], "pappus train")


@pytest.mark.parametrize("name", ["mine:system", "mine:algorithm@sync", "ppo@mine:topology"])
def test_own_systems_are_looked_up_later(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("raise AssertionError('it is imported')")
    monkeypatch.chdir(tmp_path)
    early.check_start(name, "CartPole-v1", "", "")


@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.topology.name != "offline"])
def test_no_default_is_refused_early(name: str) -> None:
    refusal = SYSTEMS[name].algorithm.refusal
    env = next(env for env in ("CartPole-v1", "Pendulum-v1") if not refusal(env_spec(env, EnvOptions()).action))
    for device in ("auto", "cpu"):
        check_feasible(replace(configured(light_system(name), env), device=device))


def test_a_cluster_may_have_gpus_that_this_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one, ppo is ppo@seed with 120 envs, whose batches 15 divides."""
    monkeypatch.setattr("pappus.feasible.has_gpu_driver", lambda: False)
    words = ["--runtime", "ray", "--actors", "4", "--algorithm.minibatches", "15"]
    check_feasible(parse(configured(light_system("ppo"), "ALE/Pong-v5"), words))


def test_what_is_wrong_for_some_machines_alone_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto` actors a batch of 32 envs is right where steps are slow and there are cores for two actors."""
    config = parse(configured(light_system("ppo"), "CartPole-v1"), ["--batch-size", "32"])
    monkeypatch.setattr("pappus.feasible.usable_cores", lambda: 3)
    check_feasible(config)
    monkeypatch.setattr("pappus.feasible.usable_cores", lambda: 2)
    with pytest.raises(UserError, match="16 envs"):
        check_feasible(config)


def test_every_system_is_known_by_name_and_pair() -> None:
    assert {name: system.pair for name, system in SYSTEMS.items()} == PAIRS


def _options(config: Any, prefix: str = "--") -> list[list[str]]:
    found: list[list[str]] = []
    for item in fields(config):
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        if is_dataclass(value):
            found += _options(value, f"{name}.")
        elif value not in (None, (), {}, AUTO):
            values = value if isinstance(value, tuple) else (value,)
            found.append([name, *(str(one).lower() if isinstance(one, bool) else str(one) for one in values)])
    return [option for option in found if option[0] not in ("--envs", "--max-envs")]
