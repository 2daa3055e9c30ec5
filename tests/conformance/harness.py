"""Learn a course with a system, and compare what its network says of every state with the closed form."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pappus
from pappus.algorithms.bc import BC
from pappus.config import RunConfig
from pappus.data.dataset import open_dataset
from pappus.envs.vector import make_env
from pappus.networks.flat import FlatParameters
from pappus.networks.modules import Output
from pappus.networks.policy_critics import PolicyOutput
from pappus.networks.q_networks import DeterministicOutput
from pappus.ops.q_learning import unrescale
from pappus.system import System
from pappus.systems import saved_config
from pappus.telemetry.run_folders import find_checkpoint
from pappus.telemetry.weights import stored_weights
from pappus.types import Array, Nest, Timestep, map_leaves
from tests.conformance.systems import COMMON, Course, Row
from tests.data_tools import record
from tests.envs.exact_envs import JUDGED, World, lights

TOLERANCE = 0.15
"""4 % of the largest value of every world: what is left after a second of training."""
RECORDED = 250
"""Steps of random actions that systems learn from which learn from data."""
LOOKS = 24
"""Steps of the walk through the worlds along which the network is asked."""


@dataclass(frozen=True)
class Seen:
    """What a network says of one state: values `[looks, actions]`, and of its actions (probabilities, or the best).

    An imitator has no values: its probabilities take their place, and `exact` are the actions' shares in its data.
    """

    values: Array
    policy: Array
    exact: Array | None = None


Learnt = dict[str, Seen]


def learn(row: Row, course: Course, directory: Path) -> Learnt:
    """Train, and ask the trained network about every state."""
    train(row, course, directory)
    return ask(directory, course.worlds)


def train(row: Row, course: Course, directory: Path) -> None:
    """One run of a course."""
    settings: dict[str, Any] = {**COMMON, **row.settings, **course.settings, "actors": row.actors, "run_dir": directory}
    if row.imitates:
        del settings["algorithm.discount"]
    if row.offline:
        kwargs = settings.get("env_options.kwargs", {})
        settings["data"] = record(directory.with_name("data"), course.env, RECORDED, **kwargs)
    pappus.train(row.system, course.env, **settings)


def ask(run: Path, worlds: Mapping[str, World]) -> Learnt:
    """What the newest network of a run says along a walk; a final observation is no state, as nothing follows it."""
    system, config = saved_config(run)
    observation, first, lasting = walk(config)
    network = load_network(system, config, run)
    with torch.inference_mode():
        output = network(observation, first, network.initial_state(first.shape[1]))
        values, policy = said(network, observation, output)
        values = unrescale(values, getattr(config.algorithm, "rescaling", 0.0))
    light = light_of(observation)
    here = {name: (light == torch.from_numpy(shown)).all(-1) & lasting for name, shown in lights(worlds).items()}
    if system.algorithm.make is BC:
        shares = action_shares(config.data, worlds)
        return {name: Seen(*2 * [policy[at].numpy()], shares[name]) for name, at in here.items() if at.any()}
    return {name: Seen(values[at].numpy(), policy[at].numpy()) for name, at in here.items() if at.any()}


def light_of(observation: Nest) -> Any:
    """What a state shows, without its mask."""
    return observation["light"] if isinstance(observation, dict) else observation


def action_shares(data: str, worlds: Mapping[str, World]) -> dict[str, Array]:
    """Of all steps of a data set from each state, the share of every action."""
    dataset = open_dataset(data)
    episodes = list(dataset.read(range(dataset.num_episodes)))
    light = np.concatenate([light_of(episode.observation)[:-1] for episode in episodes])
    taken = np.eye(2)[np.concatenate([episode.action for episode in episodes])]
    at = {name: (light == shown).all(-1) for name, shown in lights(worlds).items()}
    return {name: taken[rows].mean(0) for name, rows in at.items() if rows.any()}


def walk(config: RunConfig) -> tuple[Nest, torch.Tensor, torch.Tensor]:
    """Observations, `first`, and whether the step from there on was one, `[T, B, …]`."""
    with closing(make_env(config.env, config.envs_per_actor, 0, config.env_options)) as env:
        steps = [map_leaves(np.copy, env.reset()[:5])]
        nothing = np.zeros((env.num_envs, *env.spec.action.array.shape), env.spec.action.array.dtype)
        for _ in range(LOOKS):
            steps.append(map_leaves(np.copy, env.step(nothing)[:5]))
    timed = Timestep(*map_leaves(lambda *leaves: torch.from_numpy(np.stack(leaves)), *steps))
    return map_leaves(lambda leaf: leaf[:-1], timed.observation), timed.first[:-1], timed.valid[1:]


def load_network(system: System, config: RunConfig, run: Path) -> Any:
    """The trained network."""
    with closing(make_env(config.env, 1, 0, config.env_options)) as env:
        algorithm = system.algorithm.make(config.algorithm, env.spec, config.network)
    network = algorithm.build_network()
    FlatParameters(network).values.copy_(torch.from_numpy(stored_weights(find_checkpoint(run, "latest"))))
    return network


def said(network: Any, observation: Nest, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Values `[T, B, actions]` (of an actor-critic, that of its policy), and what it would do."""
    if isinstance(output, Output):
        return output.value.unsqueeze(-1), output.policy.softmax(-1)
    if isinstance(output, DeterministicOutput):
        judged = [network.q(observation, torch.full_like(output.action, action)) for action in JUDGED]
        return torch.stack(judged, -1), output.action
    if isinstance(output, PolicyOutput):
        return said_by_policy(network, observation, output)
    return output.q, output.q


def said_by_policy(network: Any, observation: Nest, output: PolicyOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """The smaller of the critics' values, and the greedy action or the probabilities of all."""
    time, envs = output.policy.shape[:2]
    seen = network.see(map_leaves(lambda leaf: leaf.flatten(0, 1), observation))
    if network.continuous:
        actions = [torch.full((time * envs, network.action_size), action) for action in JUDGED]
        mean, _ = output.policy.chunk(2, -1)
        policy = mean.tanh() if network.squash else mean
    else:
        actions = [torch.full((time * envs,), action) for action in range(network.action_size)]
        policy = output.policy.softmax(-1)
    return torch.stack([network.q(seen, action).amin(0).view(time, envs) for action in actions], -1), policy


def deviations(learnt: Learnt, world: World) -> dict[str, float]:
    """By how much the values of every state are off, at most."""
    return {name: float(np.nanmax(np.abs(learnt[name].values - theory(learnt, world, name)))) for name in world.values}


def theory(learnt: Learnt, world: World, name: str) -> Array:
    """The closed form: for every action, or of the best one where the network gives one value."""
    exact = learnt[name].exact
    if exact is not None:
        return exact
    values = np.array(world.values[name])
    return values if learnt[name].values.shape[-1] > 1 else np.nanmax(values, keepdims=True)


def report(learnt: Learnt, world: World) -> str:
    """A line for every state: what was found (the range over all looks), and what theory says."""
    lines = []
    for name in world.values:
        values, exact = learnt[name].values, theory(learnt, world, name)
        lines.append(f"{name:>6}  found {values.min(0).round(2)} … {values.max(0).round(2)}  theory {exact.round(2)}")
    return "\n".join(["", *lines])
