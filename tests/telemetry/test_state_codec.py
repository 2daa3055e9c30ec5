from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pappus.errors import RunError, UserError
from pappus.telemetry.checkpoint import load_state, save_state

TORCH_TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]

plain = (
    st.none() | st.booleans() | st.integers() | st.integers(2**63, 2**200) | st.floats() | st.text() | st.binary()
)
dtypes = st.sampled_from(["?", "b", "B", "<u2", "<i4", "<u8", ">i4", ">f8", "<f2", "<f4", "<c16", "<M8[s]"])
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))
scalars = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, ()).map(lambda array: array[()]))
tensors = st.builds(
    lambda dtype, size: torch.arange(size).to(dtype).reshape(-1, 1), st.sampled_from(TORCH_TYPES), st.integers(0, 5)
)
keys = st.text(max_size=5) | st.integers() | st.booleans() | st.tuples(st.integers(), st.text(max_size=3))
nests = st.recursive(
    plain | arrays | scalars | tensors,
    lambda inner: st.lists(inner, max_size=3)
    | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def assert_same(one: object, other: object) -> None:
    """Equal in type, structure, dtype and every bit that has a meaning."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert [(type(key), key) for key in one] == [(type(key), key) for key in other]
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, float):
        assert repr(one) == repr(other), "repr tells every float apart, and -0.0 from 0.0"
    else:
        assert one == other


def round_trip(directory: Path, state: object) -> object:
    save_state(directory, "state", state)
    return load_state(directory, "state")


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=nests)
def test_any_nest_comes_back_exactly(tmp_path, state):
    assert_same(state, round_trip(tmp_path, state))


@pytest.mark.parametrize("dtype", TORCH_TYPES)
def test_every_tensor_type_comes_back(tmp_path, dtype):
    state = {"values": torch.tensor([[0, 1], [1, 0]]).to(dtype), "one": torch.ones((), dtype=dtype)}
    assert_same(state, round_trip(tmp_path, state))


def test_an_optimizer_continues_where_it_was(tmp_path):
    def optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 2)
        return network, torch.optim.Adam(network.parameters())

    def step(network: torch.nn.Module, adam: torch.optim.Optimizer) -> None:
        adam.zero_grad()
        network(torch.ones(3)).sum().backward()
        adam.step()

    network, adam = optimizer()
    step(network, adam)
    saved = {"network": network.state_dict(), "optimizer": adam.state_dict()}
    loaded = round_trip(tmp_path, saved)
    assert list(loaded["optimizer"]["state"]) == [0, 1], "keys are integers again"
    resumed, resumed_adam = optimizer()
    resumed.load_state_dict(loaded["network"])
    resumed_adam.load_state_dict(loaded["optimizer"])
    step(network, adam)
    step(resumed, resumed_adam)
    assert torch.equal(network.weight, resumed.weight)


def test_random_states_continue_the_same_stream(tmp_path):
    numbers, generator = np.random.default_rng(3), torch.Generator().manual_seed(3)
    numbers.random(5)
    loaded = round_trip(tmp_path, {"numpy": numbers.bit_generator.state, "torch": generator.get_state()})
    other, other_generator = np.random.default_rng(), torch.Generator()
    other.bit_generator.state = loaded["numpy"]
    other_generator.set_state(loaded["torch"])
    assert numbers.random() == other.random()
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=other_generator))


def test_an_ordered_dict_comes_back_as_a_dict(tmp_path):
    assert_same({"a": 1}, round_trip(tmp_path, collections.OrderedDict(a=1)))


def test_views_of_one_buffer_are_saved_apart(tmp_path):
    flat = torch.arange(6.0)
    state = {"flat": flat, "head": flat[:2], "transposed": flat.view(2, 3).T, "again": flat}
    assert_same({name: tensor.clone() for name, tensor in state.items()}, round_trip(tmp_path, state))


def test_parameters_and_odd_arrays_come_back_plain(tmp_path):
    read_only = np.arange(4)[::-1]
    read_only.flags.writeable = False
    loaded = round_trip(tmp_path, {"p": torch.nn.Parameter(torch.ones(2)), "a": read_only})
    assert type(loaded["p"]) is torch.Tensor and not loaded["p"].requires_grad
    loaded["a"][0] = 7
    assert loaded["a"].tolist() == [7, 2, 1, 0]


def test_weights_can_be_read_by_anything_that_reads_safetensors(tmp_path):
    save_state(tmp_path, "network", torch.nn.Sequential(torch.nn.Linear(2, 1)).state_dict())
    tensors = safetensors.torch.load_file(tmp_path / "network.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"0.weight": (1, 2), "0.bias": (1,)}


def test_names_that_collide_or_mean_something_else_are_told_apart(tmp_path):
    one, two, three = torch.tensor(1), torch.tensor(2), torch.tensor(3)
    state = {"a": {"b": one}, "a.b": two, "__metadata__": three, "$tuple": [1], "x": {"$tensor": "a.b"}}
    assert_same(state, round_trip(tmp_path, state))


@pytest.mark.parametrize("value", [{1, 2}, object(), 1j, np.array([None]), torch.ones(2).to_sparse()])
def test_what_cannot_be_saved_is_refused_by_its_place(tmp_path, value):
    with pytest.raises(UserError, match=r"state optimizer\.groups\.0 is of type"):
        save_state(tmp_path, "state", {"optimizer": {"groups": [value]}})


def test_a_named_tuple_is_refused_rather_than_flattened(tmp_path):
    pair = collections.namedtuple("pair", "x y")
    with pytest.raises(UserError, match="type pair"):
        save_state(tmp_path, "state", pair(1, 2))


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_missing_half_is_named(tmp_path, suffix):
    save_state(tmp_path, "state", {"x": torch.ones(2)})
    (tmp_path / f"state{suffix}").unlink()
    with pytest.raises(RunError, match=rf"lacks state\{suffix}"):
        load_state(tmp_path, "state")


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("keep", [0, 5, -1, -3])
def test_a_half_written_file_is_an_error_not_a_crash(tmp_path, suffix, keep):
    save_state(tmp_path, "state", {"x": torch.ones(2)})
    path = tmp_path / f"state{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    if suffix == ".json" and keep == -1:  # only the final newline is gone
        assert torch.equal(load_state(tmp_path, "state")["x"], torch.ones(2))
        return
    with pytest.raises(RunError, match="damaged"):
        load_state(tmp_path, "state")


def test_json_that_refers_to_an_unknown_tensor_or_tag_is_damaged(tmp_path):
    save_state(tmp_path, "state", {"x": torch.ones(2)})
    for content in ('{"x": {"$tensor": "y"}}', '{"x": {"$module": "os"}}'):
        (tmp_path / "state.json").write_text(content)
        with pytest.raises(RunError, match="damaged"):
            load_state(tmp_path, "state")


def test_arrays_of_text_come_back(tmp_path: Path) -> None:
    for array in (np.array([[b"+", b"-"], [b"|", b" "]]), np.array(["up", "down"])):
        save_state(tmp_path, "map", {"map": array})
        loaded = load_state(tmp_path, "map")["map"]
        assert loaded.dtype == array.dtype and np.array_equal(loaded, array)
