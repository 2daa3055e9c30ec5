"""The model against rates that were computed by hand."""

import pytest

from pappus.tuning.model import Costs, EnvCost, Line, Shape, predict

MS, US = 1e-3, 1e-6


def costs(
    env: EnvCost | None = None, acting: Line | None = None, training: float = 1 * US, message: float = 0.0,
    cores: int = 2, threads: EnvCost | None = None, others: float = 0.0,
) -> Costs:
    """An env step takes 10 µs and acting 20 µs for each env, unless said otherwise."""
    return Costs(
        env or EnvCost(Line(0, 10 * US), Line(0, 0)), threads, acting or Line(0, 20 * US), {64: training}, others,
        message, cores,
    )


def test_one_thread_adds_up_all_that_a_step_costs() -> None:
    found = predict(costs(training=10 * US, others=10 * US), Shape(1, 16, one_thread=True, items=64))
    assert found.rate == pytest.approx(1 / (50 * US))
    assert found.limit == "one thread"


def test_more_envs_share_what_a_step_costs_once() -> None:
    fixed = costs(acting=Line(90 * US, 0.0), training=0.0)
    one, nine = (predict(fixed, Shape(1, n, one_thread=True, items=64)).rate for n in (1, 9))
    assert one == pytest.approx(1 / (100 * US))
    assert nine == pytest.approx(1 / (20 * US))


def test_an_actor_is_the_limit_where_the_learner_is_faster() -> None:
    found = predict(costs(message=200 * US), Shape(1, 16, items=64, unroll=20))
    cycle = 16 * 30 * US + 200 * US / 20
    assert found == (pytest.approx(16 / cycle), "actors")


def test_the_learner_is_the_limit_where_actors_are_faster() -> None:
    found = predict(costs(training=100 * US, cores=8), Shape(4, 16, items=64))
    assert found == (pytest.approx(10_000), "learner")
    assert predict(costs(training=100 * US, cores=8), Shape(4, 16, learners=2, items=64)).rate == pytest.approx(20_000)


def test_actors_beyond_the_cores_make_no_more_steps() -> None:
    found = predict(costs(training=10 * US), Shape(8, 16, items=64))
    assert found == (pytest.approx(2 / (40 * US)), "cores")


def test_envs_that_sleep_need_no_core_meanwhile() -> None:
    sleeping = EnvCost(Line(0, 0), Line(0, 5 * MS))
    one, eight = (predict(costs(sleeping, Line(0, 0)), Shape(actors, 8, items=64)).rate for actors in (1, 8))
    assert one == pytest.approx(200)  # one after the other
    assert eight == pytest.approx(1600)  # on two cores


def test_envs_that_sleep_in_threads_sleep_at_the_same_time() -> None:
    sleeping, threads = EnvCost(Line(0, 0), Line(0, 5 * MS)), EnvCost(Line(0, 50 * US), Line(5 * MS, 0))
    found = predict(costs(sleeping, Line(0, 0), threads=threads), Shape(1, 20, env_threads=True, items=64))
    assert found.rate == pytest.approx(20 / (5 * MS + 20 * 50 * US))


def test_where_a_batch_needs_the_newest_weights_times_add_up() -> None:
    found = predict(costs(training=20 * US), Shape(2, 8, lockstep=True, items=64))
    assert found.rate == pytest.approx(1 / (15 * US + 20 * US))  # two actors on two cores, then the learner


def test_central_inference_answers_all_actors_with_one_pass() -> None:
    shared = costs(acting=Line(100 * US, 0), training=0.0, cores=16)
    found = predict(shared, Shape(4, 10, central=True, items=64))
    assert found.rate == pytest.approx(40 / (100 * US + 100 * US))
    overlapped = predict(shared, Shape(4, 10, central=True, groups=2, items=64))
    assert overlapped.rate == pytest.approx(40 / (100 * US))


def test_an_update_of_another_size_costs_what_the_nearest_measured_one_does() -> None:
    known = Costs(EnvCost(Line(0, 0), Line(0, 0)), None, Line(0, 0), {64: 2 * US, 256: 1 * US}, 0.0, 0.0, 2)
    assert [known.training_of(items) for items in (16, 64, 100, 200, 1024)] == [2 * US, 2 * US, 2 * US, US, US]


@pytest.mark.parametrize(("points", "line"), [
    ([(1, 3.0), (5, 11.0)], Line(1.0, 2.0)),
    ([(4, 8.0)], Line(0.0, 2.0)),
    ([(1, 5.0), (9, 4.0)], Line(4.0, 0.0)),  # noise: more envs took no longer
    ([(1, 1.0), (2, 4.0)], Line(0.0, 2.0)),  # noise: nothing would be left for no envs
])
def test_a_line_goes_through_what_was_measured_as_far_as_that_can_be(
    points: list[tuple[int, float]], line: Line
) -> None:
    assert Line.through(points) == line
