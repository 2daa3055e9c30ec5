"""Exported files, cards, and folders for hubs: what is written, what is read back, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

import pappus
from pappus.cli import main
from pappus.errors import RunError, UserError
from pappus.export.check import Step, agreement
from pappus.hub import files
from pappus.hub.card import evaluations
from pappus.hub.exported import Export, export_policy
from pappus.hub.folder import pull, push


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with an exported policy."""
    directory = tmp_path_factory.mktemp("hub") / "run"
    settings = {"network.hidden_sizes": (8,), "evaluation.episodes": 2, "runtime": "inline", "actors": 1}
    pappus.train("ppo", "Pendulum-v1", settings, steps=300, run_dir=directory, seed=5)
    export_policy(Export(directory, "torch-export", observations=100))
    return directory


def test_an_exported_policy_acts_in_its_env(run: Path) -> None:
    module = torch.export.load(run / "export" / "policy.pt2").module()
    seen, _ = gym.make("Pendulum-v1").reset(seed=1)
    action = module({"observation": torch.from_numpy(seen[None])})["action"].numpy()
    np.testing.assert_allclose(action[0], pappus.load_policy(run).act(seen), atol=1e-5)
    assert str(Path(pappus.__file__).parent).encode() not in (run / "export" / "policy.pt2").read_bytes()


def test_the_note_says_what_goes_in_and_out(run: Path) -> None:
    note = json.loads((run / "export" / "policy.pt2.json").read_text())
    assert [(one["name"], one["dtype"], one["shape"]) for one in note["inputs"]] == [("observation", "float32", [3])]
    assert note["outputs"] == ["action", "distribution"]
    assert note["agreement"]["observations"] >= 100 and note["agreement"]["largest"] < 1e-5


def test_the_card_says_what_it_is_and_how_good(run: Path, tmp_path: Path) -> None:
    push(run, tmp_path / "hub")
    text = (tmp_path / "hub" / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    (metric,) = front["model-index"][0]["results"][0]["metrics"]
    (shown,) = {str(one) for one in evaluations(run / "metrics.jsonl", 2)}
    assert front["tags"] == ["reinforcement-learning", "pappus", "ppo", "Pendulum-v1"] and "±" in metric["value"]
    assert metric["value"] == shown and f"| {shown} |" in text
    assert "| seed | 5 |" in text and "`policy.pt2`" in text and "pappus train ppo --env Pendulum-v1 --seed 5" in text


def test_a_pulled_run_is_the_one_that_was_pushed(run: Path, tmp_path: Path) -> None:
    assert main(["push", str(run), str(tmp_path / "hub")]) == 0
    assert main(["pull", str(tmp_path / "hub"), str(tmp_path / "again")]) == 0
    seen = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    one, two = (pappus.load_policy(path).predict(seen)[0] for path in (run, tmp_path / "again"))
    assert np.array_equal(one, two)
    assert (tmp_path / "again" / "export" / "policy.pt2").is_file()
    pushed = yaml.safe_load((tmp_path / "hub" / "config.yaml").read_text())
    assert "run_dir" not in pushed and str(run.parent) not in (tmp_path / "hub" / "config.yaml").read_text()
    assert pappus.resume(tmp_path / "again", steps=400).summary.steps >= 400


def test_pushed_weights_are_named(run: Path, tmp_path: Path) -> None:
    push(run, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["torso.trunk.layers.0.weight"].shape == (8, 3) and "head.log_std" in weights


def test_pushing_again_replaces_what_was_pushed_and_nothing_else(run: Path, tmp_path: Path) -> None:
    push(run, tmp_path / "hub")
    (tmp_path / "hub" / "policy.onnx").write_text("of an earlier push")
    (tmp_path / "hub" / "figure.png").write_text("somebody's own")
    push(run, tmp_path / "hub")
    assert not (tmp_path / "hub" / "policy.onnx").exists() and (tmp_path / "hub" / "figure.png").exists()
    for name, text in (("README.md", "mine"), ("config.yaml", "system: ppo")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match="give another folder"):
            push(run, tmp_path)
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match="within the run itself"):
        push(run, run / "hub")


def test_what_is_pulled_is_a_strangers(run: Path, tmp_path: Path) -> None:
    push(run, tmp_path / "hub")
    config = tmp_path / "hub" / "config.yaml"
    config.write_text(config.read_text().replace("env: Pendulum-v1", "env: subprocess:getoutput"))
    pull(tmp_path / "hub", tmp_path / "theirs")
    with pytest.raises(UserError, match=r"asks for env='subprocess:getoutput'.*--trust"):
        pappus.load_policy(tmp_path / "theirs")


def test_damaged_missing_and_linked_files_are_not_pulled(run: Path, tmp_path: Path) -> None:
    push(run, hub := tmp_path / "hub")
    (stored,) = hub.glob("checkpoints/*/learner.safetensors")
    whole = stored.read_bytes()
    stored.write_bytes(whole[:-1] + b"x")
    with pytest.raises(RunError, match="its content changed"):
        pull(hub, tmp_path / "again")
    stored.write_bytes(b"version https://git-lfs\noid sha256:0\n")
    with pytest.raises(UserError, match="git lfs pull"):
        pull(hub, tmp_path / "again")
    stored.write_bytes(whole)
    (hub / "summary.json").unlink()
    (hub / "summary.json").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link"):
        pull(hub, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["hub"], "half a run is left"
    shutil.rmtree(hub)
    with pytest.raises(UserError, match="holds no run"):
        pull(hub, tmp_path / "again")


def test_a_missing_package_gets_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else name)
    with pytest.raises(UserError, match=r'needs onnxruntime, which is not installed; run pip install ".*\[export\]"'):
        files.check_format("onnx")
    files.check_format("torch-export")


@pytest.mark.parametrize(
    ("action", "q", "problem"),
    [
        ([0, 1], [[1.0, 0.0], [0.0, 1.0]], ""),
        ([1, 1], [[1.0, 1.0 + 1e-6], [0.0, 1.0]], ""),  # a tie
        ([1, 1], [[1.0, 0.0], [0.0, 1.0]], "takes other actions"),
        ([0, 1], [[1.0, 0.5], [0.0, 1.0]], "deviates by 5.0e-01"),
        ([0, 1], [[1.0, np.nan], [0.0, 1.0]], "deviates by inf"),
    ],
)
def test_an_export_that_acts_otherwise_is_refused(action: list[int], q: list[list[float]], problem: str) -> None:
    tie = 1.0 if q[0][1] > 0.9 else 0.0
    ours = {"action": np.array([0, 1]), "q": np.array([[1.0, tie], [0.0, 1.0]], np.float32)}
    theirs = {"action": np.array(action), "q": np.array(q, np.float32)}
    step = Step({}, ours["action"], ours)
    if problem:
        with pytest.raises(RunError, match=problem):
            agreement(lambda _: theirs, [step], "")
    else:
        assert agreement(lambda _: theirs, [step], "").other_actions == int(action[0])


def test_the_docs_read_a_checkpoint_with_plain_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "docs" / "guide" / "use-a-policy.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "safetensors" in block)
    assert "pappus" not in code and len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    settings = {"network.hidden_sizes": (64, 64), "evaluation.episodes": 1, "runtime": "inline", "actors": 1}
    pappus.train("ppo", "CartPole-v1", settings, steps=300, run_dir="run")
    names: dict[str, Any] = {}
    exec(code, names)
    seen = torch.randn(50, 4)
    policy = pappus.load_policy("run")
    assert np.array_equal(names["logits"](seen).argmax(-1).numpy(), policy.predict(seen.numpy())[0])
