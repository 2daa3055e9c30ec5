from __future__ import annotations

from typing import Any

import pytest
import torch

from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.networks.build import build_actor_critic
from pappus.networks.modules import MLP, Encoder, Flat
from pappus.networks.torsos import ImpalaDeep, NatureCNN, OneHot
from pappus.types import ACTION_MASK, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Nest

VECTOR = ArraySpec((4,), "float32")
FRAME = ArraySpec((84, 84), "uint8")


def torso(observation: Nest, frame_stack: int = 1, **config: Any) -> Encoder:
    env = EnvSpec(observation, DiscreteAction(2), frame_stack)
    encoder = build_actor_critic(env, NetworkConfig(**config)).torso
    assert isinstance(encoder, Encoder)
    return encoder


def leaf_torsos(encoder: Encoder) -> list[type]:
    return [type(module) for module in encoder.torsos]


def test_auto_reads_vectors_with_an_mlp() -> None:
    encoder = torso(VECTOR)
    assert leaf_torsos(encoder) == [Flat] and isinstance(encoder.trunk, MLP)


@pytest.mark.parametrize("shape", [(84, 84), (36, 36), (96, 72, 3), (4, 84, 84)])
def test_auto_reads_images_with_nature(shape: tuple[int, ...]) -> None:
    encoder = torso(ArraySpec(shape, "uint8"))
    assert leaf_torsos(encoder) == [NatureCNN] and encoder.trunk is None


@pytest.mark.parametrize(
    ("shape", "dtype"), [((7, 7, 3), "uint8"), ((128,), "uint8"), ((84, 3, 84), "uint8"), ((40, 40), "float32")]
)
def test_auto_takes_only_large_byte_arrays_for_images(shape: tuple[int, ...], dtype: str) -> None:
    assert leaf_torsos(torso(ArraySpec(shape, dtype))) == [Flat]


def test_stacked_frames_are_the_channels_of_one_image() -> None:
    (cnn,) = torso(FRAME, frame_stack=4).torsos
    assert isinstance(cnn, NatureCNN) and cnn.pixels.channels == 4


def test_nested_observations_are_joined_by_an_mlp() -> None:
    encoder = torso({"a": FRAME, "b": ArraySpec((2,), "int64", (3, 4)), "c": VECTOR})
    assert leaf_torsos(encoder) == [NatureCNN, OneHot, Flat]
    assert isinstance(encoder.trunk, MLP)


def test_mlp_uses_the_activation_that_was_asked_for() -> None:
    trunk = torso(VECTOR, activation="relu").trunk
    assert trunk is not None
    features = trunk(torch.randn(1, 5, 4))
    assert (features >= 0).all() and (features == 0).any()


def test_impala_deep_can_be_asked_for() -> None:
    assert leaf_torsos(torso(FRAME, torso="impala-deep")) == [ImpalaDeep]


def test_mlp_can_be_asked_for_on_an_image() -> None:
    assert leaf_torsos(torso(FRAME, torso="mlp")) == [Flat]


@pytest.mark.parametrize("name", ["nature", "impala-deep"])
def test_cnn_on_a_vector_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"torso='{name}' needs an image .* shape \[4\]; use torso='mlp'"):
        torso(VECTOR, torso=name)


def test_nature_on_a_small_image_is_refused() -> None:
    with pytest.raises(UserError, match="at least 36 pixels a side"):
        torso(ArraySpec((20, 20), "uint8"), torso="nature")


@pytest.mark.parametrize("config", [{"hidden_sizes": ()}, {"hidden_sizes": (64, 0)}, {"core": "lstm", "core_size": 0}])
def test_layers_without_units_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        torso(VECTOR, **config)


def test_mask_of_the_wrong_size_is_refused() -> None:
    env = EnvSpec({"x": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, MultiDiscreteAction((2, 2)))
    with pytest.raises(UserError, match=r"has shape \[3\], .* 4 choices in total"):
        build_actor_critic(env, NetworkConfig())


def test_mask_of_a_continuous_action_is_refused() -> None:
    env = EnvSpec({"x": VECTOR, ACTION_MASK: ArraySpec((3,), "int8")}, ContinuousAction((3,)))
    with pytest.raises(UserError, match="cannot mask the continuous action"):
        build_actor_critic(env, NetworkConfig())
