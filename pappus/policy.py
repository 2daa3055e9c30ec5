"""A trained policy as its user sees it: observations in the env's own format in, actions in the env's own units out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import optree
import torch

from pappus.data.episode import Episode
from pappus.data.reading import with_last_inputs
from pappus.envs.vector import LAST_ACTION, LAST_REWARD, VectorEnv, WithLastInputs
from pappus.errors import UserError
from pappus.roles.acting import LocalPolicy
from pappus.types import ACTION_MASK, Array, ArraySpec, Nest, map_leaves


class Memory(NamedTuple):
    """What a policy remembers of N episodes: pass on what `predict` returned, and look at nothing in it."""

    network: Nest
    """Recurrent state, arrays `[N, …]`."""
    action: Nest = ()
    """The last action in units of policies, where the network looks at it."""


class TrainedPolicy:
    """Acts on the observations of an env. `predict` takes batches and leaves the memory to its caller; `act` takes the
    observations of one env, one by one, and remembers: call `reset` when an episode starts."""

    def __init__(self, env: VectorEnv, policy: LocalPolicy, seed: int = 0) -> None:
        self.env, self.policy = env, policy
        self._last = isinstance(env, WithLastInputs)
        self._generator = torch.Generator().manual_seed(seed)
        self._memory: Memory | None = None

    def predict(
        self, observations: Nest, *, deterministic: bool = True, state: Memory | None = None,
        first: Any = None, reward: Any = None,
    ) -> tuple[Array, Memory]:
        """Actions `[N, …]` for observations `[N, …]`, and the memory to give as `state` with the next ones.

        Both are as the env has them: its dtypes, dicts and masks; its units, within its bounds. An env that gives masks
        in `info` is asked for `{"observation": …, "action_mask": …}`. Without a `state`, or where `first [N]` is true,
        an episode begins. `reward [N]` is what the last actions earned, which only networks trained with `last_inputs`
        look at. Not `deterministic`: sampled, where the policy is a distribution; others always take their best action.
        """
        size = check_batch(self.own_spec(), observations)
        starts = _rows(first, size, np.bool_, "first", state is None)
        memory = self.first_memory(size) if state is None else state
        _check_memory(memory, self.first_memory(1), size)
        seen = self._seen(observations, starts, memory, _rows(reward, size, np.float32, "reward", 0.0))
        _check_shown(self.env.spec.observation, seen)
        generator = None if deterministic else self._generator
        action, _, after = self.policy.choose(seen, starts, map_leaves(torch.from_numpy, memory.network), generator)
        after = map_leaves(lambda leaf: leaf.numpy(), after)
        return self.env.to_action(action), Memory(after, action if self._last else ())

    def first_memory(self, size: int) -> Memory:
        """The memory of `size` episodes that have not begun."""
        network = map_leaves(lambda leaf: leaf.numpy(), self.policy.initial_state(size))
        spec = self.env.spec.action.array
        return Memory(network, np.zeros((size, *spec.shape), spec.dtype) if self._last else ())

    def reset(self) -> None:
        """The next observation starts an episode."""
        self._memory = None

    def act(self, observation: Nest, reward: float = 0.0) -> Any:
        """The greedy action for an observation as the env gives it, in the env's own units. `reward` is what the last
        action earned; only networks that were trained with `last_inputs` look at it."""
        batch = optree.tree_map(lambda leaf: np.asarray(leaf)[None], observation)
        action, self._memory = self.predict(batch, state=self._memory, reward=[reward])
        return action[0].item() if action[0].ndim == 0 else action[0]

    def log_prob(self, episode: Episode) -> Array:
        """log π(a_t | o_0 … o_t) of every action of a logged episode, `[T]`: of the policy as it samples or, where it
        has one best action, −∞ for all others. Of continuous actions it is the log-density, in units of policies."""
        seen = with_last_inputs(episode) if self._last else episode
        shown = map_leaves(lambda leaf: leaf[:-1, None], seen.observation)
        first = (np.arange(episode.length) == 0)[:, None]
        choice, _ = self.policy.choices(shown, first, self.policy.initial_state(1))
        rows: Array = choice.log_prob(torch.from_numpy(episode.action[:, None])).numpy()
        return rows[:, 0]

    def own_spec(self) -> Nest:
        """What the env itself shows, without what is added to it."""
        return self.without_last_inputs(self.env.spec.observation)

    def without_last_inputs(self, observation: Nest) -> Nest:
        """What the env itself shows of an observation as networks take it."""
        if not isinstance(self.env, WithLastInputs):
            return observation
        rest = {key: leaf for key, leaf in observation.items() if key not in (LAST_ACTION, LAST_REWARD)}
        return rest["observation"] if self.env.wraps else rest

    def _seen(self, observations: Nest, first: Array, memory: Memory, reward: Array) -> Nest:
        """A batch as the network is shown it."""
        if isinstance(self.env, WithLastInputs):
            kept = ~first.reshape(-1, *[1] * (memory.action.ndim - 1))
            self.env.note(np.where(kept, memory.action, 0).astype(memory.action.dtype), np.where(first, 0, reward))
        return self.env.to_nest(observations)


def check_batch(spec: Nest, batch: Nest, name: str = "observations") -> int:
    """The number of rows of a batch of observations in the env's own format; `UserError` if it is none."""
    if isinstance(spec, ArraySpec):
        if isinstance(batch, dict):
            raise UserError(f"{name} is a dict, but this policy sees arrays; give the array alone")
        return _check_leaf(spec, np.asarray(batch), name)
    keys = list(spec) if isinstance(spec, dict) else list(range(len(spec)))
    kind = dict if isinstance(spec, dict) else tuple
    there = isinstance(batch, dict | tuple | list) and isinstance(batch, dict) == (kind is dict)
    missing = [key for key in keys if not there or (key not in batch if kind is dict else key >= len(batch))]
    if missing:
        wanted = f"a {kind.__name__} with {', '.join(map(repr, keys))}"
        raise UserError(f"{name} lacks {missing[0]!r}: this policy was trained on {wanted}; give all of them")
    sizes = {key: check_batch(spec[key], batch[key], f"{name}[{key!r}]") for key in keys if key != ACTION_MASK}
    if len(set(sizes.values())) > 1:
        raise UserError(f"{name} has {sizes} rows; give the same number of rows of each")
    return next(iter(sizes.values()))


def _check_leaf(spec: ArraySpec, given: Array, name: str) -> int:
    """The number of rows of one array; other numbers than the policy was trained on would not be understood."""
    wanted = f"[N, {', '.join(map(str, spec.shape))}]".replace(", ]", "]")
    if given.shape[1:] not in (spec.shape, (1, *spec.shape)) or given.ndim == 0:
        single = given.shape == spec.shape
        remedy = "it is a single observation: give observation[None], or use act" if single else "change its shape"
        raise UserError(f"{name} has shape {list(given.shape)}, but this policy sees batches {wanted}; {remedy}")
    counts = spec.num_values is not None and given.dtype.kind in "iu"
    if given.dtype == object or not (counts or np.can_cast(given.dtype, spec.dtype, "same_kind")):
        raise UserError(
            f"{name} has dtype {given.dtype}, but this policy was trained on {spec.dtype}; give what the env gives, or "
            f"convert it with .astype({spec.dtype!r}) if it means the same"
        )
    return len(given)


def _check_shown(spec: Nest, seen: Nest) -> None:
    """Raise `UserError` where converted observations, masks among them, have other shapes than the network's."""
    size = len(optree.tree_leaves(seen)[0])
    leaves: list[ArraySpec] = optree.tree_leaves(spec)
    for path, leaf, shown in zip(optree.tree_paths(spec), leaves, optree.tree_leaves(seen), strict=True):
        if shown.shape != (size, *leaf.shape):
            name = "observations" + "".join(f"[{key!r}]" for key in path)
            raise UserError(f"{name} has shape {list(shown.shape)}; this policy needs {[size, *leaf.shape]}")


def _check_memory(memory: Memory, one: Memory, size: int) -> None:
    """Raise `UserError` for what is no memory of so many episodes of this policy."""
    given, wanted = leaves_in(memory), leaves_in(one)
    shapes = [(size, *leaf.shape[1:]) for leaf in wanted]
    if len(given) != len(wanted) or [np.shape(leaf) for leaf in given] != shapes:
        raise UserError(
            f"state is not a recurrent state of {size} episodes of this policy; "
            "give what predict returned for them"
        )


def leaves_in(nest: Nest) -> list[Any]:
    """All leaves in order, of a named tuple, too."""
    return optree.tree_leaves(nest)


def _rows(given: Any, size: int, dtype: type, name: str, default: float) -> Array:
    """`[N]` of a dtype, the default where nothing is given."""
    if given is None:
        return np.full(size, default, dtype)
    rows: Array = np.asarray(given, dtype)
    if rows.shape != (size,):
        raise UserError(f"{name} has shape {list(rows.shape)}; give one for each of the {size} observations")
    return rows
