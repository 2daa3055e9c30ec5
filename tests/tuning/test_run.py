"""The whole command on a real run."""

import json
from pathlib import Path

import yaml

from tests.warm_processes import run


def test_it_finds_out_what_is_fast_here(tmp_path: Path) -> None:
    fixed = "--actors 1 --envs-per-actor 16 --batch-size 16 --runtime inline --device cpu"
    done = run(tmp_path, f"tune impala --env CartPole-v1 {fixed} --seconds 30 --json --out tuned.yaml")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["choice"]["measured"][0] > 1000
    assert sum(found["costs"]["acting"]) > 0 and found["costs"]["cores"] >= 1
    assert "tried 1 × 16 envs, one thread" in done.stderr
    assert yaml.safe_load((tmp_path / "tuned.yaml").read_text())["system"] == "impala"
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]
