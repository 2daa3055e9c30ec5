"""The flat weights are written by name, and are the same flat weights when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pappus.config import NetworkConfig
from pappus.layout import Part, cut, named, size_of
from pappus.networks.build import build_actor_critic
from pappus.networks.flat import FlatParameters
from pappus.telemetry.checkpoint import load_state, save_state
from pappus.telemetry.state_digest import digest
from pappus.types import ArraySpec, DiscreteAction, EnvSpec

IMAGE = EnvSpec(ArraySpec((1, 36, 36), "uint8"), DiscreteAction(3))


def image_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_actor_critic(IMAGE, NetworkConfig(core="lstm", core_size=8))


def test_weights_are_stored_under_the_names_of_the_module(tmp_path: Path) -> None:
    network = image_network(0)
    flat = FlatParameters(network)
    save_state(tmp_path, "learner", {"weights": flat.values, "steps": 3}, flat.layout)
    stored = load_file(tmp_path / "learner.safetensors")
    other = image_network(1)
    other.load_state_dict({name.removeprefix("weights."): tensor for name, tensor in stored.items()})
    assert all(torch.equal(one, two) for one, two in zip(network.parameters(), other.parameters(), strict=True))
    assert {tuple(stored[f"weights.torso.torsos.0.{name}.weight"].shape) for name in ("conv1",)} == {(32, 1, 8, 8)}


def test_read_weights_are_the_flat_ones_to_the_bit(tmp_path: Path) -> None:
    flat = FlatParameters(image_network(0))
    assert any(part.channels_last for part in flat.layout), "convolutions lie otherwise in the buffer than in the file"
    state = {"weights": flat.values, "optimizer": {"weights": torch.ones(3)}}
    save_state(tmp_path, "learner", state, flat.layout)
    assert digest(load_state(tmp_path, "learner")) == digest(state)


def test_a_checkpoint_with_flat_weights_is_read(tmp_path: Path) -> None:
    save_state(tmp_path, "learner", {"weights": torch.arange(5.0)})
    assert torch.equal(load_state(tmp_path, "learner")["weights"], torch.arange(5.0))


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_side_by_side_are_the_whole_buffer(shards: int, tmp_path: Path) -> None:
    flat = FlatParameters(image_network(0))
    sizes = [flat.size // shards + (i < flat.size % shards) for i in range(shards)]
    layouts = cut(flat.layout, sizes)
    assert [size_of(layout) for layout in layouts] == sizes
    for i, (piece, layout) in enumerate(zip(flat.values.split(sizes), layouts, strict=True)):
        save_state(tmp_path, f"server-{i}", {"weights": piece}, layout)
    read = [load_state(tmp_path, f"server-{i}")["weights"] for i in range(shards)]
    assert torch.equal(torch.cat(read), flat.values)


def test_a_tensor_that_is_cut_says_which_part_it_is() -> None:
    layout = (Part("a", (2, 3)), Part("b", (4,)))
    assert cut(layout, [2, 8]) == [(Part("a[0:2]", (2,)),), (Part("a[2:6]", (4,)), Part("b", (4,)))]
    assert cut(layout, [6, 4]) == [(layout[0],), (layout[1],)]


def test_named_tensors_are_views_of_the_buffer() -> None:
    flat = torch.zeros(10)
    named(flat, (Part("a", (2, 3)), Part("b", (4,))))["b"].fill_(1)
    assert flat.tolist() == [0.0] * 6 + [1.0] * 4
