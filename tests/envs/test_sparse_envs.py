from __future__ import annotations

import numpy as np

from tests.envs.sparse_envs import Cliff


def test_only_the_whole_way_is_rewarded() -> None:
    env = Cliff(2, 4, 4)
    env.reset(seed=0)
    for place in range(4):
        right = env._right[place]
        observation, reward, ended, _, _ = env.step(np.array([right, right if place != 2 else 1 - right]))
        assert reward.tolist() == [float(place == 3), 0.0]
        assert ended.tolist() == [place == 3, place == 2]
        if place == 1:
            assert observation[0].tolist() == [0, 0, 1, 0]
    assert observation[1].tolist() == [1, 0, 0, 0], "a new episode began"


def test_with_milestones_each_of_them_is_rewarded() -> None:
    env = Cliff(1, 6, 2)
    env.reset(seed=0)
    assert [float(env.step(env._right[[place]])[1][0]) for place in range(6)] == [0, 1, 0, 1, 0, 1]
