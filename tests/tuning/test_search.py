"""The order of trials and the choice, with rates and times that are given."""

from collections.abc import Callable, Mapping

from pappus.tuning.candidates import Setting
from pappus.tuning.model import Prediction
from pappus.tuning.search import Measured, Search, Trial

SMALL, MIDDLE, LARGE, HUGE = (Setting(1, envs, "local") for envs in (1, 16, 64, 256))
INLINE = Setting(1, 16, "inline")


class Machine:
    """Each trial takes as long as is said, and reaches what is said."""

    def __init__(self, rates: Mapping[Setting, float | Callable[[], float]], seconds: float = 5.0) -> None:
        self.now, self.tried = 0.0, list[Setting]()
        self._rates, self._seconds = rates, seconds

    def measure(self, setting: Setting) -> Measured:
        self.now += self._seconds
        self.tried.append(setting)
        rate = self._rates[setting]
        return Measured(rate if isinstance(rate, float) else rate())

    def search(self, predictions: Mapping[Setting, float], end: float, **more: object) -> Search:
        made = {setting: Prediction(rate, "") for setting, rate in predictions.items()}
        return Search(made, self.measure, lambda: self.now, end, **more)  # type: ignore[arg-type]


def first(setting: Setting, predicted: float) -> Trial:
    return Trial(setting, Prediction(predicted, ""))


def test_nothing_is_tried_for_which_there_is_no_time() -> None:
    machine = Machine({SMALL: 10.0, MIDDLE: 90.0})
    searched = machine.search({SMALL: 10.0, MIDDLE: 100.0}, 60.0, takes=lambda setting: 61.0)
    assert searched.run(first(MIDDLE, 100.0)) is None and not machine.tried and not searched.trials
    machine.now = 61.0
    assert machine.search({MIDDLE: 100.0}, 60.0).run(first(MIDDLE, 100.0)) is None and not machine.tried


def test_the_most_promising_is_tried_first_and_the_fastest_chosen() -> None:
    machine = Machine({SMALL: 10.0, MIDDLE: 90.0, LARGE: 200.0})
    best = machine.search({SMALL: 10.0, MIDDLE: 100.0, LARGE: 200.0}, 60.0).run(first(MIDDLE, 100.0))
    assert machine.tried == [MIDDLE, LARGE]  # SMALL is hopeless
    assert best is not None and best.setting == LARGE


def test_predictions_are_corrected_by_what_was_measured_near_by() -> None:
    """Processes are five times slower than predicted: one thread is, relatively, promising."""
    machine = Machine({MIDDLE: 20.0, LARGE: 21.0, INLINE: 50.0})
    search = machine.search({MIDDLE: 100.0, LARGE: 105.0, INLINE: 60.0}, 10.0)
    best = search.run(first(MIDDLE, 100.0))
    assert machine.tried == [MIDDLE, INLINE]
    assert best is not None and best.setting == INLINE


def test_where_all_is_faster_than_predicted_others_are_still_tried() -> None:
    machine = Machine({MIDDLE: 400.0, INLINE: 420.0})
    search = machine.search({MIDDLE: 100.0, INLINE: 100.0}, 60.0)
    best = search.run(first(MIDDLE, 100.0))
    assert machine.tried[:2] == [MIDDLE, INLINE]
    assert best is not None and best.setting == INLINE


def test_two_that_are_close_are_measured_again() -> None:
    lucky = iter([100.0, 80.0])
    machine = Machine({MIDDLE: lambda: next(lucky), LARGE: 95.0})
    best = machine.search({MIDDLE: 100.0, LARGE: 100.0}, 60.0).run(first(MIDDLE, 100.0))
    assert machine.tried == [MIDDLE, LARGE, MIDDLE, LARGE]
    assert best is not None and best.setting == LARGE


def test_of_settings_that_are_as_fast_the_one_is_chosen_that_costs_least_in_learning() -> None:
    machine = Machine({MIDDLE: 99.0, LARGE: 100.0})
    price = {MIDDLE: 1.0, LARGE: 6.0}
    search = machine.search({MIDDLE: 100.0, LARGE: 100.0}, 60.0, price=lambda setting: price[setting])
    best = search.run()
    assert best is not None and best.setting == MIDDLE


def test_no_trial_begins_that_would_end_too_late() -> None:
    machine = Machine(dict.fromkeys((SMALL, MIDDLE, LARGE, HUGE), 100.0))
    machine.search(dict.fromkeys((SMALL, MIDDLE, LARGE, HUGE), 100.0), 12.0).run()
    assert machine.tried == [SMALL, MIDDLE]
    assert machine.now <= 12.0


def test_a_setting_that_cannot_run_is_not_chosen() -> None:
    def measure(setting: Setting) -> Measured:
        return Measured(0.0, error="no memory") if setting == LARGE else Measured(50.0)

    predictions = {LARGE: Prediction(200.0, ""), MIDDLE: Prediction(100.0, "")}
    search = Search(predictions, measure, lambda: 0.0, 60.0)
    best = search.run()
    assert best is not None and best.setting == MIDDLE
    assert [trial.failed for trial in search.trials] == [True, False]


def test_a_start_that_learns_otherwise_is_measured_and_never_chosen() -> None:
    machine = Machine({HUGE: 500.0, MIDDLE: 100.0})
    search = machine.search({MIDDLE: 100.0}, 60.0)
    best = search.run(first(HUGE, 500.0))
    assert best is not None and best.setting == MIDDLE
    assert [trial.setting for trial in search.trials] == [HUGE, MIDDLE]


def test_ctrl_c_keeps_the_best_so_far() -> None:
    answers = iter([Measured(80.0), Measured(90.0, interrupted=True)])
    predictions = {one: Prediction(100.0, "") for one in (MIDDLE, LARGE)}
    search = Search(predictions, lambda setting: next(answers), lambda: 0.0, 60.0)
    best = search.run()
    assert search.interrupted
    assert best is not None and best.setting == MIDDLE
    assert [trial.setting for trial in search.trials] == [MIDDLE]


def test_the_same_figures_lead_to_the_same_order() -> None:
    rates = {SMALL: 90.0, MIDDLE: 95.0, LARGE: 80.0, HUGE: 60.0, INLINE: 70.0}
    runs = []
    for _ in range(2):
        machine = Machine(rates)
        machine.search(dict.fromkeys(rates, 100.0), 60.0).run()
        runs.append(machine.tried)
    assert runs[0] == runs[1]
