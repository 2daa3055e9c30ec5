"""What may be chosen: only what can run, and learns as the preset says."""

from dataclasses import replace

import pytest

from pappus.config import RunConfig
from pappus.configured import configured
from pappus.machine import with_actors
from pappus.settings import parse
from pappus.systems import find_system
from pappus.tuning.candidates import Setting, Space, learns_alone, setting_of, shape_of, with_defaults


def reference(system: str, env: str = "CartPole-v1", words: str = "", cores: int = 2) -> RunConfig:
    config = parse(configured(find_system(system), env), words.split())
    return with_actors(replace(config, device="cpu"), cores)


def space(system: str, words: str = "", cores: int = 2, **more: object) -> Space:
    replays = find_system(system).algorithm.learns_from_replay
    return Space(reference(system, words=words, cores=cores), cores, replays, **more)  # type: ignore[arg-type]


SYSTEMS = ("impala", "seed-vtrace", "ppo", "ppo@seed", "a3c", "apex-dqn", "dqn", "gorila-dqn", "seed-r2d2")


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_setting_learns_from_as_much_per_update_as_the_preset(system: str) -> None:
    found = space(system)
    settings = found.settings()
    items = found.reference.topology.items_per_update(found.reference)
    assert len(settings) > 1
    for setting in settings:
        config = setting.applied(found.reference)
        assert config.topology.items_per_update(config) == items
        assert config.unroll_length == found.reference.unroll_length


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_the_preset_chooses_is_among_them(system: str) -> None:
    found = space(system)
    assert setting_of(found.reference, found.replays) in found.settings()


def test_policies_lag_by_twice_as_many_updates_at_most_unless_more_is_allowed() -> None:
    lags = []
    for allowed in ((), ("lag",)):
        found = space("impala", allowed=allowed)
        configs = [setting.applied(found.reference) for setting in found.settings()]
        usual = found.reference.topology.policy_lag(found.reference)
        lags.append(max(config.topology.policy_lag(config) for config in configs) / usual)
    assert lags == [2.0, 4.0]


@pytest.mark.parametrize(("system", "most"), [("apex-dqn", 64), ("seed-r2d2", 32), ("dqn", 16), ("impala", 128)])
def test_there_are_not_many_more_envs_than_usual(system: str, most: int) -> None:
    assert max(one.actors * one.envs for one in space(system).settings()) == most


def test_batches_grow_only_where_that_is_allowed() -> None:
    sizes = [{one.batch_size for one in space("impala", allowed=allowed).settings()} for allowed in ((), ("batch",))]
    assert sizes == [{64}, {64, 128, 256}]


def test_updates_per_step_are_fewer_only_where_that_is_allowed() -> None:
    found = [{one.per_insert for one in space("dqn", allowed=allowed).settings()} for allowed in ((), ("updates",))]
    assert found == [{0.0}, {0.0, 4.0, 2.0}]


def test_what_a_user_gives_stays() -> None:
    found = space("impala", "--actors 2 --runtime local", fixed=("actors", "runtime"))
    assert {(one.actors, one.runtime) for one in found.settings()} == {(2, "local")}
    assert len({one.envs for one in found.settings()}) > 1


def test_envs_that_wait_get_more_actors_and_threads() -> None:
    computing, waiting = space("impala", one_by_one=True), space("impala", one_by_one=True, waits=True)
    most = [max(one.actors for one in found.settings()) for found in (computing, waiting)]
    assert most == [4, 32]
    assert not any(one.threads for one in computing.settings())
    assert any(one.threads == one.envs == 64 for one in waiting.settings())


def test_one_thread_is_no_choice_where_the_learner_has_a_gpu() -> None:
    found = Space(replace(reference("impala"), device="cuda"), 16, False)
    assert {one.runtime for one in found.settings()} == {"local"}


def test_learning_is_compared_with_the_preset_and_not_with_what_a_file_says_of_actors() -> None:
    plain = configured(find_system("impala"), "CartPole-v1")
    bad = replace(plain, actors=7, envs_per_actor=3, batch_size=32)
    asked = with_defaults(bad, plain, fixed=("actors",))
    assert (asked.actors, asked.envs_per_actor, asked.batch_size) == (7, 64, 32)


def test_a_setting_becomes_options_but_for_what_is_given_already() -> None:
    words = Setting(2, 16, "local", threads=16, batch_size=64).words(fixed=("actors",))
    assert "--actors" not in words
    assert "--envs-per-actor 16 --runtime local" in " ".join(words)
    config = parse(reference("impala", words="--actors 2"), words)
    assert (config.actors, config.envs_per_actor, config.env_options.threads, config.batch_size) == (2, 16, 16, 64)


def test_the_model_sees_what_a_setting_means() -> None:
    config = reference("seed-vtrace")
    setting = Setting(2, 32, "local", groups=2, inference_in="process", batch_size=64)
    shape = shape_of(setting, setting.applied(config))
    assert (shape.central, shape.groups, shape.items, shape.unroll) == (True, 2, 64, 20)
    ppo = reference("ppo")
    assert shape_of(setting_of(ppo, False), ppo).lockstep


@pytest.mark.parametrize("system", ["gorila-dqn", "a3c"])
def test_actors_that_train_stay_as_many_also_those_of_a_file(system: str) -> None:
    found = space(system, words="--actors 3", cores=8)
    assert {one.actors for one in found.settings()} == {3}
    file = reference(system, words="--actors 3 --runtime local")
    asked = with_defaults(file, reference(system), fixed=())
    assert (asked.actors, asked.runtime) == (3, "auto")


def test_a_worker_of_a3c_keeps_its_envs() -> None:
    found = space("a3c")
    assert learns_alone(found.reference)
    assert {(one.envs, one.batch_size) for one in found.settings()} == {(8, 0)}
