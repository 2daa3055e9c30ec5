"""Wrong input: one sentence that names the thing, the value, the rule or the remedy; exit code 2; nothing started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pappus.cli import main
from pappus.machine import Machine

WRONG = [
    ("train impala --env CartPole-v1 --listen 127.0.0.1:0", "system 'impala' accepts no remote envs"),
    ("train impala --env CartPole-v1 --plan --device cpu --budget gpu-hours=1", "the run holds no GPU"),
    ("train impala --env CartPole-v1 --tune --plan", "--plan is of what would run now, which --tune is to find"),
    ("train impala --env CartPole-v1 --price gb=1,gb=2", "price names gb twice"),
    ("train seed-vtrace --env CartPole-v1 --listen 0.0.0.0:5000", "is open to other machines"),
    (
        "train seed-vtrace --env CartPole-v1 --topology.env_groups 3",
        "topology.env_groups=3 does not divide envs_per_actor=128",
    ),
    ("train seed-vtrace --env CartPole-v1 --topology.inference_in gpu", "--topology.inference-in"),
    ("train seed-vtrace --env CartPole-v1 --actors 0", "leaves no env to learn from"),
    ("train seed-vtrace --env CartPole-v1 --actors -1", "actors=-1"),
    ("serve seed-vtrace", "--env-spec is missing"),
    ("serve seed-vtrace --env-spec no_such_file.yaml", "no_such_file.yaml"),
    ("serve seed-vtrace --env CartPole-v1 --env-spec x.yaml", "no envs and no actors of its own"),
    ("actor --env CartPole-v1", "--connect"),
    ("actor --connect here --env CartPole-v1", "neither HOST:PORT nor unix:PATH"),
    ("trian impala", "unknown command 'trian'; did you mean 'train'?"),
    ("train", "which system?"),
    ("train imapla --env CartPole-v1", "unknown system 'imapla'; did you mean 'impala'?"),
    ("train impala", "--env is missing"),
    ("train impala --env CartPol-v1", "CartPol"),
    ("train impala --env no_such_module:make", "no_such_module"),
    ("train impala --env CartPole-v1 --setps 10", "unknown option --setps; did you mean 'steps'?"),
    ("train impala --env CartPole-v1 --steps ten", "--steps"),
    ("train impala --env CartPole-v1 --steps", "--steps"),
    ("train impala --env CartPole-v1 --steps 0", "steps=0 must be at least 1"),
    ("train impala --env CartPole-v1 --actors 0", "actors=0 must be at least 1"),
    (
        "train impala --env CartPole-v1 --envs-per-actor 3 --batch-size 32",
        "envs_per_actor=3 does not divide batch_size=32; use 1, 2, 4, 8",
    ),
    ("train impala --env CartPole-v1 --envs-per-actor 4 --batch-size 64", "raise queue_size to 16"),
    ("train impala --env CartPole-v1 --seed -1", "seed=-1 must not be negative"),
    ("train impala --env CartPole-v1 --core transformer", "'transformer'"),
    ("train impala --env CartPole-v1 --runtime cloud", "'cloud'"),
    ("train impala --env CartPole-v1 --algorithm.entropy 0.1", "did you mean 'algorithm.entropy-cost'?"),
    ("train impala --env CartPole-v1 --optimizer.learning-rate 0", "optimizer.learning_rate=0.0 must be positive"),
    ("train impala --env CartPole-v1 --network.torso nature", "torso='nature' needs an image"),
    ("train impala --env CartPole-v1 --network.factory no:where", "'no:where': there is no module 'no' here"),
    ("train impala --env CartPole-v1 --device cuda:7", "device='cuda:7'"),
    ("train impala --env CartPole-v1 --device tpu", "device='tpu' is unknown; use auto, cpu, cuda, or cuda:0"),
    ("train impala --env CartPole-v1 --device cuda:x", "device='cuda:x' is unknown; use auto, cpu, cuda, or cuda:0"),
    ("train impala --env CartPole-v1 --run-dir /proc/nowhere/run", "run_dir='/proc/nowhere/run' cannot be made"),
    ("train impala --env CartPole-v1 --config missing.yaml", "config file 'missing.yaml' cannot be read"),
    ("train impala --env CartPole-v1 --system impala", "--system is no option"),
    ("train impala --env CartPole-v1 --optimizer.clip-norm -1", "optimizer.clip_norm=-1.0 must be positive"),
    ("train impala --env CartPole-v1 --algorithm.discount 5", "algorithm.discount=5.0 must lie between 0 and 1"),
    ("train impala --env CartPole-v1 --algorithm.rho-clip -1", "algorithm.rho_clip=-1.0 must be positive"),
    ("train impala --env CartPole-v1 --algorithm.c-clip -1", "algorithm.c_clip=-1.0 must not be negative"),
    ("train impala --env CartPole-v1 --supervision.max-deaths-in-a-row -1", "in_a_row=-1 must not be negative"),
    ("train impala --env CartPole-v1 --env-options.kwargs colour red", "env 'CartPole-v1' takes no argument 'colour'"),
    (f"train impala --env CartPole-v1 --steps {'9' * 40}", "must be a whole number"),
    (f"train impala --env CartPole-v1 --seconds {'9' * 400}", "must be a number or none"),
    ("train impala --env CartPole-v1 --target-return nan", "target_return=nan must be a finite number"),
    ("train --resume nowhere --config x.yaml", "--config and --resume exclude each other"),
    ("train impala --env CartPole-v1 --resume-or-start", "--resume-or-start finds its run by --run-dir DIR alone"),
    ("train impala --env CartPole-v1 --supervision.hang-seconds -1", "hang_seconds=-1.0 must not be negative"),
    ("train impala --env CartPole-v1 --supervision.grace-seconds 0", "supervision.grace_seconds=0.0 must be positive"),
    ("train impala --env CartPole-v1 --env-options.step-timeout -1", "step_timeout=-1.0 must not be negative"),
    ("train --resume nowhere", "'nowhere' is no run directory"),
    ("eval nowhere", "'nowhere' is no run directory"),
    ("eval", "run"),
    ("eval runs --episodes many", "--episodes"),
    ("check-env", "env"),
    ("check-env NoSuchEnv-v0", "NoSuchEnv"),
    ("data inf", "unknown command 'data inf'; did you mean 'info'?"),
    ("data info", "data"),
    ("data info nowhere", "data 'nowhere' is no data set"),
    ("data list nowhere", "'nowhere' is no folder"),
    ("data convert nowhere copy --format arrow", "data 'nowhere' is no data set"),
    ("data convert nowhere copy --format csv", "'csv'"),
    ("data import nowhere.npz --out x --env CartPole-v1", "'nowhere.npz' does not exist"),
    ("data import nowhere.npz --out x", "either --env ID or --spaces FILE"),
    ("systems imapla", "unknown system 'imapla'; did you mean 'impala'?"),
    ("train ppo@impala --env CartPole-v1", "ppo@impala cannot work: ppo needs unrolls of the newest weights"),
    ("train ppo@sede --env CartPole-v1", "unknown topology 'sede'; did you mean 'seed'?"),
    ("train qpo@seed --env CartPole-v1", "unknown algorithm 'qpo'"),
    ("train no_such_module:mine --env CartPole-v1", "there is no module 'no_such_module' here"),
    ("train pappus.systems:nothing --env CartPole-v1", "systems.py) has no 'nothing'"),
    ("train pappus.systems:SYSTEMS --env CartPole-v1", "is a dict, not a pappus.System"),
    ("train impala stray --env CartPole-v1", "'stray' is no option"),
    ("train impala --env CartPole-v1 --network.hidden-sizes 64 big", "'big' must be a whole number"),
    ("train impala --env CartPole-v1 --seed 1 2", "--seed takes one value, not 2"),
]


@pytest.mark.parametrize(("line", "sentence"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_command_lines_get_one_sentence_and_exit_code_2(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error and error.startswith("pappus: ") and "\n" not in error
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_a_directory_that_holds_a_run_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("system: impala")
    assert main(["train", "impala", "--env", "CartPole-v1", "--run-dir", str(tmp_path)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_cannot_be_resumed_or_evaluated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("system: impala\nenv: CartPole-v1\n")
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "no checkpoint to resume from; remove it and start anew, or" in capsys.readouterr().err
    assert main(["train", "impala", "--env", "CartPole-v1", "--run-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "holds a run already; it saved no checkpoint; remove it and start anew" in error and "--resume" not in error
    assert main(["eval", str(tmp_path)]) == 2
    assert "holds no latest checkpoint; train it first" in capsys.readouterr().err


def test_garbage_in_a_run_directory_is_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = "train a2c --env CartPole-v1 --runtime inline --steps 40 --envs-per-actor 2 --evaluation.episodes 1"
    assert main([*line.split(), "--run-dir", str(tmp_path / "run")]) == 0
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "best").write_bytes(b"\xff\x00")
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--checkpoint", "best"]) == 2
    assert "best' names no checkpoint; use --checkpoint latest" in capsys.readouterr().err
    manifest = next(checkpoints.glob("step-*")) / "checkpoint.json"
    content = json.loads(manifest.read_text())
    changes = [{"steps": "many"}, {"updates": -1}, {"env": None}, {"weights_roles": 3}, {"weights_roles": ["../x"]}]
    for change in changes:
        forged = {key: value for key, value in content.items() if key != "sha256"}
        manifest.write_text(json.dumps(forged | {"metadata": content["metadata"] | change}))
        assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "80"]) in (1, 2)
        error = capsys.readouterr().err
        assert error.startswith("pappus: ") and error.count("\n") == 1, error
    manifest.write_text(json.dumps(content | {"metadata": {}}))
    assert main(["eval", str(tmp_path / "run")]) == 1
    assert "its content changed since it was written" in capsys.readouterr().err
    (tmp_path / "run" / "config.yaml").write_bytes(b"\x93NUMPY\x00\xff")
    assert main(["eval", str(tmp_path / "run")]) == 2
    assert "config.yaml' cannot be read" in capsys.readouterr().err


def test_the_command_line_wins_over_the_file_and_the_file_over_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("unroll_length: 7\nqueue_size: 3\nalgorithm: {entropy_cost: 0.5}\n")
    line = "train impala --env CartPole-v1 --runtime inline --steps 100 --envs-per-actor 2 --queue-size 4"
    assert main([*line.split(), "--config", "my.yaml", "--run-dir", "run", "--evaluation.episodes", "1"]) == 0
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "unroll_length: 7" in config and "queue_size: 4" in config and "entropy_cost: 0.5" in config


def test_a_queue_that_does_not_fit_into_memory_is_refused_with_the_sum(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = "train impala --env CartPole-v1 --envs-per-actor 64 --unroll-length 1000000000 --run-dir"
    assert main([*line.split(), str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "GiB of memory (shared memory" in error and "GiB are free" in error and "shorter unroll_length" in error


def test_a_preset_applies_when_the_env_comes_from_the_file(tmp_path: Path) -> None:
    from pappus.algorithms.vtrace import VTraceConfig
    from pappus.api import configure
    from pappus.config import RunConfig
    from pappus.presets import presets_for
    from pappus.systems import find_system

    (tmp_path / "my.yaml").write_text("env: CartPole-v1\n")
    preset = next(preset for preset in presets_for(find_system("impala"), "CartPole-v1") if "steps" in preset.settings)
    configured = configure("impala", "", {}, tmp_path / "my.yaml")
    assert configured.steps == preset.settings["steps"] != RunConfig(VTraceConfig()).steps


@pytest.mark.parametrize("words", [[], ["--help"], ["systems"], ["--version"], ["eval", "--help"]])
def test_help_is_given(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "pappus", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "pappus" in done.stdout


def test_train_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["train", "impala", "--help"])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    options = ("--env", "--envs-per-actor", "--algorithm.entropy-cost", "--target-return")
    assert all(option in shown for option in options)


@pytest.mark.parametrize(
    ("words", "usage", "option"),
    [
        ("ppo --env ALE/Pong-v5", "ppo@seed", "--topology.env-groups"),
        ("ppo@sync --env ALE/Pong-v5", "ppo@sync", "--topology.stragglers"),
        ("ppo --env ALE/Pong-v5 --topology.stragglers 1", "ppo", "--topology.stragglers"),
        ("ppo --env CartPole-v1", "ppo", "--topology.stragglers"),
        ("ppo --env ALE/Pong-v5 --steps", "ppo", "--topology.stragglers"),
    ],
)
def test_help_is_about_the_system_that_would_run_on_a_gpu(
    words: str, usage: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pappus.api.machine_for", lambda config: Machine(16, "NVIDIA H200"))
    with pytest.raises(SystemExit):
        main(["train", *words.split(), "--help"])
    shown = capsys.readouterr().out
    assert f"usage: pappus train {usage} --env" in shown and option in shown
