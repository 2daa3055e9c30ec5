"""`precision=auto` is resolved by measuring, whatever the algorithm learns from."""

from __future__ import annotations

import pytest

from pappus.api import configure, describe


@pytest.mark.parametrize("system", ["impala", "ppo"])
def test_auto_is_resolved_for_networks_that_see_pictures(system: str) -> None:
    env = "benchmarks.synthetic:frames"
    run = describe(configure(system, env, {"actors": 2, "envs_per_actor": 4}), env)
    assert run.config.precision in ("float32", "bfloat16")


@pytest.mark.parametrize(("system", "env"), [("ppo", "CartPole-v1"), ("apex-dqn", "benchmarks.synthetic:frames")])
def test_auto_is_float32_where_nothing_is_gained(system: str, env: str) -> None:
    assert describe(configure(system, env, {"actors": 2}), env).config.precision == "float32"
