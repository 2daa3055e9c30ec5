"""Which versions of the weights reach whom."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pappus.roles import learner
from pappus.roles.learner import PUBLISH_SECONDS, Publication
from tests.roles.test_learner import Spy


class Clock:
    """Time that the test sets."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(learner, "time", made)
    return made


def publish(publication: Publication, version: int, last: bool = False) -> None:
    publication.publish(torch.zeros(1), version, last)


def test_every_version_is_published_where_nobody_shares_the_device(clock: Clock) -> None:
    spy = Spy()
    publication = Publication(spy)
    for version in range(3):
        publish(publication, version)
    assert spy.versions == [0, 1, 2]


def test_nearby_gets_every_version_and_others_one_now_and_then_and_the_last(clock: Clock) -> None:
    spy, nearby = Spy(), Spy()
    publication = Publication(spy, nearby)
    for version in range(3):
        publish(publication, version)
    clock.now += PUBLISH_SECONDS
    publish(publication, 3)
    publish(publication, 4, last=True)
    assert nearby.versions == [0, 1, 2, 3, 4] and spy.versions == [0, 3, 4]


def test_where_copies_take_time_weights_are_published_now_and_then_and_the_last(clock: Clock) -> None:
    spy = Spy()
    publication = Publication(spy, seldom=True)
    for version in range(3):
        publish(publication, version)
    clock.now += PUBLISH_SECONDS
    publish(publication, 3)
    publish(publication, 4, last=True)
    assert spy.versions == [0, 3, 4]


def test_it_lacks_what_the_first_learner_has_not_published() -> None:
    class Reader:
        def version(self) -> int:
            return 5

    reader: Any = Reader()
    publication = Publication(None, published=reader)
    assert publication.lacks(6) and not publication.lacks(5) and not Publication(None).lacks(6)
    publish(publication, 6)
