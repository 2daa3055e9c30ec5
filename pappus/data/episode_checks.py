"""What must hold of every episode that is read: each way in which it does not is the rest of a sentence about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import optree
from gymnasium import spaces

from pappus.data.content import Content
from pappus.envs.spaces import Space, action_converter
from pappus.types import ACTION_MASK, Array, ContinuousAction, EnvSpec, Nest

if TYPE_CHECKING:
    from pappus.data.episode import Episode

LOG_PROB = "log_prob"
"""In infos: the log-probability of the action under the policy that took it."""
POLICY_ACTION = "policy_action"
"""In infos: actions in the units of policies, exactly as the policy gave them."""
TOLERANCE = 1e-4
"""How far an action may exceed its bounds, as a share of their distance: float32 rounds."""
AGAIN = "leave the episode out, or record it again"
RENAME = "give it another name if it means something else"


def structure_problems(content: Content, observation_space: Space, action_space: Space) -> Iterator[str]:
    """What is wrong with lengths, shapes and dtypes of a stored episode. Where nothing is, it can be converted."""
    if wrong := list(reward_problems(content.rewards)):
        yield from wrong
        return
    steps = len(content.rewards)
    yield from _flag_problems(content, steps)
    yield from _leaf_problems(content.observations, observation_space, "observations", steps + 1)
    yield from _leaf_problems(content.actions, action_space, "actions", steps)
    yield from _info_problems(content, steps, action_space)


def reward_problems(rewards: Array) -> Iterator[str]:
    """What is wrong with the shape and the type of rewards, by which the steps of an episode are counted."""
    if rewards.ndim != 1 or rewards.dtype.kind not in "fiu":
        yield f"has rewards of shape {list(rewards.shape)} and type {rewards.dtype}; there must be one number per step"
    elif not len(rewards):
        yield "is empty: it has no steps; leave it out"


def _flag_problems(content: Content, steps: int) -> Iterator[str]:
    flags = {"terminations": content.terminations, "truncations": content.truncations}
    for name, flag in flags.items():
        if flag.shape != (steps,) or flag.dtype.kind not in "biu":
            yield f"has {name} of shape {list(flag.shape)} and type {flag.dtype}, and {steps} rewards; {AGAIN}"
            return
    ended = np.flatnonzero(content.terminations[:-1].astype(bool) | content.truncations[:-1].astype(bool))
    if len(ended):
        yield f"goes on after step {ended[0]}, which ended it; store what follows as an episode of its own"


def _info_problems(content: Content, steps: int, action_space: Space) -> Iterator[str]:
    """Of the infos only those that mean something to us."""
    said = policy_action_of(content.infos, action_space)
    if said is not None:
        yield from _info_problem(said, POLICY_ACTION, "one action", steps, action_space.shape or ())
    if LOG_PROB in content.infos:
        yield from _info_problem(content.infos[LOG_PROB], LOG_PROB, "one number", steps, ())


def policy_action_of(infos: Mapping[str, Any], action_space: Space) -> Any:
    """The column with what the policy said, if there is one; where actions are choices they are what it said."""
    return infos.get(POLICY_ACTION) if isinstance(action_space, spaces.Box) else None


def _info_problem(values: Any, name: str, what: str, steps: int, shape: tuple[int, ...]) -> Iterator[str]:
    column = np.asarray(values)
    if column.shape not in ((steps, *shape), (steps + 1, *shape)) or column.dtype.kind not in "fiu":
        yield (
            f"has infos/{name} of shape {list(column.shape)} and type {column.dtype}; there must be {what} "
            f"per step; {RENAME}"
        )


def _leaf_problems(values: Nest, space: Space, name: str, rows: int) -> Iterator[str]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaf_problems(values[key], inner, f"{name}/{key}", rows)
    elif isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _leaf_problems(values[i], inner, f"{name}/{i}", rows)
    elif not values.ndim:
        yield f"has a lone value of {name}, but must have {rows}; {AGAIN}"
    elif len(values) != rows:
        rule = "one more than steps" if name.startswith("observations") else "as many as steps"
        yield f"has {len(values)} {name}, but must have {rows}: {rule}; {AGAIN}"
    elif values.shape[1:] != space.shape:
        yield f"has {name} of shape {list(values.shape[1:])}, but their space is {space}; store the right space"
    else:
        yield from _dtype_problems(values, space, name)


def _dtype_problems(values: Array, space: Space, name: str) -> Iterator[str]:
    """Numbers may be stored wider than their space says, as the env boundary allows; their kind must be the space's."""
    wanted = np.dtype(space.dtype)
    exact = "f" if name == "actions" else "fiub"  # whole numbers as real actions are the sign of a wrong space
    if values.dtype.kind not in (exact if wanted.kind == "f" else "iub"):
        yield f"has {name} of type {values.dtype}, but their space is {space}; store the right space or type"
    elif wanted.kind in "iu" and values.dtype != wanted and not np.can_cast(values.dtype, wanted):
        bounds = np.iinfo(wanted)
        if values.size and (values.min() < bounds.min or values.max() > bounds.max):
            yield f"has {name} from {values.min()} to {values.max()}, which {wanted} of their space cannot hold"


def value_problems(
    episode: Episode, content: Content, spec: EnvSpec, observation_space: Space, action_space: Space
) -> Iterator[str]:
    """What is wrong with the numbers of an episode whose structure is right."""
    paths, leaves, _ = optree.tree_flatten_with_path(episode.observation)
    for path, leaf in zip(paths, leaves, strict=True):
        yield from _non_finite(leaf, "/".join(["observations", *map(str, path)]))
    yield from _category_problems(content.observations, observation_space, "observations")
    yield from _non_finite(episode.reward, "rewards")
    yield from _log_prob_problems(np.asarray(episode.behaviour.get(LOG_PROB, 0.0)), spec)
    bad = list(_non_finite(episode.action, "actions"))
    yield from bad or _action_problems(episode, content, spec, action_space)


def _log_prob_problems(log_prob: Array, spec: EnvSpec) -> Iterator[str]:
    """Densities may exceed 1, probabilities of choices may not: such a column holds them without their logarithm."""
    yield from _non_finite(log_prob, f"infos/{LOG_PROB}")
    above = np.flatnonzero(log_prob > TOLERANCE)
    if len(above) and not isinstance(spec.action, ContinuousAction):
        yield (
            f"has {log_prob.flat[above[0]]:g} in infos/{LOG_PROB} at step {above[0]}, but no choice has a probability "
            "above 1; store its logarithm"
        )


def _non_finite(values: Array, name: str) -> Iterator[str]:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        where = np.argwhere(~np.isfinite(values))[0]
        entry = f"{name}{where[1:].tolist()}" if len(where) > 1 else name
        yield f"has {values[tuple(where)]} in {entry} at step {where[0]}; {AGAIN}"


def _category_problems(values: Nest, space: Space, name: str) -> Iterator[str]:
    """Categories that are none: networks see them as one-hot vectors, which would be all 0."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _category_problems(values[key], inner, f"{name}/{key}")
    elif isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _category_problems(values[i], inner, f"{name}/{i}")
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        first = np.asarray(space.start, np.int64)
        last = first + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
        wrong = np.argwhere((values < first) | (values > last))
        for step, *entry in wrong[:1].tolist():
            where = f"{name}{entry or ''} at step {step}"
            bounds = f"{first[*entry]} to {last[*entry]}"
            yield f"has {values[step, *entry]} in {where}, outside {bounds} of its space; {AGAIN}"


def _action_problems(episode: Episode, content: Content, spec: EnvSpec, space: Space) -> Iterator[str]:
    if isinstance(spec.action, ContinuousAction):
        actions = np.asarray(content.actions)
        bad = list(_bound_problems(actions, space))
        told = policy_action_of(content.infos, space) is not None
        yield from bad or (_said_problems(episode.action, actions, space) if told else ())
        return
    chosen = episode.action.reshape(episode.length, -1)
    wrong = np.argwhere((chosen < 0) | (chosen >= np.array(spec.action.choices)))
    if len(wrong):
        step = wrong[0][0]
        yield f"takes action {np.asarray(content.actions)[step].tolist()} at step {step}, outside {space}; {AGAIN}"
    elif spec.masked:
        yield from _mask_problems(chosen, episode.observation[ACTION_MASK][:-1], spec)


def _said_problems(said: Array, actions: Array, space: Space) -> Iterator[str]:
    """What the policy said is learned from, so it must be what led to the actions."""
    _, to_env_action = action_converter(space)
    led_to = to_env_action(said).astype(np.float64)
    wrong = np.argwhere(~(np.abs(led_to - actions) <= _slack(space, np.maximum(1, np.abs(actions)))))
    if len(wrong):
        where = tuple(wrong[0])
        yield (
            f"has infos/{POLICY_ACTION} that mean {led_to[where]:g} in {_entry(where)}, where {actions[where]:g} is "
            f"stored; {RENAME}"
        )


def _bound_problems(actions: Array, space: Any) -> Iterator[str]:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    slack = _slack(space, 0)
    wrong = np.argwhere((actions < low - slack) | (actions > high + slack))
    if len(wrong):
        where = tuple(wrong[0])
        bounds = f"{low[where[1:]]:g} to {high[where[1:]]:g}"
        yield f"has {actions[where]:g} in {_entry(where)}, outside {bounds}; clip it, or store other bounds"


def _slack(space: Any, unbounded: Any) -> Array:
    """What rounding may do to actions; a share of `unbounded` where they have no bounds."""
    distance = space.high.astype(np.float64) - space.low.astype(np.float64)
    slack: Array = TOLERANCE * np.where(np.isfinite(distance), distance, unbounded)
    return slack


def _entry(where: tuple[Any, ...]) -> str:
    return f"actions[{', '.join(map(str, where[1:]))}] at step {where[0]}"


def _mask_problems(chosen: Array, masks: Array, spec: EnvSpec) -> Iterator[str]:
    assert not isinstance(spec.action, ContinuousAction), "continuous actions have no masks"
    first = np.concatenate([[0], np.cumsum(spec.action.choices)[:-1]])
    allowed = np.take_along_axis(masks, chosen + first, axis=1)
    wrong = np.argwhere(allowed == 0)
    if len(wrong):
        step, choice = wrong[0]
        yield f"takes action {chosen[step, choice]} at step {step}, which its mask forbids; {AGAIN}"
