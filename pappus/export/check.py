"""Whether an exported policy acts as the policy does: on observations of its env, or on drawn ones where there is none.

                       ┌──▶ our policy, step by step ──▶ actions ──┐
    env or drawn ──────┤                                           ├──▶ largest deviation
                       └──▶ exported ──▶ actions, scores, state ───┘

Both are given the same memory in every step: what is compared is one step, thousands of times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import optree
import torch

from pappus.config import EnvOptions
from pappus.envs.external import has_no_env
from pappus.envs.spaces import from_env_action
from pappus.envs.vector import EnvSource, VectorEnv, make_env
from pappus.errors import RunError
from pappus.export.graph import ACTION, PolicyGraph, tensors
from pappus.export.units import as_env_shows
from pappus.policy import TrainedPolicy
from pappus.types import ACTION_MASK, Array, ArraySpec, EnvSpec, Timestep, map_leaves

Exported: TypeAlias = Callable[[dict[str, Array]], dict[str, Array]]
"""Inputs by name → outputs by name, as another program runs them."""

ENVS = 32
DRAWN = 256
"""Rows of drawn observations, which cost no env."""
CHUNK = 256
"""Rows compared at a time: images need memory."""
TOLERANCE = 1e-4
"""Largest tolerated deviation, relative for values above 1."""
TIE = 1e-4
"""Where the best two scores are nearer than this, either action is right."""
RESETS = 0.05
"""Share of drawn steps that begin an episode."""


@dataclass(frozen=True)
class Agreement:
    """How far an exported policy deviates from ours."""

    observations: int
    source: str
    largest: float
    """Of all outputs; relative where a value is above 1."""
    other_actions: int
    """Discrete actions that differ, which must be ties."""

    def __str__(self) -> str:
        ties = f", {self.other_actions} ties were decided otherwise" if self.other_actions else ""
        return f"largest deviation {self.largest:.1e} on {self.observations:,} observations {self.source}{ties}"


class Step(NamedTuple):
    """A batch of inputs, and our policy's outputs."""

    inputs: dict[str, Array]
    action: Array
    outputs: dict[str, Array]
    """Of the graph before it was exported."""


def agreement(exported: Exported, steps: list[Step], source: str) -> Agreement:
    """Compare; `RunError` where the exported policy is not ours."""
    largest, others, count = 0.0, 0, 0
    for step in steps:
        found = exported(step.inputs)
        wanted = {**step.outputs, ACTION: step.action}
        discrete = wanted[ACTION].dtype.kind in "iu"
        for name, value in wanted.items():
            if name != ACTION or not discrete:
                largest = max(largest, _deviation(found[name], value))
        if discrete:
            differ = (found[ACTION] != step.action).reshape(len(step.action), -1).any(1)
            others += int(np.count_nonzero(differ))
            if differ.any() and not _tied(step.outputs, differ):
                raise RunError("the exported policy takes other actions than this one, so it was not kept")
        count += len(step.action)
    if not largest <= TOLERANCE:
        raise RunError(f"the exported policy deviates by {largest:.1e}, more than {TOLERANCE:g}, so it was not kept")
    return Agreement(count, source, largest, others)


def _deviation(one: Array, two: Array) -> float:
    if one.shape != two.shape:
        return math.inf
    difference = np.abs(one.astype(np.float64) - two) / np.maximum(1.0, np.abs(two.astype(np.float64)))
    largest = float(difference.max(initial=0.0))
    return largest if math.isfinite(largest) else math.inf  # NaN is larger than nothing


def _tied(outputs: dict[str, Array], rows: Array) -> bool:
    """Whether the best two scores of these rows are tied within the tolerance."""
    scores = next((outputs[name] for name in ("q", "distribution") if name in outputs), None)
    if scores is None or scores.shape[-1] < 2:
        return False
    best = np.sort(scores[rows].astype(np.float64), -1)
    return bool((best[:, -1] - best[:, -2] <= TIE * np.maximum(1.0, np.abs(best[:, -1]))).all())


def steps_of(policy: TrainedPolicy, graph: PolicyGraph, env: EnvSource, options: EnvOptions, count: int) -> list[Step]:
    """Our policy's outputs on at least `count` observations: from its env, or random ones if the env is external."""
    if has_no_env(env):
        return _played(policy, graph, _Drawn(policy.env.spec), count)
    with closing(make_env(env, ENVS, 0, options)) as made:
        return _played(policy, graph, made, count)


def _played(policy: TrainedPolicy, graph: PolicyGraph, env: VectorEnv, count: int) -> list[Step]:
    timestep = env.reset()
    steps: list[Step] = []
    memory = policy.first_memory(env.num_envs)
    while len(steps) * env.num_envs < count:
        own = map_leaves(np.copy, policy.without_last_inputs(timestep.observation))  # the env may overwrite it
        inputs = graph.arrays(own, timestep.first, timestep.reward, memory)
        action, memory = policy.predict(
            as_env_shows(graph.space, own), state=memory, first=timestep.first, reward=timestep.reward
        )
        with torch.inference_mode():
            outputs = {name: leaf.numpy() for name, leaf in graph(tensors(inputs)).items()}
        steps.append(Step(inputs, action, outputs))
        timestep = env.step(action if graph.action_space is None else from_env_action(graph.action_space, action))
    return _joined(steps)


def _joined(steps: list[Step]) -> list[Step]:
    """Fewer and larger batches: other programs run these faster."""
    at_once = max(1, CHUNK // len(steps[0].action))
    groups = [steps[i : i + at_once] for i in range(0, len(steps), at_once)]
    return [_concatenated(group) for group in groups]


def _concatenated(steps: Sequence[Any]) -> Step:
    joined: Any = optree.tree_map(lambda *rows: np.concatenate(rows), *steps)
    return cast(Step, joined)


class _Drawn(VectorEnv):
    """Stands in for an external env: it draws random observations of the spec, from a seed."""

    num_envs = DRAWN

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self._random = spec, np.random.default_rng(0)

    def reset(self) -> Timestep:
        return self._timestep(np.ones(DRAWN, np.bool_))

    def step(self, action: Array) -> Timestep:
        """Observations do not depend on actions."""
        return self._timestep(self._random.random(DRAWN) < RESETS)

    def _timestep(self, first: Array) -> Timestep:
        observation: Any = optree.tree_map(self._leaf, self.spec.observation)
        if self.spec.masked:
            observation[ACTION_MASK] = self._mask()
        reward = self._random.standard_normal(DRAWN).astype(np.float32)
        return Timestep(observation, first, reward, (~first).astype(np.float32), ~first)

    def _leaf(self, spec: ArraySpec) -> Array:
        shape, dtype = (DRAWN, *spec.shape), np.dtype(spec.dtype)
        if spec.num_values is not None:
            rows = self._random.random((DRAWN, len(spec.num_values))) * spec.num_values
            return rows.astype(dtype).reshape(shape)
        if dtype.kind == "f":
            drawn = self._random.standard_normal(shape).astype(dtype)
            if spec.bounds is None:
                return drawn
            low, high = (np.array(bound, dtype).reshape(spec.shape if len(bound) > 1 else ()) for bound in spec.bounds)
            return drawn.clip(low, high)
        largest = 2 if dtype.kind == "b" else int(np.iinfo(dtype).max) + 1 if dtype.itemsize == 1 else 100
        return self._random.integers(0, largest, shape).astype(dtype)

    def _mask(self) -> Array:
        """At least one value of every choice is allowed."""
        parts = []
        for choices in self.spec.action.choices:
            allowed = self._random.random((DRAWN, choices)) < 0.5
            allowed[np.arange(DRAWN), self._random.integers(0, choices, DRAWN)] = True
            parts.append(allowed)
        return np.concatenate(parts, 1).astype(np.int8)
