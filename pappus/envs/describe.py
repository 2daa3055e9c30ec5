"""What an env is, in words."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import optree
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from pappus.config import EnvOptions
from pappus.envs.gym_backend import autoreset_mode
from pappus.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec

Facts = list[tuple[str, str]]


def source_facts(source: Any, options: EnvOptions) -> Facts:
    """Spaces, vectorisation, autoreset and time limit of the vector env that a backend steps."""
    limit = time_limit(source, options)
    return [
        ("observation", str(source.single_observation_space)),
        ("action", str(source.single_action_space)),
        ("vectorised", _vectorisation(source)),
        ("autoreset", autoreset_mode(source).name.lower().replace("_", " ")),
        ("time limit", f"{limit:,} steps" if limit else "none"),
    ]


def spec_facts(spec: EnvSpec) -> Facts:
    """What the learner gets."""
    paths, leaves, _ = optree.tree_flatten_with_path(spec.observation)
    shown = [
        f"{'.'.join(map(str, path))}{': ' if path else ''}{_leaf(leaf)}"
        for path, leaf in zip(paths, leaves, strict=True)
    ]
    stack = f", {spec.frame_stack} newest frames at once" if spec.frame_stack > 1 else ""
    return [
        ("learner sees", ", ".join(shown) + stack),
        ("learner acts", _action(spec)),
        ("masks", "yes" if spec.masked else "none"),
    ]


def time_limit(source: Any, options: EnvOptions) -> int | None:
    """Steps after which an episode is truncated, where that can be known."""
    if isinstance(source, SyncVectorEnv):
        return _wrapped_limit(source.envs[0])
    if hasattr(source, "ale"):
        return options.atari.max_frames // options.atari.frame_skip
    limit = getattr(source, "max_episode_steps", None) or getattr(source, "config", {}).get("max_episode_steps")
    return None if limit is None else int(limit)


def _wrapped_limit(env: gym.Env[Any, Any]) -> int | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def _vectorisation(source: Any) -> str:
    if isinstance(source, SyncVectorEnv):
        return f"no, {type(source.envs[0].unwrapped).__name__} is stepped one by one"
    return f"natively, by {type(source).__name__}"


def _leaf(leaf: ArraySpec) -> str:
    values = f" of {'·'.join(map(str, leaf.num_values))} values" if leaf.num_values else ""
    return f"{leaf.dtype} {list(leaf.shape)}{values}"


def _action(spec: EnvSpec) -> str:
    action = spec.action
    if isinstance(action, ContinuousAction):
        return f"{list(action.shape)} numbers, -1 to 1 from bound to bound"
    if isinstance(action, DiscreteAction):
        return f"one of {action.n}"
    return f"one of each of {', '.join(map(str, action.nvec))}"
