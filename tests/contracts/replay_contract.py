"""The contract of a replay service, for every way to reach it.

Subclasses of `ReplayContract` provide the fixture `make`, a `Way`: `client, service = make(tables, **service_options)`.
`make.client(service)` and `make.session(service)` open further sessions, which the fixture closes. After a test, when
all sessions are closed, only items may hold chunks, each as often as it touches them.

The scenarios are in groups, each with a file: what is drawn and dropped, who waits, what is known of items, where steps
are, what writers refuse, what fields compute, fetching ahead, and checkpoints. What they share is in `replay_tools.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.replay_checkpoints import Checkpoints
from tests.contracts.replay_drawing import DrawingAndDropping
from tests.contracts.replay_fetching_ahead import FetchingAhead
from tests.contracts.replay_fields import Fields
from tests.contracts.replay_items import Items
from tests.contracts.replay_steps import Steps
from tests.contracts.replay_tools import Way
from tests.contracts.replay_waiting import Waiting
from tests.contracts.replay_writing import Writing


class ReplayContract(
    DrawingAndDropping, Waiting, Items, Steps, Writing, Fields, FetchingAhead, Checkpoints
):
    """All of it. Provide the fixture `make`."""

    @pytest.fixture
    def make(self) -> Iterator[Way]:
        raise NotImplementedError
