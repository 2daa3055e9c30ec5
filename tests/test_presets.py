"""Presets and their evidence: what is listed, what a run starts from, and what repeats it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.evidence import find, overlap
from pappus.cli import main
from pappus.configured import configured
from pappus.errors import UserError
from pappus.evidence import Evidence, evidence_of, plain
from pappus.evidence_table import EVIDENCE
from pappus.light import light_system
from pappus.names import PAIRS
from pappus.origin import origin_of
from pappus.presets import PRESETS, evidence_for, evidence_on
from pappus.settings import override
from pappus.systems import ALGORITHMS, find_system

ROOT = Path(__file__).parents[1]
ONE = Evidence("ppo", "Mine-v0", (1, 2, 3), (100.0, 120.0, None), "2026-11-18", "abc", 10.0)


@pytest.mark.parametrize("evidence", EVIDENCE, ids=lambda one: one.name)
def test_evidence_is_of_a_preset_and_stands_on_its_page(evidence: Evidence) -> None:
    assert any(evidence in evidence_for(preset) for preset in PRESETS)
    page = (ROOT / evidence.source).read_text()
    assert evidence.commit in page
    for value in evidence.known:
        thousands = f"{value / 1000:.0f}"
        assert f"{value:,.0f}" in page or f"{value:g}" in page or (value % 1000 == 0 and thousands in page)
    assert len(evidence.seeds) == len(evidence.values)


def test_evidence_has_names_of_its_own() -> None:
    assert len({(one.name, one.on_gpu) for one in EVIDENCE}) == len({one.name for one in EVIDENCE}) == len(EVIDENCE)


def test_runs_on_a_gpu_say_nothing_of_a_preset_that_a_gpu_replaces() -> None:
    cpu, gpu = (next(one for one in PRESETS if one.envs == "ALE/*" and one.on_gpu == gpu) for gpu in (False, True))
    assert not evidence_for(cpu) and evidence_for(gpu)


def test_every_named_system_shows_its_presets(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PAIRS:
        assert main(["presets", name]) == 0
    assert "vtrace@*, appo@*, a2c@* on CartPole-*" in capsys.readouterr().out


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "ALE/Pong-v5"])
@pytest.mark.parametrize("name", [name for name, one in ALGORITHMS.items() if one.learns_from_replay])
def test_updates_from_data_are_as_many_as_data_wants_whatever_the_env_takes_online(name: str, env: str) -> None:
    config = configured(find_system(f"{name}@offline"), env, {}, None, True)
    assert config.steps <= 100_000 and not config.evaluation.every_steps


def test_a_list_says_where_nothing_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [ppo] = [line for line in lines if line.startswith("ppo@* on CartPole-*")]
    [pqn] = [line for line in lines if line.startswith("pqn@* on CartPole-*")]
    assert ppo.endswith("ppo on CartPole-v1") and pqn.endswith("no evidence recorded")


def test_presets_as_json_hold_settings_and_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "ppo", "--env", "CartPole-v1", "--json"]) == 0
    [preset] = json.loads(capsys.readouterr().out)
    assert preset["settings"]["optimizer.learning_rate"] == 1e-3
    assert preset["evidence"][0]["seeds"] == [1, 2, 3, 4, 5]


def test_listing_presets_needs_no_torch() -> None:
    code = "import sys, pappus.cli; pappus.cli.main(['presets', 'ppo']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(("words", "sentence"), [
    (["pppo"], "did you mean 'ppo'"), (["mine:system"], "in its own code"), (["nowhere.yaml"], "cannot be read"),
])
def test_a_wrong_name_gets_a_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["presets", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_says_which_preset_it_starts_from_and_what_was_changed() -> None:
    system = light_system("ppo")
    config = override(configured(system, "CartPole-v1"), {"unroll_length": 64, "seed": 7})
    first, second = origin_of(system, config)
    assert first.startswith("preset ppo@* on CartPole-*; ppo: steps to a return of 475") and "commit" in first
    assert second == "changed from that: --unroll-length 64"


def test_a_run_says_that_no_preset_is_for_its_env() -> None:
    system = light_system("ppo")
    [line] = origin_of(system, configured(system, "Mine-v0"))
    assert line == "no preset is for ppo on Mine-v0: it starts from the defaults of ppo"


def test_a_preset_without_runs_says_so() -> None:
    system = light_system("pqn")
    assert origin_of(system, configured(system, "CartPole-v1"))[0].endswith("no evidence recorded")
    assert evidence_on(system, "CartPole-v1") == []


def test_evidence_counts_the_seeds_that_never_got_there() -> None:
    assert "2 of 3 seeds" in str(ONE) and "110.0 ±" in str(ONE)
    assert ONE.command() == "pappus train ppo --env Mine-v0 --target-return 10 --seeds 1,2,3"


def test_a_file_of_settings_may_carry_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump({"unroll_length": 32, "evidence": plain(ONE)}))
    assert configured(light_system("ppo"), "CartPole-v1", file=path).unroll_length == 32
    assert main(["presets", str(path)]) == 0
    assert "--unroll-length 32" in (text := capsys.readouterr().out) and "2 of 3 seeds" in text
    assert find(str(path)) == (evidence_of(plain(ONE), ""), ["--config", str(path)])


@pytest.mark.parametrize("content", [None, 3, {}, {**plain(ONE), "values": [1]}, {**plain(ONE), "values": [1, "a", 2]}])
def test_evidence_that_makes_no_sense_is_refused(content: Any) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        evidence_of(content, "file")


def test_intervals_overlap_where_they_have_a_point_in_common() -> None:
    def with_values(*values: float | None) -> Evidence:
        return evidence_of({**plain(ONE), "values": list(values)}, "")

    assert overlap(with_values(1, 2, 3), with_values(2, 3, 4))
    assert not overlap(with_values(1, 1.1, 1.2), with_values(3, 3.1, 3.2))
    assert not overlap(with_values(1, 2, 3), with_values(None, None, None))


def test_evidence_is_found_by_its_name() -> None:
    assert find("ppo-CartPole-v1")[0].system == "ppo"
    with pytest.raises(UserError, match="did you mean 'ppo-CartPole-v1'"):
        find("ppo-CartPol-v1")


def test_an_env_that_is_a_setting_has_its_preset() -> None:
    system = find_system("td3")
    assert configured(system, "", {"env": "Pendulum-v1"}) == configured(system, "Pendulum-v1")
