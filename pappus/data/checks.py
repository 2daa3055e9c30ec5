"""Bad data gets a sentence before anything is trained from it: what must hold of a set as a whole.

`Dataset.read` checks every episode as it comes (episode_checks.py): together nothing odd is learned from in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import optree
from gymnasium import spaces

from pappus.data.dataset import Dataset
from pappus.data.metadata import rewards_are_clipped
from pappus.envs.spaces import Space
from pappus.errors import UserError
from pappus.types import ActionSpec, ContinuousAction, DiscreteAction, EnvSpec, Nest


def check_dataset(
    dataset: Dataset, env: EnvSpec | None = None, shown: EnvSpec | None = None, action_space: Space | None = None
) -> list[str]:
    """`UserError` where a set cannot be trained from at all, or not for this env; what else is worth saying, once.

    `env` and `action_space` are those of the env that the policy will act in, `shown` is what the network sees of the
    data where that is not the data's own spec.
    """
    name = repr(str(dataset.path))
    if not dataset.num_episodes or not dataset.num_steps:
        raise UserError(f"data set {name} is empty: it has {dataset.num_episodes} episodes; record some first")
    stored = dataset.stored_episodes()
    if stored < dataset.num_episodes:
        raise UserError(
            f"data set {name} should have {dataset.num_episodes:,} episodes, but its files hold {stored:,}; the copy "
            "is not complete"
        )
    found = [] if env is None else list(differences(shown or dataset.spec, env))
    for difference in [*found, *_bound_differences(dataset.action_space, action_space)]:
        raise UserError(f"data set {name} does not fit the env: {difference}; use data of this env{_own_env(dataset)}")
    return notes(dataset)


def check_steps(dataset: Dataset, counted: int) -> None:
    """`UserError` where all episodes together have another number of steps than the metadata counts: a table that waits
    for as many would open too early, or never."""
    if counted != dataset.num_steps:
        raise UserError(
            f"data set {str(dataset.path)!r} has {counted:,} steps, but its metadata counts {dataset.num_steps:,}; "
            "correct total_steps there, or record the set again"
        )


def notes(dataset: Dataset) -> list[str]:
    """What is not wrong with a set, but worth knowing."""
    found = []
    if dataset.lossy:
        found.append("its pictures are JPEG, which is lossy: they differ a little from what the env shows")
    if rewards_are_clipped(dataset.metadata):
        found.append("its rewards were clipped when it was recorded: its returns are not those that evaluations report")
    if dataset.stored_episodes() > dataset.num_episodes:
        more = dataset.stored_episodes() - dataset.num_episodes
        found.append(f"its files hold {more:,} more episodes than its metadata counts: a recording was cut off there")
    return found


def differences(data: EnvSpec, env: EnvSpec) -> Iterator[str]:
    """How what a set shows and accepts differs from an env, the observation first."""
    yield from _observation_differences(data.observation, env.observation)
    if data.action != env.action:
        yield f"its actions are {_action(data.action)}, the env's {_action(env.action)}"
    if data.frame_stack != env.frame_stack:
        yield f"it was recorded to be seen {_frames(data)} at once, the env shows {_frames(env)}"


def _frames(spec: EnvSpec) -> str:
    return "one frame" if spec.frame_stack == 1 else f"{spec.frame_stack} frames"


def _bound_differences(data: Space, env: Space | None) -> Iterator[str]:
    if isinstance(data, spaces.Box) and isinstance(env, spaces.Box) and not _same_bounds(data, env):
        yield f"its actions lie in {data}, the env's in {env}"


def _same_bounds(one: spaces.Box, other: spaces.Box) -> bool:
    if one.shape != other.shape:
        return True  # another difference, which has its own words
    return np.allclose(one.low, other.low) and np.allclose(one.high, other.high)


def _observation_differences(data: Nest, env: Nest) -> Iterator[str]:
    ours, theirs = ({"/".join(map(str, path)): leaf for path, leaf in _leaves(nest)} for nest in (data, env))
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        where = f"observation/{key}" if key else "observation"
        if key not in ours or key not in theirs:
            yield f"its observation has {_keys(list(ours))}, the env's {_keys(list(theirs))}"
            return
        if ours[key] != theirs[key]:
            yield f"its {where} is {_leaf(ours[key])}, the env's {_leaf(theirs[key])}"


def _leaves(nest: Nest) -> Iterator[tuple[tuple[object, ...], object]]:
    paths, leaves, _ = optree.tree_flatten_with_path(nest)
    return zip(paths, leaves, strict=True)


def _keys(keys: list[str]) -> str:
    return "the keys " + ", ".join(sorted(keys)) if keys != [""] else "no keys"


def _leaf(leaf: object) -> str:
    shape, dtype, values = (getattr(leaf, name) for name in ("shape", "dtype", "num_values"))
    return f"{dtype} {list(shape)}" + (f" of {'·'.join(map(str, values))} values" if values else "")


def _action(action: ActionSpec) -> str:
    if isinstance(action, ContinuousAction):
        return f"real numbers {list(action.shape)}"
    return f"one of {action.n}" if isinstance(action, DiscreteAction) else f"choices of {list(action.nvec)}"


def _own_env(dataset: Dataset) -> str:
    return f", or its own env {dataset.env!r}" if dataset.env else ""
