"""`precision=auto` is resolved by measuring, whatever the algorithm learns from."""

from __future__ import annotations

import pytest
import torch

from pappus.algorithms.crossq import CrossQ, CrossQConfig
from pappus.algorithms.iql import IQL, IQLConfig
from pappus.api import configure, describe
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.networks.many_mlps import ManyMLPs
from pappus.precision import mixing_pays
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.telemetry.metrics import Metrics
from pappus.types import ArraySpec, ContinuousAction, EnvSpec

ENV = EnvSpec(ArraySpec((3,), "float32"), ContinuousAction((1,)))


@pytest.mark.parametrize("system", ["impala", "ppo"])
def test_auto_is_resolved_for_networks_that_see_pictures(system: str) -> None:
    env = "benchmarks.synthetic:frames"
    run = describe(configure(system, env, {"actors": 2, "envs_per_actor": 4}), env)
    assert run.config.precision in ("float32", "bfloat16")


@pytest.mark.parametrize(("system", "env"), [("ppo", "CartPole-v1"), ("apex-dqn", "benchmarks.synthetic:frames")])
def test_auto_is_float32_where_nothing_is_gained(system: str, env: str) -> None:
    assert describe(configure(system, env, {"actors": 2}), env).config.precision == "float32"


@pytest.mark.parametrize("able", [False, True])
def test_auto_multiplies_wide_layers_in_bfloat16_where_the_cpu_can(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: able)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    wide, narrow = (IQL(IQLConfig(), ENV, NetworkConfig(hidden_sizes=(size, size))) for size in (256, 64))
    normed = CrossQ(CrossQConfig(critic_sizes=(256, 256)), ENV, NetworkConfig(hidden_sizes=(64, 64)))
    assert mixing_pays(wide, 256) == mixing_pays(normed, 256) == able
    assert not mixing_pays(wide, 64) and not mixing_pays(narrow, 256)


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_mixed_is_for_the_networks_of_the_learner(precision: str) -> None:
    algorithm = IQL(IQLConfig(), ENV, NetworkConfig(hidden_sizes=(8, 8)))
    step = GradientStep(Metrics("learner"), algorithm, LearnerSettings(OptimizerConfig(), 1, 1, precision=precision))
    parts = [module for module in step.network.modules() if isinstance(module, ManyMLPs)]
    assert len(parts) == 3 and all(part.mixed == (precision == "mixed") for part in parts)
    assert all(weight.dtype == torch.float32 for weight in step.network.parameters())
