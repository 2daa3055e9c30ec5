"""What a run does next, decided from reports alone; time is injected."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pappus.config import CheckpointConfig, CostConfig, EvaluationConfig, RunConfig, SupervisionConfig
from pappus.kinds import ACTOR, EVALUATOR, LEARNER, RoleKind
from pappus.runtimes.controller import LATE_SECONDS, OVERDUE_SECONDS, Controller
from pappus.systems import find_system
from pappus.telemetry.checkpoint import CheckpointStore, save_state, verify
from pappus.telemetry.doctor_file import read_diagnosis
from pappus.telemetry.meter import Meter
from pappus.telemetry.metrics import Metrics
from pappus.telemetry.run_log import RunLog
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.spending import Spending

KINDS = {"actor-0": ACTOR, "learner": LEARNER, "evaluator": EVALUATOR}


class Quiet:
    """A console that shows nothing."""

    def update(self) -> None: ...

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None: ...

    def event(self, event: object) -> None: ...


class Play:
    """A controller, a clock that the test turns, and a runtime that only takes notes."""

    fallback: CheckpointStore | None = None

    def __init__(self, directory: Path, kinds: Mapping[str, RoleKind] = KINDS, **settings: Any) -> None:
        self.now = 0.0
        self.commands: list[tuple[str, str, int]] = []
        self.oldest_versions: list[int] = []
        self.saves: list[Path] = []
        config: RunConfig = dataclasses.replace(find_system("impala").defaults, env="CartPole-v1", **settings)
        self.run_stats = RunStats(config, kinds, clock=lambda: self.now)
        self.store = CheckpointStore(directory / "checkpoints", keep_last=2)
        log = RunLog(directory, tensorboard=False)
        self.cpu_seconds = 0.0
        meter = Meter(self.Tree(self), clock=lambda: self.now)
        self.controller = Controller(
            config, self.run_stats, log, Quiet(), self.store, clock=lambda: self.now, fallback=self.fallback,  # type: ignore[arg-type]
            spending=Spending(self.run_stats, meter),
        )
        self.controller.started(self)

    class Tree:
        """Processes that have computed as much as the test says."""

        def __init__(self, play: Play) -> None:
            self._play = play

        def cpu_seconds(self) -> float:
            return self._play.cpu_seconds

        def memory(self) -> int:
            return 100

    def command(self, role: str, command: str, argument: int) -> None:
        if command == "from_version":
            self.oldest_versions.append(argument)
        else:
            self.commands.append((role, command, argument))

    def save(self, directory: Path) -> None:
        self.saves.append(directory)

    def finish_save(self) -> None:
        save_state(self.saves[-1], "learner", {"steps": 1})
        self.controller.saved(self.saves[-1])

    def learn(self, steps: int = 1000, updates: int = 1) -> None:
        metrics = Metrics("learner")
        metrics.count("env_steps", steps)
        metrics.count("updates", updates)
        self.controller.report(metrics.drain())

    def act(self, steps: int = 10) -> None:
        metrics = Metrics("actor-0")
        metrics.count("env_steps", steps)
        self.controller.report(metrics.drain())

    def episodes(self, count: int, value: float) -> None:
        metrics = Metrics("actor-0")
        metrics.episodes([value] * count, [10] * count)
        self.controller.report(metrics.drain())

    def evaluated(self, value: float, version: int | None = None) -> None:
        metrics = Metrics("evaluator")
        metrics.gauge("eval/episodic_return", value)
        metrics.gauge("eval/version", self.run_stats.updates if version is None else version)
        self.controller.report(metrics.drain())


def test_a_run_ends_with_a_checkpoint_and_then_an_evaluation(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn()
    play.controller.role_finished("learner")
    assert not play.controller.decide() and len(play.saves) == 1 and not play.commands
    play.finish_save()
    assert not play.controller.decide()
    assert play.commands == [("evaluator", "use_all_cores", 0), ("evaluator", "evaluate", 20)], "training is over"
    assert play.oldest_versions == [1], "no weights older than those that were saved"
    play.evaluated(77.0)
    assert play.controller.decide()
    summary = play.controller.summary()
    assert (summary.exit_reason, summary.eval_return, summary.steps) == ("steps done", 77.0, 1000)
    assert play.store.latest() is not None


def test_an_evaluation_of_older_weights_is_no_answer(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn(updates=9)
    play.controller.role_finished("learner")
    play.controller.decide()
    play.finish_save()
    play.evaluated(3.0, version=8)
    assert not play.controller.decide()
    play.evaluated(77.0, version=9)
    assert play.controller.decide() and play.controller.summary().eval_return == 77.0


def test_an_evaluation_that_never_ends_is_given_up(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.controller.role_finished("learner")
    play.controller.decide()
    play.finish_save()
    play.now = 601.0
    assert play.controller.decide() and play.controller.summary().eval_return is None
    assert any("did not end within 600 s" in str(event) for event in play.run_stats.events)


def test_a_program_without_an_evaluator_ends(tmp_path: Path) -> None:
    play = Play(tmp_path, {"actor-0": ACTOR, "learner": LEARNER})
    play.controller.role_finished("learner")
    play.controller.decide()
    play.finish_save()
    assert play.controller.decide()


def test_the_target_must_be_reached_by_a_hundred_episodes_and_confirmed_greedily(tmp_path: Path) -> None:
    play = Play(tmp_path, target_return=475.0)
    play.learn()
    play.episodes(99, 500.0)
    play.controller.decide()
    assert not play.commands, "99 episodes are not enough"
    play.episodes(1, 500.0)
    play.controller.decide()
    assert len(play.commands) == 1
    play.evaluated(300.0)
    play.controller.decide()
    assert not play.controller.finishing, "the greedy policy misses the target"
    play.controller.decide()
    assert len(play.commands) == 1, "the next attempt waits for more updates"
    play.learn(steps=5000, updates=100)
    play.controller.decide()
    assert len(play.commands) == 2
    play.evaluated(480.0)
    play.controller.decide()
    assert play.controller.exit_reason == "target reached" and play.controller.solved_at_step == 6000


def test_an_interrupt_saves_and_stops_in_every_phase(tmp_path: Path) -> None:
    for phase in ("running", "saving", "evaluating"):
        play = Play(tmp_path / phase)
        if phase != "running":
            play.controller.role_finished("learner")
            play.controller.decide()
        if phase == "evaluating":
            play.finish_save()
            play.controller.decide()
        play.controller.interrupt()
        play.controller.decide()
        assert len(play.saves) == 1
        if phase != "evaluating":
            play.finish_save()
        assert play.controller.decide()


def test_a_save_that_is_under_way_when_the_end_begins_is_followed_by_a_last_one(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.now = 61.0
    play.controller.decide()
    assert len(play.saves) == 1
    play.learn()
    play.controller.interrupt()
    play.controller.decide()
    play.finish_save()
    assert not play.controller.decide(), "what was learnt since belongs into a checkpoint too"
    assert len(play.saves) == 2
    play.finish_save()
    assert play.controller.decide()


def test_an_evaluator_that_died_is_asked_again(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.controller.role_finished("learner")
    play.controller.decide()
    play.finish_save()
    play.controller.role_restarted("evaluator")
    assert play.commands == [("evaluator", "use_all_cores", 0), ("evaluator", "evaluate", 20)] * 2


def test_checkpoints_are_written_on_time_and_the_best_is_marked(tmp_path: Path) -> None:
    play = Play(tmp_path)
    for minute, value in enumerate([10.0, 90.0, 50.0], start=1):
        play.now = 61.0 * minute
        play.learn()
        play.episodes(100, value)
        play.controller.decide()
        play.finish_save()
    best = play.store.best()
    assert best is not None and verify(best)["metadata"]["episodic_return"] == 90.0


def test_the_best_checkpoint_of_a_run_from_data_holds_what_was_evaluated(tmp_path: Path) -> None:
    topology = find_system("dqn@offline").defaults.topology
    play = Play(tmp_path, topology=topology, evaluation=EvaluationConfig(every_steps=100))
    best = []
    for value in (10.0, 90.0, 50.0):
        play.learn(100)
        play.controller.decide()
        play.evaluated(value)
        play.controller.decide()  # a better one is saved at once
        if len(play.saves) > len(best):
            play.finish_save()
            best.append(value)
    assert best == [10.0, 90.0]
    play.now = 61.0
    play.controller.decide()
    play.finish_save()  # on time, of weights that nobody evaluated
    marked = play.store.best()
    assert marked is not None and verify(marked)["metadata"]["episodic_return"] == 90.0


def test_evaluations_come_as_often_as_asked(tmp_path: Path) -> None:
    from pappus.config import EvaluationConfig

    play = Play(tmp_path, evaluation=EvaluationConfig(episodes=3, every_steps=1000))
    for _ in range(3):
        play.learn(steps=1000)
        play.controller.decide()
        play.evaluated(1.0)
        play.controller.decide()
    assert play.commands == [("evaluator", "evaluate", 3)] * 3


def test_a_standstill_is_reported_with_who_waits_for_what(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn()
    play.controller.decide()
    play.now = 31.0
    play.controller.decide()
    assert any("no update for 30 s" in str(event) for event in play.run_stats.events)


def test_a_stall_is_shown_until_it_is_over_and_then_counted(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn()
    play.controller.stalls("nothing moves for 6 s: the learner waits for unrolls from actor-0")
    play.now = 31.0
    play.controller.decide()
    assert not any("no update" in str(event) for event in play.run_stats.events), "the stall says more"
    told = read_diagnosis(tmp_path)[0]
    assert (told.top.what, told.change) == ("stall", None) and told.text.startswith("nothing moves for 6 s")
    play.controller.moves_again(12.0)
    assert read_diagnosis(tmp_path)[0].top.what != "stall"
    assert play.run_stats.stall == "" and play.run_stats.scalars()["charts/stalled_seconds"] == 12.0


def test_the_counts_of_a_checkpoint_are_those_of_its_state_though_the_run_has_gone_on(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn(1000, 10)
    play.now = 100.0
    play.controller.decide()
    play.learn(500, 5)  # while somebody else was still writing
    save_state(play.saves[-1], "learner", {"steps": 1000})
    path = play.controller.saved(play.saves[-1], (1000, 10))
    metadata = verify(path)["metadata"]
    assert (metadata["steps"], metadata["updates"]) == (1000, 10)


def test_time_counts_from_the_first_env_step_and_ends_the_run_with_checkpoint_and_evaluation(tmp_path: Path) -> None:
    play = Play(tmp_path, seconds=20.0)
    play.now = 10.0
    assert not play.controller.decide() and not play.commands, "nobody has stepped an env yet"
    play.learn()
    play.now = 29.0
    play.controller.decide()
    assert not play.commands
    play.now = 30.0
    play.controller.decide()
    assert play.commands == [("learner", "finish", 0)] and not play.saves, "the weights shall rest first"
    play.controller.role_finished("learner")
    play.controller.decide()
    play.finish_save()
    play.evaluated(7.0)
    assert play.controller.decide()
    assert (play.controller.exit_reason, play.controller.summary().eval_return) == ("time is up", 7.0)


def test_a_resumed_run_has_the_seconds_that_are_left_though_its_replay_was_filled_without_an_update(
    tmp_path: Path,
) -> None:
    first = Play(tmp_path / "first", seconds=20.0)
    first.act()
    first.now = 15.0  # of which nobody learns while replay is filled
    first.learn()
    first.controller.interrupt()
    first.controller.decide()
    first.finish_save()
    latest = first.store.latest()
    assert latest is not None
    second = Play(tmp_path / "second", seconds=20.0)
    second.controller.resume(verify(latest)["metadata"])
    second.now = 100.0
    second.act()
    for second.now, told in ((104.0, []), (105.0, [("learner", "finish", 0)])):
        second.learn()
        second.controller.decide()
        assert second.commands == told


def test_who_makes_updates_is_told_again_when_it_comes_back_after_time_is_up(tmp_path: Path) -> None:
    play = Play(tmp_path, seconds=1.0)
    play.learn()
    play.now = 2.0
    play.controller.decide()
    play.controller.role_restarted("learner")
    assert play.commands == [("learner", "finish", 0)] * 2


def test_evaluations_come_by_the_clock_and_say_when_they_were_asked_for(tmp_path: Path) -> None:
    play = Play(tmp_path, evaluation=EvaluationConfig(every_seconds=10.0))
    play.now = 5.0
    play.controller.decide()
    assert not play.commands
    play.learn(300)
    for play.now in (5.0, 14.0, 15.0):
        play.controller.decide()
        play.evaluated(play.now)
    assert len(play.commands) == 2
    play.now = 17.0
    play.controller.decide()
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert (row["eval/step"], row["eval/seconds"], row["eval/episodic_return"]) == (300, 10.0, 15.0)


def test_evaluations_at_given_steps_come_once_each(tmp_path: Path) -> None:
    play = Play(tmp_path, evaluation=EvaluationConfig(at_steps=(2_000, 1_000)))
    for expected in (1, 2, 2):
        play.learn(1_000)
        play.controller.decide()
        play.evaluated(1.0)
        play.controller.decide()
        assert len(play.commands) == expected
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval/step"] for row in rows] == [1_000, 2_000], "a line for each, however little time has passed"


def test_a_learner_that_comes_back_with_an_earlier_state_takes_the_counts_back(tmp_path: Path) -> None:
    play = Play(tmp_path, steps=10_000, evaluation=EvaluationConfig(every_steps=2000))
    for _ in range(5):
        play.learn()
    play.controller.decide()
    assert play.oldest_versions == [5], "an evaluation of version 5 is under way"
    play.controller.rewind(steps=2000, updates=2)
    assert (play.run_stats.env_steps, play.run_stats.updates) == (2000, 2)
    assert play.oldest_versions == [5, 2], "version 5 may never come again"
    assert "continues from 2,000 steps; 3 updates are lost" in str(play.run_stats.events[-1])
    play.evaluated(100.0, version=2)
    play.learn(steps=2000)
    play.controller.decide()
    assert play.oldest_versions == [5, 2, 3], "and evaluations are due at the same steps again"


def test_a_learner_lost_after_its_last_step_has_the_run_go_on(tmp_path: Path) -> None:
    play = Play(tmp_path, steps=3000)
    play.learn(steps=3000)
    play.controller.role_finished("learner")
    play.controller.decide()
    assert play.controller.finishing and len(play.saves) == 1
    play.controller.rewind(steps=1000, updates=1)
    assert not play.controller.finishing
    play.finish_save()  # by the learner that came back
    play.learn(steps=2000)
    play.controller.role_finished("learner")
    play.controller.decide()
    assert len(play.saves) == 2 and play.controller.exit_reason == "steps done"


def test_a_checkpoint_that_cannot_be_written_does_not_keep_the_run_from_its_end(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn()
    play.controller.interrupt()
    play.controller.decide()
    play.controller.save_failed("replay has no place")
    assert play.controller.decide()
    assert "replay has no place; the one before it is kept" in str(play.run_stats.events[-1])


def test_an_interrupted_run_ends_within_its_grace_though_the_checkpoint_never_comes(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn()
    play.controller.interrupt()
    assert not play.controller.decide() and len(play.saves) == 1
    play.now += SupervisionConfig().saving_seconds
    assert play.controller.decide(), "who writes it may hang"
    summary = play.controller.summary()
    assert summary.exit_reason == "interrupted" and summary.to_dict()["unsaved"] is True
    assert "the one before it is kept" in str(play.run_stats.events[-1])


def test_a_checkpoint_that_was_under_way_does_not_keep_an_interrupted_run_from_its_end(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.learn()
    play.now += 60.0
    play.controller.decide()
    assert len(play.saves) == 1
    play.controller.interrupt()
    assert not play.controller.decide()
    play.now += SupervisionConfig().grace_seconds
    assert play.controller.decide()


def test_time_ends_a_run_whose_learner_hangs(tmp_path: Path) -> None:
    play = Play(tmp_path, seconds=10.0)
    play.act()
    play.learn()
    play.now = 10.0
    play.controller.decide()
    assert play.commands == [("learner", "finish", 0)]
    play.now += LATE_SECONDS
    assert not play.controller.decide() and len(play.saves) == 1
    play.now += SupervisionConfig().saving_seconds
    assert play.controller.decide()
    assert play.controller.summary().exit_reason == "time is up"


def test_a_learner_whose_updates_take_minutes_may_finish_the_last_one(tmp_path: Path) -> None:
    play = Play(tmp_path, seconds=400.0, checkpoint=CheckpointConfig(every_seconds=1e9))
    play.act()
    for now in (0.0, 100.0, 300.0):
        play.now = now
        play.learn()
        play.controller.decide()
    play.now = 400.0
    play.controller.decide()
    play.now += 2 * 200.0
    assert not play.controller.decide() and not play.controller.finishing
    play.now += 200.0
    assert not play.controller.decide() and play.controller.finishing


def test_a_run_in_one_thread_that_hangs_is_overdue_when_time_has_been_up_for_long(tmp_path: Path) -> None:
    play = Play(tmp_path, seconds=10.0)
    assert not play.controller.overdue()
    play.act()
    play.now = 10.0 + LATE_SECONDS
    assert not play.controller.overdue()
    play.now += OVERDUE_SECONDS
    assert play.controller.overdue()
    play.controller.interrupt()
    assert not play.controller.overdue(), "once is enough"


def test_a_budget_that_is_spent_ends_the_run_as_time_does(tmp_path: Path) -> None:
    play = Play(tmp_path, cost=CostConfig(budget={"core-hours": 0.01}))
    play.act()
    play.now, play.cpu_seconds = 10.0, 35.0
    assert not play.controller.decide() and not play.commands
    play.now, play.cpu_seconds = 11.0, 36.5
    play.controller.decide()
    assert play.commands == [("learner", "finish", 0)] and not play.saves
    play.learn()
    play.controller.role_finished("learner")
    play.controller.decide()
    play.now, play.cpu_seconds = 12.0, 40.0
    play.finish_save()
    play.evaluated(7.0)
    assert play.controller.decide() and play.controller.over == "budget spent"
    cost = play.controller.summary().extras["cost"]
    assert cost["budget"]["core-hours"]["spent"] * 3600 == pytest.approx(36.5)
    assert cost["cpu_seconds"] == pytest.approx(40.0) and cost["after_training"]["cpu_seconds"] == pytest.approx(3.5)
    metadata = verify(play.store.latest())["metadata"]
    assert 36.5 <= metadata["cost"]["cpu_seconds"] <= 40.0, "so the next part counts on"


def test_one_thread_at_a_time_takes_the_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(tmp_path)
    free: list[bool] = []

    def news() -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(play.controller._telling.acquire, blocking=False).result()
        free.append(taken)
        return ["a disk is full"]

    monkeypatch.setattr(play.controller._storage, "news", news)
    play.controller.speak()
    assert free == [False]
    assert [event.text for event in play.run_stats.events] == ["a disk is full"]
