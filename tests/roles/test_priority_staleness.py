from __future__ import annotations

import numpy as np

from pappus.roles.replay_training import PriorityStaleness


def test_priorities_are_as_old_as_their_last_update_and_those_of_new_items_are_not_counted() -> None:
    staleness = PriorityStaleness(4)
    keys = np.array([0, 1, 6])
    assert staleness.of(keys, 10) == (None, 1.0)
    staleness.written(keys, 10)
    staleness.written(np.array([1]), 14)
    assert staleness.of(keys, 16) == ((6 + 2 + 6) / 3, 0.0)
    assert staleness.of(np.array([0, 5]), 16) == (6.0, 0.5), "5 took the place of 1"
