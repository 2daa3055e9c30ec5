"""Who waits for whom, on programs made by hand; what is usual, with a clock that the test turns."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pappus.config import SupervisionConfig
from pappus.edges.queue import QueueEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.kinds import ACTOR, LEARNER, REPLAY
from pappus.roles.role import Role
from pappus.runtimes.heartbeats import Heartbeats
from pappus.runtimes.inline_watch import InlineWatch
from pappus.runtimes.stacks import LIBRARIES, OURS, at_work, frames_of, of_role, place
from pappus.runtimes.stall_watch import Pace, StallWatch
from pappus.runtimes.stalls import Doing, WaitGraph, explain
from pappus.topologies.program import Program
from tests.contracts.queue_contract import SPEC
from tests.contracts.runtime_contract import FakeController
from tests.runtimes.test_heartbeats import said


def build(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing is built here")


def program(actors: int) -> Program:
    """Actors send unrolls to a learner, and follow its weights."""
    made = Program("toy")
    unrolls, weights = made.connect(QueueEdge("unrolls-0", SPEC, actors, 2)), made.connect(WeightsEdge("weights", 4))
    for i in range(actors):
        made.add(ACTOR, build, index=i, sink=unrolls.sink(i), weights=weights.reader())
    made.add(LEARNER, build, source=unrolls.source(), weights=weights.writer())
    return made


def with_replay() -> Program:
    made = Program("toy")
    replay: Any = ReplayEdge("replay", None)  # type: ignore[arg-type]
    made.connect(replay)
    made.add(ACTOR, build, index=0, sink=replay.sink(1))
    made.add(REPLAY, build, host=replay.host())
    made.add(LEARNER, build, source=replay.source())
    return made


def told(made: Program, first: tuple[str, ...] = ("learner",), **doing: Doing) -> str:
    return explain({role.replace("_", "-"): one for role, one in doing.items()}, WaitGraph(made), first).sentence


SUPERVISION = SupervisionConfig()
STOPPED = Doing("actor", silent=6.0, state="T")
WAITS = Doing("learner", waits_for="unrolls")
WANTS_WEIGHTS = Doing("actor", waits_for="weights")


def test_a_reader_waits_for_the_writer_and_not_for_other_readers() -> None:
    graph = WaitGraph(program(3))
    assert graph.whom("actor-1", "weights") == ["learner"] == graph.whom("actor-1", "unrolls slots")
    assert graph.whom("learner", "unrolls") == ["actor-0", "actor-1", "actor-2"]
    assert graph.whom("actor-0", "its last gradient") == ["learner"], "any of its edges may be meant"


def test_the_one_who_is_stopped_is_found_behind_those_who_wait() -> None:
    assert told(program(3), actor_0=STOPPED, actor_1=WANTS_WEIGHTS, actor_2=WANTS_WEIGHTS, learner=WAITS) == (
        "the learner waits for unrolls from actor-0; actor-0 has been stopped by a signal for 6 s; "
        "actor-1 and actor-2 wait for weights"
    )


def test_several_of_a_kind_are_told_together() -> None:
    all_stopped = {f"actor_{i}": STOPPED for i in range(16)}
    assert told(program(16), **all_stopped, learner=WAITS) == (
        "the learner waits for unrolls from actor-0 and 15 more; actor-0 and 15 more have been stopped by a signal "
        "for 6 s"
    )


def test_a_stuck_learner_is_named_with_the_place_and_those_who_wait_for_it() -> None:
    stuck = Doing("learner", silent=7.2, state="S", place="loss (mine.py:31), called from step (pappus/x.py:1)")
    slots = Doing("actor", waits_for="unrolls slots")
    assert told(program(1), actor_0=slots, learner=stuck) == (
        "the learner has been stuck for 7 s, asleep in loss (mine.py:31), called from step (pappus/x.py:1); "
        "actor-0 waits for unrolls slots"
    )


def test_a_stopped_process_explains_more_than_one_that_is_silent_since_it_waits_for_it() -> None:
    silent, stopped = Doing("learner", silent=6.0, state="S"), Doing("replay", silent=6.0, state="T")
    assert told(with_replay(), (), actor_0=Doing("actor", waits_for="replay"), replay=stopped, learner=silent) == (
        "actor-0 waits for the replay; the replay has been stopped by a signal for 6 s"
    )


def test_who_waits_for_commands_keeps_nobody_waiting() -> None:
    waits = Doing("actor", waits_for="replay")
    idle, learner = Doing("replay", waits_for="commands"), Doing("learner", waits_for="replay")
    assert told(with_replay(), actor_0=waits, replay=idle, learner=learner) == (
        "the learner waits for replay from actor-0, actor-0 for replay from the learner: all wait for each other"
    )


def test_what_comes_from_outside_the_run_is_said_so() -> None:
    made = Program("toy")
    made.add(LEARNER, build, source=made.connect(QueueEdge("requests", SPEC, 1, 1)).source())
    assert told(made, learner=Doing("learner", waits_for="requests")) == (
        "the learner waits for requests, which nobody in this run provides"
    )


@pytest.mark.parametrize(("one", "how"), [
    (Doing("actor", runs=False), "is starting"),
    (Doing("actor", silent=31.0, runs=False), "has been starting for 31 s"),
    (Doing("actor", silent=31.0, runs=False, place="reset (a.py:3)"), "has been starting for 31 s, in reset (a.py:3)"),
    (Doing("actor", silent=6.0, state="R"), "has said nothing for 6 s, computing"),
    (Doing("actor", silent=6.0), "has said nothing for 6 s"),
    (Doing("actor"), "is at work"),
])
def test_what_is_known_of_a_role_that_waits_for_nobody(one: Doing, how: str) -> None:
    assert told(program(1), actor_0=one, learner=WAITS) == (
        f"the learner waits for unrolls from actor-0; actor-0 {how}"
    )


def test_nothing_is_a_stall_that_the_run_does_all_the_time() -> None:
    pace = Pace(5.0)
    pace.moved(8.0, trained=True)
    assert pace.allowed() == 12.0, "the start took 8 s, and another such pause is none"
    for now in (10.0, 30.0, 50.0):
        pace.moved(now, trained=True)
    assert pace.allowed() == 40.0, "an update takes 20 s"
    assert not pace.stands_still(89.0) and pace.stands_still(91.0)


def test_before_the_first_update_a_run_has_more_time() -> None:
    pace = Pace(5.0)
    pace.moved(1.0, trained=False)
    assert not pace.stands_still(20.0) and pace.stands_still(22.0)


def test_a_pause_that_a_signal_made_does_not_become_usual() -> None:
    pace = Pace(5.0)
    pace.moved(0.0, trained=True)
    pace.moved(60.0, trained=True, usual=False)
    assert pace.stands_still(66.0)


DUMP = """\
Thread 0x00007f0000000001 (most recent call first):
  File "{lib}/socket.py", line 706 in readinto
  File "{ours}/roles/seed_actor.py", line 3 in step
  File "{ours}/runtimes/waiting.py", line 9 in wait
  File "{ours}/runtimes/role_process.py", line 250 in drive
Thread 0x00007f0000000002 (most recent call first):
  File "{lib}/socket.py", line 706 in readinto
  File "/home/me/my_env.py", line 31 in step
  File "{ours}/envs/gym_vector.py", line 171 in step
  File "{ours}/runtimes/role_process.py", line 248 in drive
Current thread 0x00007f0000000003 (most recent call first):
  File "{ours}/polling.py", line 20 in readable
  File "{ours}/runtimes/role_process.py", line 230 in drive_all
"""


def test_of_all_threads_the_one_that_steps_a_role_is_looked_at_and_the_users_code_is_named() -> None:
    frames = of_role(at_work(DUMP.format(lib=LIBRARIES[0], ours=OURS)))
    assert place(frames) == "readinto (socket.py:706), called from step (my_env.py:31)"
    assert place(frames[1:]) == "step (my_env.py:31), called from step (pappus/envs/gym_vector.py:171)"
    assert at_work("no dump") == [] and place([]) == ""


def test_the_stack_of_a_thread_of_this_process_reads_the_same() -> None:
    assert place(frames_of(sys._getframe())[:1]).startswith("test_the_stack_of_a_thread_of_this_process")


class TellsOnly(FakeController):
    """Takes notes of what a watcher says."""

    def moves_again(self, seconds: float) -> None:
        self.stall = ""

    def speak(self) -> None: ...


def test_the_only_thread_is_looked_at_when_a_role_does_not_come_back_from_a_step() -> None:
    now, rounds, controller = [0.0], [1], TellsOnly()
    watch = InlineWatch(controller, 5.0, lambda: rounds[0], lambda: now[0])  # type: ignore[arg-type]
    role = Role("actor-0")
    role.metrics.count("steps")
    watch.begin([role], [role])

    def look_for(seconds: int) -> None:
        for _ in range(seconds):
            now[0] += 1.0
            watch.look()

    look_for(6)
    assert controller.stall == ""
    look_for(1)
    told = "nothing moves for 6 s: actor-0 has been stuck in _tell (pappus/runtimes/inline_watch.py:"
    assert controller.events[0].startswith(f": {told}") and "called from look_for" in controller.stall
    rounds[0] += 1
    look_for(1)
    assert controller.events[1:] == [": actor-0 moves again after 7 s"] and controller.stall == ""


def test_the_only_thread_may_take_its_time_for_what_is_no_step_of_a_role() -> None:
    now, controller = [0.0], TellsOnly()
    watch = InlineWatch(controller, 5.0, lambda: 1, lambda: now[0])  # type: ignore[arg-type]
    role = Role("actor-0")
    role.metrics.clock.waiting("its checkpoint")
    watch.begin([role], [])
    for now[0] in range(100):
        watch.look()
    assert controller.events == []


class Watched:
    """Three processes of a program, whose reports and states the test makes up, a second after the other."""

    def __init__(self) -> None:
        made, self.controller, self.now = program(2), TellsOnly(), 0.0
        self.states: dict[str, str] = {}
        self.processes = {
            spec.name: SimpleNamespace(group=spec.name, specs=[spec], pid=1, heartbeats=Heartbeats([spec], SUPERVISION))
            for spec in made.roles
        }
        self.watch = StallWatch(made, self.processes, self.controller, 5.0, self)  # type: ignore[arg-type]

    def state(self, process: Any) -> str:
        return self.states.get(process.group, "S")

    def ask_for_stack(self, process: Any) -> float:
        return 1.0

    def stack(self, process: Any) -> str:
        return DUMP.format(lib=LIBRARIES[0], ours=OURS)

    def go_on(self, seconds: int, **waits: str) -> None:
        """The roles of `waits` report each second: what they wait for, or an empty text where they get on."""
        for _ in range(seconds):
            self.now += 1.0
            for name, what in waits.items():
                role = name.replace("_", "-")
                message: Any = said(role, *([] if what else ["env_steps"]))
                message["report"] |= {"busy": 0.0, "waiting": {what: 1.0} if what else {}}
                self.processes[role].heartbeats.hear(message, self.now)
                self.watch.hear(message["report"], self.now)
            self.watch.look(self.now)


def test_a_stall_has_one_line_when_it_begins_and_one_when_it_ends() -> None:
    run = Watched()
    run.go_on(3, actor_0="", actor_1="", learner="")
    run.states["actor-0"] = "T"
    run.go_on(12, actor_1="unrolls slots", learner="unrolls")
    told = "the learner waits for unrolls from actor-0; actor-0 has been stopped by a signal for "
    assert run.controller.stall.startswith(f"nothing moves for 12 s: {told}12 s; actor-1 waits for unrolls slots")
    run.go_on(2, actor_0="", actor_1="", learner="")
    lines = run.controller.events
    assert len(lines) == 2 and told in lines[0] and lines[1].startswith(": actor-0 moves again after 1")
    assert run.controller.stall == ""


def test_who_reads_of_a_stall_in_the_log_finds_it_with_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    run, known = Watched(), list[str]()
    monkeypatch.setattr(run.controller, "event", lambda text, role="": known.append(run.controller.stall))
    run.go_on(3, actor_0="", actor_1="", learner="")
    run.go_on(12, actor_1="unrolls slots", learner="unrolls")
    assert len(known) == 1 and known[0].startswith("nothing moves for ")


def test_one_role_that_is_stuck_while_the_others_go_on_is_told_with_its_stack() -> None:
    run = Watched()
    run.go_on(3, actor_0="", actor_1="", learner="")
    run.go_on(9, actor_1="", learner="")
    sentence, *stack = run.controller.events[0].splitlines()
    assert sentence.startswith(": actor-0 has been stuck for ") and sentence.endswith("; the others go on")
    assert ", asleep in readinto (socket.py:706), called from step (my_env.py:31)" in sentence
    assert len(stack) == 3 and 'my_env.py", line 31 in step' in stack[1]


def test_a_run_that_ends_during_a_stall_is_not_said_to_move() -> None:
    run = Watched()
    run.go_on(3, actor_0="", actor_1="", learner="")
    run.go_on(12, actor_1="unrolls slots", learner="unrolls")
    run.watch.excuse(run.now)
    assert len(run.controller.events) == 1 and run.controller.stall == ""


def test_a_run_that_ends_or_saves_may_stand_still() -> None:
    run = Watched()
    run.go_on(3, actor_0="", actor_1="", learner="")
    for _ in range(60):
        run.watch.excuse(run.now)
        run.go_on(1, actor_0="unrolls slots", actor_1="unrolls slots", learner="its checkpoint")
    assert run.controller.events == []
