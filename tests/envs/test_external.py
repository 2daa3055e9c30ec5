"""Envs that are known by a file: what it may say, and a sentence for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pappus.envs.external import external_spec, is_external
from pappus.errors import UserError
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction

GOOD_ACTION, GOOD_OBSERVATION = "action: {discrete: 2}", "observation: {shape: [4], dtype: float32}"

VECTOR = ArraySpec((4,), "float32")


def spec_of(path: Path, text: str) -> EnvSpec:
    path.write_text(text)
    return external_spec(f"spec:{path}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{GOOD_OBSERVATION}\n{GOOD_ACTION}", EnvSpec(VECTOR, DiscreteAction(2))),
        (f"observation: {{shape: []}}\n{GOOD_ACTION}", EnvSpec(ArraySpec((), "float32"), DiscreteAction(2))),
        (
            "observation: {shape: [84, 84], dtype: uint8}\naction: {multi_discrete: [3, 2]}\nframe_stack: 4",
            EnvSpec(ArraySpec((84, 84), "uint8"), MultiDiscreteAction((3, 2)), 4),
        ),
        (f"{GOOD_OBSERVATION}\naction: {{continuous: [2]}}", EnvSpec(VECTOR, ContinuousAction((2,)))),
        (
            f"observation: {{shape: [2], dtype: int64, values: [10, 3]}}\n{GOOD_ACTION}",
            EnvSpec(ArraySpec((2,), "int64", (10, 3)), DiscreteAction(2)),
        ),
        (
            f"observation: {{eye: {{shape: [8, 8], dtype: uint8}}, arm: {{angle: {{shape: [4]}}}}}}\n{GOOD_ACTION}",
            EnvSpec({"eye": ArraySpec((8, 8), "uint8"), "arm": {"angle": VECTOR}}, DiscreteAction(2)),
        ),
    ],
    ids=["vector", "number", "picture", "continuous", "categories", "nested"],
)
def test_a_spec_says_what_envs_show_and_accept(tmp_path: Path, text: str, expected: EnvSpec) -> None:
    assert spec_of(tmp_path / "env.yaml", text) == expected


def test_a_spec_may_have_bounds(tmp_path: Path) -> None:
    text = f"observation: {{shape: [2], low: -1, high: [1, .inf]}}\n{GOOD_ACTION}"
    assert spec_of(tmp_path / "env.yaml", text).observation.bounds == ((-1.0, -1.0), (1.0, float("inf")))


def test_a_spec_that_is_missing_or_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.yaml' cannot be read"):
        external_spec(f"spec:{tmp_path}/missing.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        external_spec(f"spec:{tmp_path}")
    with pytest.raises(UserError, match="cannot be read"):
        spec_of(tmp_path / "env.yaml", "observation: {shape: [4")


MALFORMED = [
    ("", "must define 'observation' and 'action'"),
    ("just words", "must define 'observation' and 'action'"),
    ("[1, 2]", "must define 'observation' and 'action'"),
    (GOOD_OBSERVATION, "must define 'observation' and 'action'"),
    (GOOD_ACTION, "must define 'observation' and 'action'"),
    (f"{GOOD_OBSERVATION}\n{GOOD_ACTION}\nreward: 1", "has unknown entries: reward"),
    (f"{GOOD_OBSERVATION}\n{GOOD_ACTION}\n1: 2", "has unknown entries: 1"),
]
MALFORMED += [
    (f"{GOOD_OBSERVATION}\n{GOOD_ACTION}\nframe_stack: {stack}", "frame_stack=.* must be a whole number of at least 1")
    for stack in ("0", "-1", "1.5", "four", "null", "[4]")
]
MALFORMED += [
    (f"observation: {entry}\n{GOOD_ACTION}", sentence)
    for entry, sentence in [
        ("4", "observation=4 is no array; write {shape"),
        ("null", "observation=None is no array"),
        ("[4]", r"observation=\[4\] is no array"),
        ("{}", "observation={} is no array"),
        ("{dtype: float32}", "observation/dtype='float32' is no array"),
        ("{eye: {shape: [4]}, arm: 3}", "observation/arm=3 is no array"),
        ("{shape: 4}", "must be lists of positive whole numbers"),
        ("{shape: [0]}", "must be lists of positive whole numbers"),
        ("{shape: [-4]}", "must be lists of positive whole numbers"),
        ("{shape: [4.0]}", "must be lists of positive whole numbers"),
        ("{shape: [four]}", "must be lists of positive whole numbers"),
        ("{shape: [[4]]}", "must be lists of positive whole numbers"),
        ("{shape: null}", "must be lists of positive whole numbers"),
        ("{shape: [4], dtype: float16}", r"has dtype 'float16'; give shape, dtype \(bool, uint8"),
        ("{shape: [4], dtype: uint16}", "has dtype 'uint16'"),
        ("{shape: [4], dtype: null}", "has dtype None"),
        ("{shape: [4], dtype: [float32]}", "has dtype"),
        ("{shape: [4], least: 0}", r"has unknown entries \['least'\]"),
        ("{shape: [4], low: [0, 1]}", "low and high must be one number each, or one for each of 4 entries"),
        ("{shape: [4], low: zero}", "low and high must be one number each"),
        ("{shape: [4], low: .nan}", "low and high must be one number each"),
        ("{shape: [2], low: 1, high: [2, 0]}", "low may not be above high"),
        ("{shape: [], dtype: int64, values: [3], low: 0}", "categories count from 0 to values - 1"),
        ("{shape: [2], dtype: int64, values: [10]}", "has 2 entries and values for 1; give one number for each"),
        ("{shape: [], dtype: int64, values: []}", "has 1 entries and values for 0"),
        ("{shape: [1], dtype: int64, values: [0]}", "must be lists of positive whole numbers"),
        ("{shape: [1], dtype: int64, values: 10}", "must be lists of positive whole numbers"),
    ]
]
MALFORMED += [
    (f"{GOOD_OBSERVATION}\naction: {entry}", "is none of {discrete: 2}, {multi_discrete: ")
    for entry in (
        "2", "null", "{}", "{discrete: 0}", "{discrete: -2}", "{discrete: 2.0}", "{discrete: [2]}",
        "{discrete: 2, continuous: [2]}", "{multi_discrete: []}", "{multi_discrete: [3, 0]}", "{multi_discrete: 3}",
        "{continuous: 2}", "{continuous: [0]}", "{continuous: [x]}", "{continous: [2]}",
    )
]


@pytest.mark.parametrize(("text", "sentence"), MALFORMED, ids=[text.replace("\n", " ") for text, _ in MALFORMED])
def test_a_malformed_spec_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("{", r"\{").replace("}", r"\}")):
        spec_of(tmp_path / "env.yaml", text)


def test_a_spec_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match="cannot be read"):
        external_spec(f"spec:{tmp_path}/binary.yaml")


@pytest.mark.parametrize(
    "text",
    [
        f"{GOOD_OBSERVATION}\n{GOOD_ACTION}\nframe_stack: true",
        f"{GOOD_OBSERVATION}\naction: {{discrete: true}}",
        f"observation: {{shape: [true]}}\n{GOOD_ACTION}",
        f"observation: {{shape: [1], dtype: float32, values: [10]}}\n{GOOD_ACTION}",
    ],
)
def test_truth_is_no_number_and_a_category_is_a_whole_one(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError):
        spec_of(tmp_path / "env.yaml", text)


def test_only_what_begins_with_spec_is_external() -> None:
    assert is_external("spec:env.yaml")
    assert not is_external("CartPole-v1") and not is_external(lambda: None)
