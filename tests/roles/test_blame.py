"""A client whose experience makes a batch not finite is found, named to the inference server, and dropped there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pappus.accelerator import one_thread
from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.algorithms.r2d2 import R2D2, R2D2Config
from pappus.config import NetworkConfig, OptimizerConfig, ReplayConfig
from pappus.edges.queue import RingQueue
from pappus.errors import NonFiniteError
from pappus.experience import SMALLEST_PRIORITY, ItemBatch, Sequence
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.roles.blame import to_blame
from pappus.roles.epoch_training import EpochTraining
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import MOST_SKIPPED, Learner, Publication, Training, UnrollTraining
from pappus.roles.replay_training import ReplayTraining
from pappus.telemetry.metrics import Metrics
from pappus.transports.memory import HeapBlock
from pappus.types import ORIGIN, OWN, Array, ArraySpec, Timestep, Unroll, map_leaves
from tests.roles.learner_tools import ENV, NETWORK, N, Recorded, T, algorithm, record, weights_of
from tests.roles.replay_tools import ENV as ITEM_ENV
from tests.roles.replay_tools import FakeSource, random_batch
from tests.roles.test_inference_server import Setup as Inference

GUEST = 7 << 40
SKIPS = LearnerSettings(OptimizerConfig(clip_norm=0.5), 10**6, 1, skips_non_finite=True)


class Suspects:
    """The way from a learner to the inference server, and what lies in it."""

    def __init__(self, capacity: int = 4) -> None:
        spec = ArraySpec((), "int64")
        queue = RingQueue("suspects", spec, 1, capacity, HeapBlock(*RingQueue.footprint(spec, 1, capacity)))
        self.sink, self.source = queue.sink(0), queue.source()

    def named(self) -> list[int]:
        found = []
        while (slots := self.source.take(1)) is not None:
            slot: Any = slots[0]
            found.append(int(slot))
            self.source.release()
        return found


def bad_columns(*bad: int) -> Callable[[Array, bool], bool]:
    return lambda columns, tame: tame or not set(columns.tolist()) & set(bad)


@pytest.mark.parametrize(
    ("origins", "is_finite", "expected"),
    [
        ([OWN, 5, 5, 6], bad_columns(2), [5]),
        ([OWN, 5, 6, 6], bad_columns(1, 3), [5, 6]),
        ([5, 5], bad_columns(0), [5]),
        ([OWN, 5], bad_columns(0), []),
        ([OWN, 5], lambda columns, tame: True, None),
        ([OWN, 5], lambda columns, tame: False, []),
        ([OWN, 5, 6], lambda columns, tame: tame or len(columns) < 3 or 1 not in columns, [5, OWN, 6][:1]),
    ],
    ids=["one", "two", "the only one", "own envs", "a batch of another learner", "the weights", "only together"],
)
def test_who_is_to_blame(origins: list[int], is_finite: Any, expected: list[int] | None) -> None:
    found = to_blame(np.array(origins), is_finite)
    assert found == expected or (expected and found is not None and set(expected) <= set(found))


def unrolls_of(origins: list[int], broken: tuple[int, ...], count: int = 1) -> list[Unroll]:
    """Unrolls of envs of these origins; what some columns show overflows."""
    unrolls = record(count)
    for unroll in unrolls:
        unroll.valid[:] = True
        unroll.behaviour[ORIGIN] = np.broadcast_to(np.array(origins), (T, N)).copy()
        unroll.reward[1, list(broken)] = np.inf
    return unrolls


def unroll_learner(source: Recorded, suspects: Suspects, epochs: bool = False) -> Learner:
    subject: Any = PPO(PPOConfig(epochs=2, minibatches=3), ENV, NETWORK) if epochs else algorithm()
    gradient = GradientStep(Metrics("learner"), subject, SKIPS)
    training: Training = (
        EpochTraining(subject, source, gradient, 1) if epochs else UnrollTraining(subject, source, gradient, 1)
    )
    return Learner("learner", gradient, training, Publication(None), suspects.sink)


def run(subject: Learner) -> None:
    with one_thread():
        while subject.step() is None:
            pass


@pytest.mark.parametrize("epochs", [False, True], ids=["vtrace", "ppo"])
def test_a_learner_names_the_client_and_goes_on_with_the_weights_that_it_had(epochs: bool) -> None:
    suspects, unrolls = Suspects(), unrolls_of([OWN, GUEST, 3], (1,), 2)
    if epochs:
        for unroll in unrolls:
            unroll.behaviour["value"] = np.zeros((T, N), np.float32)
    subject = unroll_learner(Recorded(unrolls), suspects, epochs)
    before = weights_of(subject)
    run(subject)
    assert set(suspects.named()) == {GUEST} and np.isfinite(weights_of(subject)).all()
    if not epochs:
        assert np.array_equal(weights_of(subject), before)
    report = subject.metrics.drain()
    assert report["counts"]["batches_skipped"] == 2 and report["events"][0].endswith("and 1 client is to blame")


def test_batches_of_clients_that_are_to_blame_never_stop_the_run() -> None:
    suspects = Suspects(capacity=2)
    subject = unroll_learner(Recorded(unrolls_of([OWN, GUEST, 3], (1,), 2 * MOST_SKIPPED)), suspects)
    run(subject)
    assert subject.metrics.drain()["counts"]["batches_skipped"] == 2 * MOST_SKIPPED
    assert suspects.named() == [GUEST, GUEST], "what finds no room is named again later"


def test_for_batches_of_the_runs_own_envs_it_stops_as_before() -> None:
    suspects = Suspects()
    subject = unroll_learner(Recorded(unrolls_of([OWN, GUEST, 3], (0,), MOST_SKIPPED)), suspects)
    with pytest.raises(NonFiniteError, match="batch in a row"):
        run(subject)
    assert suspects.named() == []


def test_weights_that_overflow_with_anything_are_blamed_on_nobody() -> None:
    suspects = Suspects()
    subject = unroll_learner(Recorded(unrolls_of([GUEST] * N, (), MOST_SKIPPED)), suspects)
    subject._gradient.flat.values.detach().mul_(1e30)
    with pytest.raises(NonFiniteError, match="batch in a row"):
        run(subject)
    assert suspects.named() == []


def sequence_batch(random: np.random.Generator) -> ItemBatch:
    subject: Any = sequences()
    rows, states = 4, subject.build_network().initial_state(4)
    draw = random.normal
    length = subject.experience.burn_in + subject.experience.length
    items = Sequence(
        draw(size=(length, rows, 3)).astype(np.float32), np.zeros((length, rows), bool),
        np.zeros((length, rows), np.int64), draw(size=(length, rows)).astype(np.float32),
        np.ones((length, rows), np.float32), np.ones((length, rows), bool),
        map_leaves(lambda leaf: leaf.numpy(), states),
    )
    return ItemBatch(np.arange(4), items, np.ones(4, np.float32), 5.0)


def sequences() -> R2D2:
    network = NetworkConfig(hidden_sizes=(4,), core="lstm", core_size=4)
    return R2D2(R2D2Config(burn_in=1, length=4, period=2), ITEM_ENV, network)


@pytest.mark.parametrize(
    ("make", "batch", "column"),
    [
        (lambda: DQN(DQNConfig(), ITEM_ENV, NetworkConfig(hidden_sizes=(4,))), random_batch, (1,)),
        (sequences, sequence_batch, (slice(None), 1)),
    ],
    ids=["transitions", "sequences"],
)
def test_items_of_replay_tell_whose_envs_showed_them(make: Any, batch: Any, column: Any) -> None:
    subject, source, suspects = make(), FakeSource(), Suspects()
    settings = replace(SKIPS, optimizer=OptimizerConfig(anneal=False))
    gradient = GradientStep(Metrics("learner"), subject, settings)
    training = ReplayTraining(subject, source, None, gradient, 100)  # type: ignore[arg-type]
    learner = Learner("learner", gradient, training, Publication(None), suspects.sink)
    assert learner.step() is None
    before, drawn = weights_of(learner), batch(np.random.default_rng(1))
    drawn.items.reward[column] = np.inf
    source.batches.append(drawn._replace(origin=np.array([OWN, GUEST, 3, OWN])))
    assert learner.step() is None and np.array_equal(weights_of(learner), before)
    assert suspects.named() == [GUEST]
    priorities = source.updates[-1][1]
    assert priorities[1] == SMALLEST_PRIORITY and (priorities[[0, 2, 3]] > SMALLEST_PRIORITY).all()


@pytest.mark.parametrize("make", [lambda: DQN(DQNConfig(), ITEM_ENV, NETWORK), sequences], ids=["dqn", "r2d2"])
def test_a_table_keeps_whose_envs_showed_a_step(make: Any) -> None:
    subject: Any = make()
    layout = layout_for(ITEM_ENV, subject, subject.build_network().state_spec, origins=True)
    table = layout.table(ReplayConfig(capacity=100, warm_up=1, samples_per_insert=1.0, tolerance=1000.0), 8)
    edge = DirectReplay(ReplaySpec(layout, table, 4000, 8, 0.4, 0))
    sink, envs = edge.sink(2), 2
    rest = map_leaves(lambda leaf: leaf.numpy(), subject.build_network().initial_state(envs))
    behaviour = {name: np.zeros((envs, *spec.shape), spec.dtype) for name, spec in subject.behaviour.items()}
    seen = Timestep(
        np.zeros((envs, 3), np.float32), np.zeros(envs, bool), np.zeros(envs, np.float32), np.ones(envs, np.float32),
        np.ones(envs, bool),
    )
    for _ in range(80):
        assert sink.ready()
        sink.record(seen, rest, np.zeros(envs, np.int64), {**behaviour, ORIGIN: np.array([OWN, GUEST])}, seen)
    drawn = edge.take()
    assert drawn is not None and set(drawn.origin.tolist()) <= {OWN, GUEST} and len(drawn.origin) == 8


@pytest.mark.parametrize("place", ["host", "device"])
def test_the_inference_server_drops_whom_a_learner_names(place: str) -> None:
    setup, suspects = Inference(place), Suspects()
    setup.server._suspects = suspects.source
    setup.ask("a", 1.0, first=True, origin=GUEST)
    setup.work()
    slot: Any = suspects.sink.acquire()
    slot[...] = GUEST
    suspects.sink.commit()
    setup.work()
    assert setup.request_server.dropped == [GUEST]
    (state,) = setup.server._group_states.values()
    assert state.recorded_behaviour()[ORIGIN].tolist() == [GUEST] and ORIGIN not in state.behaviour


def test_a_lone_learner_stops_when_it_cannot_find_again_what_was_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    suspects = Suspects()
    subject = unroll_learner(Recorded(unrolls_of([OWN, GUEST, 3], (1,), MOST_SKIPPED)), suspects)
    monkeypatch.setattr(subject._training, "blamed", lambda: None)
    with pytest.raises(NonFiniteError, match="batch in a row"):
        run(subject)
