"""What `auto` chooses, on machines that are not here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from pappus import api, machine
from pappus.api import configure, system_here
from pappus.config import AUTO, RunConfig
from pappus.errors import UserError
from pappus.machine import PROBE_ENVS, PROBE_SECONDS, Machine, _kind_of_step, chosen_words, fit
from pappus.presets import LOCOMOTION
from pappus.settings import override, parse
from pappus.systems import find_system
from pappus.telemetry.usage import ThreadClock
from pappus.types import ACTION_MASK
from pappus.validation import validate

LAPTOP, SERVER, GPU_BOX = Machine(2), Machine(16), Machine(16, "NVIDIA H200")
FRAMES = "benchmarks.synthetic:frames"


def fitted(system: str, env: str, on: Machine, **settings: Any) -> tuple[RunConfig, str]:
    return fit(configure(system, env, settings), env, find_system(system), on)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All envs count as slow."""
    monkeypatch.setattr(machine, "_kind_of_step", lambda config, env: "slow")
    yield


@pytest.mark.parametrize(
    ("system", "actors"),
    [("impala", 1), ("seed-vtrace", 1), ("ppo", 1), ("apex-dqn", 1), ("dqn", 1), ("a3c", 2), ("gorila-dqn", 2)],
)
def test_two_cores_have_use_for_one_actor_beside_the_learner(system: str, actors: int) -> None:
    config, line = fitted(system, "CartPole-v1", LAPTOP)
    assert (config.actors, config.device) == (actors, "cpu")
    assert line.startswith(f"2 cores: {actors} actor{'s' * (actors > 1)} with {config.envs_per_actor} envs")
    validate(config)


@pytest.mark.parametrize(
    ("system", "actors"),
    [("impala", 15), ("seed-vtrace", 14), ("ppo", 15), ("ppo@seed", 14), ("apex-dqn", 14), ("dqn", 1)],
)
def test_slow_envs_get_the_cores_that_other_roles_leave(system: str, actors: int, slow: None) -> None:
    config, line = fitted(system, "CartPole-v1", SERVER)
    assert config.actors == actors and "whose steps are slow" in line
    validate(config)


@pytest.mark.parametrize(("system", "actors"), [("impala", 4), ("ppo", 1), ("apex-dqn", 1), ("a3c", 16)])
def test_cheap_envs_are_stepped_by_few_actors(system: str, actors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_kind_of_step", lambda config, env: "cheap")
    config, line = fitted(system, "CartPole-v1", SERVER)
    assert config.actors == actors and "whose steps are cheap" in line


@pytest.mark.parametrize(("micros", "kind"), [(49.0, "cheap"), (51.0, "slow")])
def test_a_step_of_fifty_microseconds_is_slow_even_if_others_took_longer(
    micros: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.Work, "seconds", lambda self: PROBE_SECONDS)  # it computed all the time
    took = PROBE_ENVS * np.array([1e-3, 1e-6 * micros, 1e-3])  # the others waited for a core
    begun = np.linspace(0.0, 0.9 * PROBE_SECONDS, len(took))
    looks = np.stack([begun, begun, begun + took], 1).ravel()  # before each step, as it begins, and when it is done
    clock = iter([0.0, *looks, PROBE_SECONDS]).__next__
    assert _kind_of_step(configure("ppo", "CartPole-v1"), "CartPole-v1", clock) == kind


SLEEPING = "benchmarks.synthetic:sleeping"


def test_an_env_that_sleeps_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadClock, "read", lambda self: (0.0, 0.0))  # whatever else runs on this machine
    assert _kind_of_step(configure("ppo", SLEEPING), SLEEPING) == "waiting"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All envs count as waiting."""
    monkeypatch.setattr(machine, "_kind_of_step", lambda config, env: "waiting")
    yield


@pytest.mark.parametrize(("system", "envs"), [("impala", 64), ("appo", 64), ("seed-vtrace", 128), ("seed-r2d2", 16)])
def test_envs_that_wait_are_spread_over_more_actors_and_learning_stays_as_it_is(
    system: str, envs: int, waiting: None
) -> None:
    config, line = fitted(system, "CartPole-v1", LAPTOP)
    before = override(config, {"actors": 1, "envs_per_actor": envs})
    assert (config.actors, config.actors * config.envs_per_actor) == (8, envs)
    assert config.topology.items_per_update(config) == before.topology.items_per_update(before)
    assert config.topology.policy_lag(config) == before.topology.policy_lag(before)
    assert line.endswith("which wait for something outside: spread over 8 actors, with the same batches")
    validate(config)


@pytest.mark.parametrize(("system", "actors", "inline"), [
    ("apex-dqn", 1, False), ("r2d2", 1, False), ("gorila-dqn", 2, False), ("a3c", 2, False), ("dqn", 1, True),
    ("ppo", 1, True), ("ppo@seed", 1, True),
])
def test_envs_that_wait_are_not_spread_where_policies_would_lag_more_or_one_thread_does_everything(
    system: str, actors: int, inline: bool, waiting: None
) -> None:
    config, line = fitted(system, "CartPole-v1", LAPTOP)
    assert (config.actors, config.inline) == (actors, inline)
    assert line.endswith("which wait for something outside")


def test_processes_that_are_asked_for_share_the_envs_that_wait(waiting: None) -> None:
    config, line = fitted("ppo", "CartPole-v1", LAPTOP, runtime="local")
    assert (config.actors, config.envs_per_actor) == (8, 2) and "spread over 8 actors" in line


def test_one_thread_waits_for_each_env_however_many_actors_there_are(waiting: None) -> None:
    config, _ = fitted("impala", SLEEPING, LAPTOP, runtime="inline")
    assert config.actors == 1


def test_runs_side_by_side_get_the_actors_that_were_chosen_once_and_their_envs(waiting: None) -> None:
    asked = configure("impala", SLEEPING)
    words = chosen_words(asked, fit(asked, SLEEPING, find_system("impala"), LAPTOP)[0])
    assert words[:4] == ["--actors", "8", "--envs-per-actor", "8"]


@pytest.mark.parametrize(
    ("system", "actors"), [("seed-vtrace", 15), ("ppo@seed", 15), ("impala", 15), ("seed-r2d2", 15)]
)
def test_pictures_are_learnt_from_on_the_gpu(system: str, actors: int, slow: None) -> None:
    config, line = fitted(system, FRAMES, GPU_BOX)
    assert config.device == "cuda" and config.actors == actors
    assert "on cuda (NVIDIA H200): the network sees pictures" in line


@pytest.mark.parametrize(("system", "settings"), [("a3c", {}), ("gorila-dqn", {}), ("impala", {"learners": 2})])
def test_what_cannot_use_the_gpu_stays_on_the_cpu(system: str, settings: dict[str, Any]) -> None:
    config, line = fitted(system, FRAMES, GPU_BOX, **settings)
    assert config.device == "cpu" and "on cpu: " in line and "GPU" in line
    validate(config)


def test_the_inline_runtime_stays_on_the_cpu_and_says_why() -> None:
    config, line = fitted("impala", FRAMES, GPU_BOX, actors=1, runtime="inline")
    assert config.device == "cpu" and "on cpu: the inline runtime computes on the CPU, to be deterministic" in line


def test_small_networks_stay_on_the_cpu() -> None:
    config, line = fitted("ppo", "CartPole-v1", GPU_BOX)
    assert config.device == "cpu" and "on cpu: the network is small" in line


@pytest.mark.parametrize(("actors", "each"), [(1, 128), (4, 32), (7, 18), (8, 16), (14, 10), (15, 8), (100, 1)])
def test_envs_in_total_are_shared_among_the_actors(actors: int, each: int) -> None:
    config, _ = fitted("ppo", "CartPole-v1", LAPTOP, actors=actors, envs=128)
    assert config.envs_per_actor == each


@pytest.mark.parametrize(("actors", "each"), [(1, 16), (4, 16), (5, 8), (8, 8), (15, 4), (64, 1), (100, 1)])
def test_many_actors_have_fewer_envs_each_where_all_together_are_limited(actors: int, each: int) -> None:
    limited: dict[str, Any] = {"envs_per_actor": 16, "max_envs": 64, "batch_size": 16}
    config, _ = fitted("impala", "CartPole-v1", LAPTOP, actors=actors, **limited)
    assert config.envs_per_actor == each
    validate(config)


def test_envs_per_actor_that_are_given_replace_what_a_preset_says_of_all_envs() -> None:
    total = override(find_system("ppo").defaults, {"envs": 128, "max_envs": 64})
    given = parse(total, ["--envs-per-actor", "4"])
    assert (given.envs, given.max_envs) == (0, 0)
    assert parse(total, ["--actors", "4"]).envs == 128
    assert parse(total, ["--envs-per-actor", "4", "--max-envs", "8"]).max_envs == 8
    with pytest.raises(UserError, match="give --envs or the others"):
        parse(total, ["--envs", "128", "--max-envs", "64"])
    ranged = parse(total, ["--actors", "4..64", "--envs-per-actor", "16", "--max-envs", "64"])
    assert fit(ranged, "CartPole-v1", find_system("ppo"), LAPTOP)[0].envs_per_actor == 16, "four actors may be all"


def test_what_is_given_is_not_chosen() -> None:
    config, line = fitted("impala", FRAMES, GPU_BOX, actors=3, device="cpu")
    assert (config.actors, config.device, line) == (3, "cpu", "")
    assert fit(config, FRAMES, find_system("impala"), GPU_BOX) == (config, ""), "a resumed run stays what it was"


def test_auto_is_a_word_on_the_command_line_and_in_python() -> None:
    defaults = find_system("impala").defaults
    assert defaults.actors == AUTO and parse(parse(defaults, ["--actors", "3"]), ["--actors", "auto"]).actors == AUTO
    assert configure("impala", "CartPole-v1", {"actors": "auto"}).actors == AUTO
    with pytest.raises(UserError, match="actors=-1 must not be negative"):
        validate(configure("impala", "CartPole-v1", {"actors": -1}))


PONG = "ALE/Pong-v5"


def here(asked: str, env: str = PONG, on: Machine = GPU_BOX, **settings: Any) -> str:
    """The pair that is trained on that machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "machine_for", lambda config: on)
        return system_here(asked, configure(asked, env, settings), settings).pair


def test_a_named_system_takes_the_topology_that_the_preset_wants_on_a_gpu() -> None:
    assert here("ppo") == here("ppo", device="cuda") == "ppo@seed" and here("a2c") == "a2c@seed"
    assert here("ppo", on=SERVER) == "ppo@sync"
    assert here("ppo", device="cpu") == "ppo@sync", "a CPU is asked for"
    assert here("ppo", **{"topology.stragglers": 0}) == "ppo@sync", "what is given belongs to sync"
    assert here("ppo", learners=2) == here("ppo", runtime="inline") == "ppo@sync", "no GPU for these"
    assert here("ppo", "CartPole-v1") == "ppo@sync"
    assert here("ppo@sync") == "ppo@sync", "the topology is asked for"


def test_presets_for_a_gpu_apply_only_where_the_learner_computes_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs(asked: str, on: Machine, **settings: Any) -> int:
        monkeypatch.setattr(api, "machine_for", lambda config: on)
        chosen = system_here(asked, configure(asked, PONG, settings), settings)
        config: Any = configure(chosen, PONG, settings).algorithm
        return int(config.epochs)

    assert epochs("impala", GPU_BOX) == epochs("vtrace@seed", GPU_BOX) == 16
    assert epochs("seed-appo", SERVER, device="cuda") == 16, "a GPU is asked for"
    assert epochs("impala", SERVER) == epochs("impala", GPU_BOX, device="cpu") == 1
    assert epochs("impala", GPU_BOX, runtime="inline") == epochs("impala", GPU_BOX, learners=2) == 1
    assert epochs("impala", GPU_BOX, **{"algorithm.epochs": 2}) == 2, "what is given counts"


@pytest.mark.parametrize("body", LOCOMOTION)
def test_locomotion_has_many_envs_and_large_batches_on_a_gpu(
    body: str, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(on: Machine) -> Any:
        monkeypatch.setattr(api, "machine_for", lambda config: on)
        system = system_here("fast-td3", configure("fast-td3", f"{body}-v5"), [])
        return fit(configure(system, f"{body}-v5"), f"{body}-v5", system, on)[0]

    config = chosen(GPU_BOX)
    assert (config.device, config.precision) == ("cuda", "bfloat16") and config.actors * config.envs_per_actor == 128
    updates = config.topology.replay.samples_per_insert * 128 / config.batch_size
    assert (config.batch_size, updates, config.algorithm.reward_scale) == (32_768, 2, 0.1)
    config = chosen(SERVER)
    assert (config.device, config.batch_size, config.algorithm.reward_scale) == ("cpu", 1_024, 0.1)


@pytest.mark.parametrize("actors", [1, 2, 3, 4, 7, 15, 32, 64])
@pytest.mark.parametrize("system", ["impala", "seed-vtrace", "appo", "seed-appo"])
def test_the_atari_preset_for_a_gpu_suits_any_number_of_actors(
    system: str, actors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "machine_for", lambda config: GPU_BOX)
    settings: Any = {"actors": actors, "device": "cuda"}
    chosen = system_here(system, configure(system, PONG, settings), settings)
    config, _ = fit(configure(chosen, PONG, settings), PONG, chosen, GPU_BOX)
    config.topology.settled(config).check(config)  # raises if it cannot be
    assert config.actors * config.envs_per_actor <= 64


def test_a_system_on_another_topology_keeps_its_settings_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "machine_for", lambda config: GPU_BOX)
    a2c = system_here("a2c", configure("a2c", PONG), [])
    assert (a2c.defaults.envs_per_actor, a2c.defaults.unroll_length) == (32, 16)
    assert find_system(a2c.defaults.system).pair == "a2c@seed"


@pytest.mark.parametrize(("cores", "actors"), [(8, 6), (12, 10), (16, 15), (48, 30), (64, 60), (96, 60)])
def test_actors_share_envs_evenly(cores: int, actors: int, slow: None) -> None:
    settings: Any = {"envs": 120, "device": "cuda"}
    config, _ = fit(configure("ppo@seed", FRAMES, settings), FRAMES, find_system("ppo@seed"), Machine(cores, "GPU"))
    assert config.actors == actors and config.actors * config.envs_per_actor == 120


def test_envs_in_total_and_envs_per_actor_exclude_each_other_except_in_the_config_of_a_run() -> None:
    defaults = find_system("ppo").defaults
    with pytest.raises(UserError, match="give --envs or the others"):
        parse(defaults, ["--envs", "128", "--envs-per-actor", "4"])
    assert override(defaults, {"envs": 120, "envs_per_actor": 8, "actors": 15}).envs == 120
    with pytest.raises(UserError, match="envs=-5 must not be negative"):
        validate(configure("ppo", "CartPole-v1", {"envs": -5, "actors": 1, "device": "cpu"}))


def test_runs_that_start_together_choose_once() -> None:
    config = configure("ppo", "CartPole-v1", {})
    fitted_one, _ = fit(config, "CartPole-v1", find_system("ppo"), LAPTOP)
    assert chosen_words(config, fitted_one) == ["--actors", "1", "--device", "cpu"]
    assert chosen_words(fitted_one, fitted_one) == []


def test_the_env_is_timed_with_actions_that_it_allows() -> None:
    env = "tests.test_machine:full_columns"
    clock = iter([0.0, 0.0, 0.0, 1.0, PROBE_SECONDS]).__next__
    assert _kind_of_step(configure("ppo", env), env, clock) != "cheap", "it took a second, and raised nothing"


def full_columns() -> gym.Env[Any, Any]:
    return FullColumns()


class FullColumns(gym.Env[Any, Any]):
    """Raises where an action is forbidden, and forbids the first ones."""

    observation_space = gym.spaces.Dict(
        {"board": gym.spaces.Box(0, 1, (2,)), ACTION_MASK: gym.spaces.Box(0, 1, (3,), np.int8)}
    )
    action_space = gym.spaces.Discrete(3)

    def _shown(self) -> dict[str, Any]:
        return {"board": np.zeros(2, np.float32), ACTION_MASK: np.array([0, 0, 1], np.int8)}

    def reset(self, **_: Any) -> Any:
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        assert action == 2, "that column is full"
        return self._shown(), 0.0, False, False, {}


class Sleepy(gym.Env[Any, Any]):
    """Never ends."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_run_says_what_was_chosen(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    api.train("ppo", Sleepy, steps=64, envs_per_actor=2, unroll_length=8, run_dir=tmp_path / "run", **{
        "evaluation.max_seconds": 0.1, "evaluation.episodes": 1,  # type: ignore[typeddict-item]
    })
    assert "auto: " in capsys.readouterr().out
    assert "actors: 1\n" in (tmp_path / "run" / "config.yaml").read_text()
