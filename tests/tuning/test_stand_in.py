"""Envs that cost nothing, as every env must be."""

import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs import VectorEnv
from pappus.envs.vector import make_env
from pappus.tuning.stand_in import BACKEND, StandIn
from pappus.types import ACTION_MASK, ArraySpec, DiscreteAction, EnvSpec
from tests.contracts.env_contract import EnvContract

PICTURES = EnvSpec(ArraySpec((84, 84), "uint8"), DiscreteAction(6), frame_stack=4)
PLACE = ArraySpec((), "int64", (5,))
MASKED = EnvSpec(
    {"observation": ArraySpec((3,), "float32"), "place": PLACE, ACTION_MASK: ArraySpec((2,), "int8")}, DiscreteAction(2)
)


def stand_in(spec: EnvSpec, num_envs: int, seed: int) -> VectorEnv:
    return make_env(StandIn(spec), num_envs, seed, EnvOptions(backend=BACKEND))


class TestStandIn(EnvContract):
    next_step = False
    snapshots = False
    steps = 250

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return stand_in(MASKED, num_envs, seed)


@pytest.mark.parametrize("spec", [PICTURES, MASKED])
def test_it_shows_what_the_spec_says(spec: EnvSpec) -> None:
    env = stand_in(spec, 3, 1)
    assert env.spec == spec
    shown = env.reset().observation
    if spec is MASKED:
        assert shown[ACTION_MASK].all() and shown["place"].max() < 5
    else:
        assert shown.shape == (3, 84, 84) and shown.dtype == np.uint8
