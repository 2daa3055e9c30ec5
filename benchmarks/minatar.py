"""MinAtar's games (Young and Tian 2019) as envs: `--env benchmarks.minatar:breakout`, after `pip install minatar`."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium


def _game(name: str) -> gymnasium.Env[Any, Any]:
    """With the game's own actions only, sticky actions (0.1) and a growing difficulty, as the package has it."""
    logging.disable(logging.WARNING)  # it misses plotting libraries that nobody needs here
    from minatar.gym import BaseEnv

    logging.disable(logging.NOTSET)
    env: gymnasium.Env[Any, Any] = BaseEnv(name, use_minimal_action_set=True)
    return env


def breakout() -> gymnasium.Env[Any, Any]:
    """A paddle, a ball and three rows of bricks."""
    return _game("breakout")


def asterix() -> gymnasium.Env[Any, Any]:
    """Treasure and enemies that come from both sides."""
    return _game("asterix")


def freeway() -> gymnasium.Env[Any, Any]:
    """A road with eight lanes to be crossed."""
    return _game("freeway")


def space_invaders() -> gymnasium.Env[Any, Any]:
    """Aliens that come down row by row."""
    return _game("space_invaders")
