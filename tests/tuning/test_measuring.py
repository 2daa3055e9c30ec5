"""What the metrics of a run say about the cost of a step."""

from typing import Any

import pytest

from pappus.api import configure
from pappus.config import EnvOptions
from pappus.envs.gym_backend import is_one_by_one
from pappus.systems import find_system
from pappus.tuning import measuring
from pappus.tuning.measuring import Parts, acting_of, measure_env, measure_message, other_kinds, per_step
from pappus.tuning.window import Window

METRICS = {
    "charts/SPS": 1000.0, "actor/env_steps_per_second": 1000.0, "learner/env_steps_per_second": 1000.0,
    "actor/busy": 0.5, "actor/in_envs": 0.1, "actor/waiting_for_a_core": 0.25, "learner/busy": 0.2, "replay/busy": 0.05,
    "evaluator/busy": 0.0,
}


def test_the_time_without_a_core_and_that_in_envs_do_not_count() -> None:
    assert per_step(METRICS, ("actor",)) == pytest.approx((0.5 - 0.1) * (1 - 0.25 / 0.5) / 1000)
    assert per_step(METRICS, ("learner",)) == pytest.approx(0.2 / 1000)


def test_acting_is_a_pass_for_all_envs_be_it_in_an_actor_or_in_a_server() -> None:
    assert acting_of(METRICS, 16) == pytest.approx(16 * 0.2e-3)
    central = {**METRICS, "inference/busy": 0.3, "inference/env_steps_per_second": 1000.0}
    assert acting_of(central, 16) == pytest.approx(16 * 0.5e-3)


def test_other_roles_are_those_that_a_step_needs_besides() -> None:
    assert other_kinds(METRICS) == ["replay"]


@pytest.mark.parametrize(("env", "one_by_one"), [
    ("CartPole-v1", False), ("MountainCar-v0", True), ("benchmarks.synthetic:frames", False),
    ("benchmarks.synthetic:sleeping", True),
])
def test_threads_can_step_what_gymnasium_makes_one_by_one(env: str, one_by_one: bool) -> None:
    assert is_one_by_one(env, EnvOptions()) == one_by_one


@pytest.mark.parametrize(("making", "seconds", "many"), [(0.0, 15.0, 32), (1.0, 65.0, 6), (1.0, 15.0, 2)])
def test_of_envs_that_are_slow_to_make_fewer_are_made(
    making: float, seconds: float, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def stepped(env: Any, options: Any, count: int, threads: bool) -> tuple[float, float, float]:
        made.append(count)
        return 10e-6 * count, 0.0, 1e-4 + making * count

    monkeypatch.setattr(measuring, "_stepped", stepped)
    cost = measure_env("CartPole-v1", EnvOptions(), seconds=seconds)
    assert made == [1, many] and cost.making == pytest.approx(making, abs=2e-4)
    assert cost.computing.each == pytest.approx(10e-6)


def parts(monkeypatch: pytest.MonkeyPatch, windows: list[Window]) -> tuple[Parts, list[Any]]:
    """Parts of CartPole with impala, and the configs that they were measured with."""
    seen: list[Any] = []

    def watch(config: Any, *_: object) -> Window:
        seen.append(config)
        return windows[min(len(seen), len(windows)) - 1]

    monkeypatch.setattr(measuring, "watch", watch)
    config = configure("impala", "CartPole-v1", {"actors": 1, "device": "cpu"})
    return Parts(config, "CartPole-v1", find_system("impala")), seen


def test_acting_is_measured_with_few_and_many_envs_and_each_size_of_update_once(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = {**METRICS, "learner/busy": 0.001}
    found, seen = parts(monkeypatch, [Window(1000.0, cheap)])
    found.measure([64, 128])
    assert [config.envs_per_actor for config in seen] == [4, 64, 128]
    assert found.training == {64: 1e-6, 128: 1e-6}


def test_of_a_large_network_smaller_updates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {**METRICS, "learner/busy": 1.0}  # a millisecond for each env step
    found, seen = parts(monkeypatch, [Window(1000.0, slow)])
    found.measure([64])
    assert [config.envs_per_actor for config in seen] == [4, 15]  # 0.3 s of updates of 20 steps
    assert found.training == {64: 1e-3}


def test_where_whoever_steps_envs_trains_all_of_it_is_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = {"charts/SPS": 1000.0, "worker/busy": 0.5, "worker/env_steps_per_second": 1000.0}
    found, _ = parts(monkeypatch, [Window(1000.0, workers)])
    found.measure([64])
    assert found.training == {64: 0.0}
    assert found.acting.at(64) == pytest.approx(64 * 0.5e-3)


def test_ctrl_c_is_not_lost_while_costs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = parts(monkeypatch, [Window(1000.0, METRICS, interrupted=True)])
    with pytest.raises(KeyboardInterrupt):
        found.measure([64])


def test_a_message_takes_time() -> None:
    assert 0 < measure_message() < 1
