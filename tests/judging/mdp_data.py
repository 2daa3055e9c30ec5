"""Steps of a random MDP, as judges get them from a data set."""

from __future__ import annotations

import numpy as np

from pappus.judging.logged import Logged
from pappus.types import Array
from tests.envs.random_mdp import Played


def logged_of(played: Played, policy: Array, behaviour: Array | None) -> Logged:
    """What a data set of one-hot states says, with the behaviour's log-probabilities where its table is given."""
    lengths = played.lengths
    steps = np.arange(len(played.state))[:, None]
    state, happened = played.state.T[(steps <= lengths).T], (steps[:-1] < lengths).T
    seen, action = played.state[:-1].T[happened], played.action.T[happened]
    return Logged(
        lengths, played.terminated, played.reward.T[happened], action,
        None if behaviour is None else np.log(behaviour[seen, action]), np.eye(len(policy), dtype=np.float32)[state],
        None, np.log(policy[seen, action]), policy[state], None,
    )
