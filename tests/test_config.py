from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from pappus.api import configure
from pappus.config import AlgorithmConfig, RunConfig, WireConfig
from pappus.errors import UserError
from pappus.listing import pair_table
from pappus.machine import Machine, fit
from pappus.presets import PRESETS, presets_for
from pappus.settings import load_file, option_names, override, parse, to_yaml
from pappus.systems import SYSTEMS, find_system
from pappus.topologies.seed import SeedConfig
from pappus.validation import validate

DEFAULTS = find_system("impala").defaults


def test_a_config_survives_being_written_and_read(tmp_path: Path) -> None:
    settings = {
        "env": "CartPole-v1", "target_return": -100.5, "optimizer": {"anneal": False}, "core": "lstm",
        "network.hidden_sizes": [32, 16], "env_options.kwargs": {"gravity": "9.0"},
    }
    config = override(DEFAULTS, settings)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert override(DEFAULTS, load_file(tmp_path / "config.yaml")) == config
    assert config.network.hidden_sizes == (32, 16) and config.target_return == -100.5 and not config.optimizer.anneal


@pytest.mark.parametrize("value", ["1e-3", "9.0", "true", "12", "null", "a: b", 1e-3, 1e-05, 12, None, [1, "2e5"]])
def test_values_for_an_env_keep_their_type_in_the_file(value: Any, tmp_path: Path) -> None:
    config = override(DEFAULTS, {"env_options.kwargs": {"value": value}})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    read = override(DEFAULTS, load_file(tmp_path / "config.yaml")).env_options.kwargs["value"]
    assert (type(read), read) == (type(value), value)


def test_values_for_an_env_are_yaml_on_the_command_line() -> None:
    words = ["a", "true", "b", "7", "c", "1e-3", "d", "'1e-3'", "e", "[1, x]"]
    kwargs = parse(DEFAULTS, ["--env-options.kwargs", *words]).env_options.kwargs
    assert kwargs == {"a": True, "b": 7, "c": 1e-3, "d": "1e-3", "e": [1, "x"]}
    with pytest.raises(UserError, match=r"--env-options.kwargs.a: '\[1' is not YAML"):
        parse(DEFAULTS, ["--env-options.kwargs", "a", "[1"])


@pytest.mark.parametrize("text", ["a: &a {x: 1}\nb: {<<: *a}", "a: &a {x: 1}\nb:\n  ? !!merge c\n  : *a"])
def test_merge_keys_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"line [23] has a merge key, <<; write its settings out"):
        load_file(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="is not YAML"):
        parse(DEFAULTS, ["--env-options.kwargs", "a", "{<<: {x: 1}}"])


@dataclass(frozen=True)
class Rich(AlgorithmConfig):
    """A user's own config."""

    either: int | str = 1
    maybe: float | Literal["auto"] | None = None
    pair: tuple[int, str] = (1, "a")
    sizes: tuple[int, ...] | None = None
    weights: dict[str, float] = field(default_factory=dict)


RICH = RunConfig(Rich())


@pytest.mark.parametrize(("name", "value", "words"), [
    ("either", 3, ["3"]), ("either", "three", ["three"]), ("maybe", 0.5, ["0.5"]), ("maybe", "auto", ["auto"]),
    ("maybe", None, ["none"]), ("pair", (3, "4"), ["3", "4"]), ("sizes", (3, 4), ["3", "4"]), ("sizes", None, ["none"]),
    ("weights", {"a": 0.5, "b": 2.0}, ["a", "0.5", "b", "2"]),
])
def test_an_own_config_may_have_unions_fixed_tuples_and_mappings(name: str, value: Any, words: list[str]) -> None:
    for config in (override(RICH, {f"algorithm.{name}": value}), parse(RICH, [f"--algorithm.{name}", *words])):
        assert getattr(config.algorithm, name) == value
        assert override(RICH, yaml.safe_load(to_yaml(config))) == config


@pytest.mark.parametrize(("name", "value", "words", "sentence"), [
    ("either", 1.5, [], "algorithm.either.*must be a whole number or text|needs a value"),
    ("maybe", "fast", ["fast"], "algorithm.maybe='fast' must be a number or one of auto or none"),
    ("pair", (1, "a", "b"), ["1", "a", "b"], "has 3 values and must be a list of 2: a whole number, text"),
    ("pair", ("a", "b"), ["a", "b"], "algorithm.pair='a' must be a whole number"),
    ("weights", {"a": "x"}, ["a", "x"], "algorithm.weights.a='x' must be a number"),
])
def test_wrong_values_of_an_own_config_get_a_sentence(name: str, value: Any, words: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        override(RICH, {f"algorithm.{name}": value})
    with pytest.raises(UserError, match=sentence):
        parse(RICH, [f"--algorithm.{name}", *words])


@pytest.mark.parametrize("words", [["--core", "gru"], ["--core=gru"], ["--network.core", "gru"]])
def test_an_option_can_be_written_in_several_ways(words: list[str]) -> None:
    assert parse(DEFAULTS, words).network.core == "gru"


def test_negative_numbers_are_values() -> None:
    assert parse(DEFAULTS, ["--target-return", "-100"]).target_return == -100


def test_switches_are_turned_on_and_off() -> None:
    assert not parse(DEFAULTS, ["--optimizer.no-anneal"]).optimizer.anneal
    assert parse(DEFAULTS, ["--optimizer.no-anneal", "--optimizer.anneal"]).optimizer.anneal, "the last one counts"
    assert parse(DEFAULTS, ["--env-options.atari.life-loss-ends-episode"]).env_options.atari.life_loss_ends_episode


@pytest.mark.parametrize("settings", [{"stepz": 3}, {"algorithm": {"gamma": 0.9}}, {"steps": "many"}])
def test_unknown_names_and_wrong_values_raise(settings: dict[str, object]) -> None:
    with pytest.raises(UserError):
        override(DEFAULTS, settings)


def test_every_preset_fits_its_system_and_is_found_by_env() -> None:
    pairs = [(one, other) for one, row in pair_table().items() for other in row if " " not in row[other]]
    systems = [find_system(f"{algorithm}@{topology}") for algorithm, topology in pairs]
    for preset in PRESETS:
        matching = [system for system in systems if preset.matches(system.pair, preset.envs.replace("*", "x"))]
        assert matching, preset
        for system in matching:
            override(system.defaults, preset.settings)
    impala, seed = find_system("impala"), find_system("seed-vtrace")
    assert [preset.envs for preset in presets_for(impala, "ALE/Pong-v5")] == ["ALE/*"]
    assert presets_for(impala, "Taxi-v3") == []
    assert len(presets_for(seed, "CartPole-v1")) == 2, "what V-trace wants there, and what SEED does"


def test_every_option_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(DEFAULTS, ["--help"])
    shown = capsys.readouterr().out
    assert all(f"--{name}" in shown or f"--{name.rpartition('.')[0]}" in shown for name in option_names(DEFAULTS))


def test_learners_bring_the_actors_that_they_need_unless_actors_are_given() -> None:
    one = parse(DEFAULTS, ["--actors", "1"])
    assert parse(one, ["--learners", "3"]).actors == 3
    assert parse(one, ["--learners=3", "--actors=1"]).actors == 1, "and is refused later"
    assert parse(parse(DEFAULTS, ["--actors", "4"]), ["--learners", "2"]).actors == 4
    central = parse(find_system("seed-vtrace").defaults, ["--actors", "1"])
    assert parse(central, ["--learners", "2"]).actors == 1, "inference deals for all"


@pytest.mark.parametrize(
    ("system", "settings", "inline"),
    [
        ("ppo", {}, True), ("dqn", {}, True), ("td3", {}, True), ("impala", {}, False), ("a3c", {"actors": 1}, False),
        ("ppo", {"actors": 4}, False), ("a2c", {"learners": 2}, False), ("ppo", {"runtime": "local"}, False),
        ("ppo", {"actors": 4, "runtime": "inline"}, True), ("apex-dqn", {"runtime": "inline"}, True),
    ],
)
def test_one_thread_is_enough_where_roles_take_turns(system: str, settings: dict[str, Any], inline: bool) -> None:
    config = override(SYSTEMS[system].defaults, settings)
    assert fit(config, "CartPole-v1", SYSTEMS[system], Machine(2))[0].inline is inline


@pytest.mark.parametrize(("device", "learners", "message"), [
    ("cuda:0", 1, None),
    ("cuda:1", 1, None),
    ("cuda:2", 1, "device='cuda:2' does not exist: there are 2 GPUs, counted from 0; use cuda"),
    ("cuda", 3, "learners=3 need a GPU each, and there are 2"),
])
def test_gpus_that_are_not_there_are_refused(
    device: str, learners: int, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pappus.validation.has_gpu_driver", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    config = configure("impala", "CartPole-v1", {"device": device, "learners": learners, "actors": learners})
    if message is None:
        validate(config)
        return
    with pytest.raises(UserError, match=message):
        validate(config)


@pytest.mark.parametrize("words", [["--actors", "4..64"], ["--actors=4..64"]])
def test_a_range_of_actors_says_how_many_there_must_be_and_may_be(words: list[str]) -> None:
    config = parse(DEFAULTS, ["--seed", "3", *words, "--steps", "10"])
    assert (config.actors, config.cluster.fewest_actors, config.seed, config.steps) == (64, 4, 3, 10)
    assert config.batch_envs == 4 * config.envs_per_actor, "a batch must not wait for actors that may never come"


@pytest.mark.parametrize("text", ["0..4", "5..4"])
def test_a_range_that_holds_nobody_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="must go from 1 or more up"):
        parse(DEFAULTS, ["--actors", text])


@pytest.mark.parametrize("system", ["ppo", "a2c", "ppo@seed", "a2c@seed", "pqn@seed"])
def test_who_waits_for_every_actor_takes_a_number_of_them_and_no_range(system: str) -> None:
    settings = {"runtime": "ray", "actors": 4, "device": "cpu", "cluster.fewest_actors": 2}
    with pytest.raises(UserError, match=r"--actors 2\.\.4: .*waits for every actor"):
        validate(configure(system, "CartPole-v1", settings))


def test_settings_of_a_cluster_survive_the_file() -> None:
    words = ["--address", "auto", "--cluster.resources", "actor", "CPU=2", "learner", "GPU=1"]
    config = parse(DEFAULTS, words)
    assert config.cluster.address == "auto" and config.cluster.resources == {"actor": "CPU=2", "learner": "GPU=1"}
    assert override(DEFAULTS, yaml.safe_load(to_yaml(config))) == config


def test_batches_that_are_not_finite_are_skipped_where_others_may_join() -> None:
    alone, open_ = SeedConfig(), SeedConfig(wire=WireConfig(listen="127.0.0.1:0"))
    for topology, choice, skips in [
        (alone, "auto", False), (open_, "auto", True), (alone, "skip", True), (open_, "stop", False),
    ]:
        config = RunConfig(AlgorithmConfig(), topology=topology, on_non_finite=choice)  # type: ignore[arg-type]
        assert config.skips_non_finite == skips


SENSIBLE = {
    "algorithm.entropy_cost": {-1}, "algorithm.entropy_per_action": {-1}, "algorithm.reward_scale": {-1},
    "algorithm.v_min": {-1}, "algorithm.v_max": {-1}, "target_return": {-1}, "topology.inference_deadline_ms": {-1},
}
"""Settings for which a negative number means something."""


@pytest.mark.parametrize("name", [*SYSTEMS, "pqn@seed"])
def test_no_number_of_a_config_may_be_nonsense(name: str) -> None:
    system = find_system(name)
    actors = 2 if system.topology.config.uses_data == "no" and system.topology.name != "single" else 1
    data = system.topology.config.uses_data == "only"
    config = replace(system.defaults, env="CartPole-v1", actors=0 if data else actors, device="cpu", data="x" * data)
    validate(config)
    for setting, value in _numbers_of(config):
        for bad in (-1, math.nan):
            if bad in SENSIBLE.get(setting, ()) or (bad != bad and not isinstance(value, float)):
                continue
            with pytest.raises(UserError):
                validate(override(config, {setting: (bad,) if isinstance(value, tuple) else bad}))
                pytest.fail(f"{setting}={bad}")


def _numbers_of(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for item in fields(config):
        value, name = getattr(config, item.name), prefix + item.name
        if is_dataclass(value):
            yield from _numbers_of(value, f"{name}.")
        elif isinstance(value, int | float | tuple) and not isinstance(value, bool):
            yield name, value
