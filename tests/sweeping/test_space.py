"""Spaces of a sweep: what they mean, and what is wrong with them, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pappus.errors import UserError
from pappus.light import light_system
from pappus.sweeping.space import Choice, Parameter, Range, checked, read_space, refuse_repeated

CONFIG = light_system("ppo").defaults


def space_of(tmp_path: Path, text: str) -> list[Parameter]:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return checked(read_space(path), path, CONFIG)


def test_a_space_holds_ranges_and_choices(tmp_path: Path) -> None:
    rate, length, activation, sizes, anneal = space_of(tmp_path, """
optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: true}
unroll-length: {low: 32, high: 128, step: 32}
network.activation: [relu, tanh]
network.hidden-sizes: [[64, 64], [128]]
optimizer.anneal: [true, false]
""")
    assert rate == Range("optimizer.learning-rate", 1e-4, 1e-2, log=True)
    assert length == Range("unroll-length", 32, 128, step=32, whole=True)
    assert isinstance(activation, Choice) and activation.words("tanh") == ["--network.activation", "tanh"]
    assert sizes.words("64 64") == ["--network.hidden-sizes", "64", "64"] and sizes.plain("128") == [128]
    assert anneal.words("false") == ["--optimizer.anneal", "false"] and anneal.plain("false") is False


def test_defaults_are_found_where_the_space_has_them(tmp_path: Path) -> None:
    parameters = space_of(tmp_path, """
algorithm.epochs: {low: 1, high: 8}
algorithm.minibatches: {low: 100, high: 200}
network.activation: [relu, tanh]
network.hidden-sizes: [[32, 32], [64, 64]]
""")
    assert [one.default(CONFIG) for one in parameters] == [
        CONFIG.algorithm.epochs, None, CONFIG.network.activation, "64 64",  # type: ignore[attr-defined]
    ]


def test_a_default_between_two_steps_is_none_of_the_space() -> None:
    assert Range("unroll-length", 30, 330, step=100, whole=True).default(CONFIG) is None
    assert Range("unroll-length", 28, 328, step=100, whole=True).default(CONFIG) == 128


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "is empty|it is no mapping"),
    ("- a", "it is no mapping"),
    ("a: [1, 2", "cannot be read"),
    ("unroll-length: {low: 1, high: 2}\nunroll-length: [1, 2]", "line 2 gives unroll-length again, after line 1"),
    ("seed: [1, 2]", ":1: seed is the same in all trials"),
    ("evaluation.every-steps: [1, 2]", "is the same in all trials"),
    ("unroll-length: 3", "must be a range such as"),
    ("\nunroll-lenght: [1, 2]", ":2: unroll-lenght is no option of ppo; did you mean 'unroll-length'"),
    ("unroll-length: {low: 1, hgih: 2}", "unknown key 'hgih'; did you mean 'high'"),
    ("unroll-length: {low: 1}", "high must be a number, not None"),
    ("unroll-length: {low: 2, high: 2}", "low=2 must be below high=2"),
    ("unroll-length: {low: 1.5, high: 2}", "takes whole numbers, not 1.5"),
    ("optimizer.learning-rate: {low: 0, high: 1, log: true}", "low=0 must be positive where log"),
    ("optimizer.learning-rate: {low: 1, high: 2, log: true, step: 1}", "log and step exclude each other"),
    ("optimizer.learning-rate: {low: 1, high: 2, log: 3}", "must be true or false"),
    ("optimizer.learning-rate: {low: 1, high: 2, step: 5}", "step=5 must be positive and at most"),
    ("optimizer.learning-rate: {low: 1, high: .inf}", "high must be a number"),
    ("network.activation: {low: 1, high: 2}", "is not numeric; give a list of choices"),
    ("network.activation: [relu]", "two choices or more"),
    ("network.activation: [relu, {a: 1}]", "is no choice"),
    ("network.activation: [relu, sigmoid]", ":1: network.activation: .*sigmoid"),
    ("core: [none, lstm]\nnetwork.core: [none, gru]", "under two names"),
])
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        space_of(tmp_path, text)


def test_an_option_is_varied_or_given() -> None:
    parameter = Range("optimizer.learning-rate", 1e-4, 1e-2)
    with pytest.raises(UserError, match="is given, and varied"):
        refuse_repeated([parameter], ["ppo", "--optimizer.learning_rate=1e-3"])
