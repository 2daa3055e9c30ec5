"""Messages arrive as they were sent, and anything else is refused as such."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pappus.errors import WireError
from pappus.replay.wire.messages import DTYPES, MAX_WORDS, Blocks, Message, decode, encode
from pappus.types import Array

relaxed = settings(max_examples=100, deadline=None)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
WORDS = st.dictionaries(
    st.text(max_size=6).filter(lambda name: name != "arrays"),
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
ARRAYS = st.dictionaries(
    st.text(max_size=6),
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    max_size=4,
)


def bytes_of(words: dict[str, Any], arrays: dict[str, Array | Blocks]) -> bytes:
    size, pieces = encode(words, arrays)
    whole = b"".join(pieces)
    assert len(whole) == size
    return whole


def raw(words: Any, payload: bytes = b"") -> bytes:
    """A message with whatever words."""
    text = words if isinstance(words, bytes) else json.dumps(words).encode()
    text += b" " * (-(4 + len(text)) % 8)
    return len(text).to_bytes(4, "little") + text + payload


def equal(one: Message, words: dict[str, Any], arrays: dict[str, Array]) -> bool:
    return one.words == words and list(one.arrays) == list(arrays) and all(
        one.arrays[name].dtype == array.dtype and one.arrays[name].shape == array.shape
        and one.arrays[name].tobytes() == array.tobytes() for name, array in arrays.items()
    )


@relaxed
@given(words=WORDS, arrays=ARRAYS)
def test_words_and_arrays_arrive_as_they_were_sent(words: dict[str, Any], arrays: dict[str, Array]) -> None:
    for buffer in (bytes, bytearray, lambda data: memoryview(bytearray(data))):
        assert equal(decode(buffer(bytes_of(words, arrays))), words, arrays)


@relaxed
@given(
    array=hnp.arrays("float32", hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6)),
    cut=st.integers(0, 6), turn=st.booleans(),
)
def test_arrays_of_any_memory_layout_arrive_in_any_number_of_parts(
    array: Array, cut: int, turn: bool
) -> None:
    array = array.T if turn else array[::-1]
    blocks = Blocks(array.dtype, array.shape, iter([array[:cut], array[cut:]]))
    found = decode(bytes_of({"do": 1}, {"plain": array, "blocks": blocks, "last": array}))
    for name in ("plain", "blocks", "last"):
        assert found.arrays[name].tobytes() == array.tobytes() and found.arrays[name].shape == array.shape


@relaxed
@given(words=WORDS, arrays=ARRAYS, cut=st.integers(0, 1 << 20))
def test_a_truncated_message_is_refused_unless_only_padding_is_missing(
    words: dict[str, Any], arrays: dict[str, Array], cut: int
) -> None:
    whole = bytes_of(words, arrays)
    cut %= len(whole)
    try:
        found = decode(whole[:cut])
    except WireError:
        return
    assert len(whole) - cut < 8 and equal(found, words, arrays)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=80))
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except WireError as error:
        assert str(error)


@settings(max_examples=200, deadline=None)
@given(text=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), payload=st.binary(max_size=24))
def test_arbitrary_words_are_a_message_or_refused(text: bytes, payload: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(raw(text, payload))


@settings(max_examples=150, deadline=None)
@given(words=WORDS, arrays=ARRAYS, at=st.integers(0, 1 << 20), flip=st.integers(1, 255))
def test_a_message_with_one_byte_changed_is_a_message_or_refused(
    words: dict[str, Any], arrays: dict[str, Array], at: int, flip: int
) -> None:
    whole = bytearray(bytes_of(words, arrays))
    whole[at % len(whole)] ^= flip
    with contextlib.suppress(WireError):
        decode(whole)


JUNK = st.recursive(
    SCALARS | st.sampled_from([float("inf"), float("nan"), 1 << 62, 10**30, -1, "<f4", "|u1", "O", "<U4", ">f4"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2), max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    listed=JUNK | st.lists(JUNK | st.tuples(st.text(max_size=3), st.sampled_from([*sorted(DTYPES), "O"]), JUNK)),
    payload=st.binary(max_size=32),
)
def test_arbitrary_lists_of_arrays_are_read_or_refused(listed: Any, payload: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(raw({"arrays": listed}, payload))


@pytest.mark.parametrize(
    "shape",
    [
        [float("inf")], [float("nan")], [-1], [2, -1], [1 << 62], [10**30], [0, 10**30], [0, 1 << 62], [1] * 65,
        [0] * 200, [None], [[1]], [{}], None, 3, [1 << 40, 0, 1 << 40],
    ],
    ids=lambda shape: str(shape)[:24],
)
def test_an_array_of_an_impossible_shape_is_refused(shape: Any) -> None:
    with pytest.raises(WireError):
        decode(raw({"arrays": [["a", "<f4", shape]]}, bytes(64)))


@pytest.mark.parametrize(
    "dtype", ["O", "|O", "<U4", "S3", "V8", ">f4", "<M8[s]", "<c8", "<f16", "f4,f4", "", None, 5, []]
)
def test_an_array_that_is_not_of_numbers_is_refused(dtype: Any) -> None:
    with pytest.raises(WireError, match="not allowed"):
        decode(raw({"arrays": [["a", dtype, [1]]]}, bytes(64)))


@pytest.mark.parametrize(
    "words",
    [
        b"", b"null", b"7", b"[]", b'"text"', b"{}", b'{"arrays": 3}', b'{"arrays": [1]}', b'{"arrays": [[1, 2]]}',
        b'{"arrays": {"a": 1}}', b"{", b"\xff\xfe\xfd", b"[" * 100_000, b'{"arrays": []',
        b'{"arrays": [], "x": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda words: words[:24].decode("latin-1"),
)
def test_words_that_are_no_object_with_arrays_are_refused(words: bytes) -> None:
    with pytest.raises(WireError):
        decode(raw(words))


def test_sizes_that_do_not_add_up_are_refused() -> None:
    good = raw({"arrays": []})
    for size in (len(good), MAX_WORDS + 1, (1 << 32) - 1):
        with pytest.raises(WireError, match="cannot hold"):
            decode(size.to_bytes(4, "little") + good[4:])
    with pytest.raises(WireError, match="cannot hold"):
        decode((MAX_WORDS + 1).to_bytes(4, "little") + bytes(MAX_WORDS + 8))
    with pytest.raises(WireError, match="longer than its message"):
        decode(raw({"arrays": [["a", "<f8", [2]]]}, bytes(15)))


def test_an_array_is_a_view_of_the_bytes_that_came() -> None:
    whole = bytearray(bytes_of({}, {"a": np.arange(6, dtype=np.int64)}))
    found = decode(whole).arrays["a"]
    whole[-8:] = (77).to_bytes(8, "little")
    assert found.tolist() == [0, 1, 2, 3, 4, 77]
