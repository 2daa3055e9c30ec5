"""A policy as one torch module with named tensors, so that an exporter can trace it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import optree
import torch
from torch import Tensor, nn

from pappus.envs.vector import LAST_ACTION, LAST_REWARD, WithLastInputs
from pappus.export.units import Units, counted, spaces_of
from pappus.networks.steps import module_step
from pappus.policy import Memory, TrainedPolicy, leaves_in
from pappus.types import ACTION_MASK, Array, ArraySpec, ContinuousAction, Nest

FIRST, REWARD, ACTION = "first", "reward", "action"
SCORES = {"policy": "distribution", "q": "q"}
"""Fields of a network's output from which actions are chosen, and their names in the graph."""


@dataclass(frozen=True)
class TensorNote:
    """One input or output; its first dimension is the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meaning: str


class PolicyGraph(nn.Module):
    """`forward(inputs) -> outputs`, both by name: observations as the env gives them, and where the policy remembers
    anything its state and where episodes begin; greedy actions in the env's units, what they are chosen by, and the
    next state."""

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self.network: nn.Module = policy.policy.network
        self._algorithm: Any = policy.policy.algorithm
        self._step = module_step(self.network)
        self.space, self.action_space = spaces_of(policy.env)
        self.units, self._spec = Units(self.action_space), policy.own_spec()
        self._env = policy.env
        self._last = isinstance(policy.env, WithLastInputs)
        self.memory = policy.first_memory(1)
        self.observation_names = names_of(self._spec, "observation")
        self.state_names = [f"state.{i}" for i in range(len(leaves_in(self.memory)))]

    @property
    def inputs(self) -> list[TensorNote]:
        """What it takes, in order."""
        leaves: list[ArraySpec] = optree.tree_leaves(self._spec)
        named = zip(self.observation_names, leaves, strict=True)
        found = [TensorNote(name, leaf.dtype, leaf.shape, _meaning(name, leaf)) for name, leaf in named]
        if self.state_names:
            found.append(TensorNote(FIRST, "bool", (), "an episode begins: the state given with it is not looked at"))
        if self._last:
            found.append(TensorNote(REWARD, "float32", (), "what the last action earned"))
        meaning = "memory; zeros before the first step"
        zeros = zip(self.state_names, leaves_in(self.memory), strict=True)
        return found + [TensorNote(name, str(leaf.dtype), leaf.shape[1:], meaning) for name, leaf in zeros]

    @property
    def output_names(self) -> list[str]:
        """What it returns, in order."""
        with torch.no_grad():
            return list(self(self.example(1)))

    def example(self, size: int) -> dict[str, Tensor]:
        """Zeros as inputs."""
        return {note.name: torch.zeros(size, *note.shape, dtype=getattr(torch, note.dtype)) for note in self.inputs}

    def arrays(self, observations: Nest, first: Array, reward: Array, memory: Memory) -> dict[str, Array]:
        """A batch, with observations as networks take them, as the inputs that the graph takes."""
        leaves = optree.tree_leaves(counted(self.space, observations, 1))
        leaves += [first] if self.state_names else []
        leaves += [reward] if self._last else []
        notes = zip(self.inputs, [*leaves, *leaves_in(memory)], strict=True)
        return {note.name: np.array(leaf, note.dtype) for note, leaf in notes}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = [inputs[name] for name in self.observation_names]
        observation = optree.tree_unflatten(optree.tree_structure(self._spec), leaves)
        observation = counted(self.space, observation, -1)
        first = inputs.get(FIRST)
        if first is None:
            first = leaves[0].new_zeros(leaves[0].shape[:1], dtype=torch.bool)
        memory = self._memory([inputs[name] for name in self.state_names])
        seen = self._seen(observation, first, inputs.get(REWARD), memory)
        outputs: list[Any] = []

        def step(*given: Any) -> Any:
            outputs.append(self._step(*given))
            return outputs[-1]

        action, _, state = self._algorithm.act(step, seen, first, memory.network, None)
        after = leaves_in(Memory(state, action if self._last else ()))
        scores = self._scores(outputs[-1])
        named = {f"next_{name}": leaf for name, leaf in zip(self.state_names, after, strict=True)}
        return {ACTION: self.units(action), **scores, **named}

    def _scores(self, output: Any) -> dict[str, Tensor]:
        """The outputs from which the action was chosen, without a critic's value of a continuous action."""
        known = {name: value for name, value in output._asdict().items() if name in SCORES}
        if isinstance(self._env.spec.action, ContinuousAction):
            known.pop("q", None)
        return {SCORES[name]: value for name, value in known.items()}

    def _memory(self, leaves: list[Tensor]) -> Memory:
        like: Any = self.memory
        memory: Any = optree.tree_unflatten(optree.tree_structure(like), leaves)
        return cast(Memory, memory)

    def _seen(self, observation: Nest, first: Tensor, reward: Tensor | None, memory: Memory) -> Nest:
        """With the last action and reward, where the network looks at them; and masks of a type that exporters know."""
        if isinstance(observation, dict) and ACTION_MASK in observation:
            observation = {**observation, ACTION_MASK: observation[ACTION_MASK].int()}
        if reward is None or not isinstance(self._env, WithLastInputs):
            return observation
        own = {"observation": observation} if self._env.wraps else observation
        going_on = ~first
        kept = going_on.reshape(-1, *[1] * (memory.action.dim() - 1))
        return {**own, LAST_ACTION: memory.action * kept, LAST_REWARD: reward * going_on}


def names_of(spec: Nest, root: str) -> list[str]:
    """The name of every leaf, such as `observation.image`."""
    return [".".join([root, *map(str, path)]) for path in optree.tree_paths(spec)]


def _meaning(name: str, leaf: ArraySpec) -> str:
    if name.endswith(f".{ACTION_MASK}"):
        return "1 where an action is allowed, over all choices in a row"
    return "categories, as the env counts them" if leaf.num_values is not None else "as the env shows it"


def tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    """The same as tensors."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
