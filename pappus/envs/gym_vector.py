"""Gymnasium vector envs in the time convention of `pappus.types`.

    NEXT_STEP   … o_T (final)  --ignored action-->  o_0 (reset)  --a_0--> …
    SAME_STEP   … o_{T-1}  --a_{T-1}-->  o_0 (reset)  --a_0--> …

With next-step autoreset the stream shows every final observation, and the step after it is the pseudo-transition:
valid False, reward and discount 0, `first` True.

With same-step autoreset (and with autoreset disabled, where the backend resets at once) the final observation has no
place in the stream: N envs step together, so one env cannot wait to show it. A terminated transition does not need it,
because its discount of 0 multiplies whatever follows: it stays valid and the reset observation comes next. A truncated
transition would bootstrap from the wrong observation: it is marked invalid.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import optree
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pappus.envs.info_metrics import InfoMetrics
from pappus.envs.snapshot import capture, obstacle, restore
from pappus.envs.spaces import InfoMasks, action_converter, flat_rows, observation_converter
from pappus.envs.vector import VectorEnv
from pappus.errors import UserError
from pappus.types import ACTION_MASK, Array, EnvSpec, Episodes, Nest, Timestep

GymVector: TypeAlias = gym.vector.VectorEnv[Any, Any, Any]


class Transition(NamedTuple):
    """A Timestep without its observation; the arrays are new in each step."""

    first: Array
    reward: Array
    discount: Array
    valid: Array
    episodes: Episodes | None


class Stream:
    """Turns the step results of N envs into transitions, and sums raw rewards and steps of every episode."""

    _length_after_end = 0

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._returns, self._lengths = np.zeros(num_envs, np.float64), np.zeros(num_envs, np.int64)

    def reset(self) -> Transition:
        """All envs start an episode; there was no transition before it."""
        self._returns[:] = 0
        self._lengths[:] = 0
        nothing = np.zeros(self._num_envs, np.float32)
        no = np.zeros(self._num_envs, np.bool_)
        return Transition(~no, nothing, nothing.copy(), no, None)

    def step(self, reward: Array, terminated: Array, truncated: Array) -> Transition:
        """One step of all envs, `[N]` each."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Nest]:
        """The state to continue from."""
        return {"episodes": {"returns": self._returns.copy(), "lengths": self._lengths.copy()}}

    def restore(self, snapshot: Nest) -> None:
        """Continue from a snapshot of the same number of envs."""
        self._returns[:] = snapshot["episodes"]["returns"]
        self._lengths[:] = snapshot["episodes"]["lengths"]

    def _count(self, reward: Array, ended: Array) -> Episodes | None:
        """Add one step; the episodes that it `ended`, or None."""
        self._returns += reward
        self._lengths += 1
        envs = ended.nonzero()[0]
        if not len(envs):
            return None
        episodes = Episodes(self._returns[envs], self._lengths[envs], envs)
        self._returns[envs] = 0
        self._lengths[envs] = self._length_after_end
        return episodes


class NextStepStream(Stream):
    """For envs that show the final observation and reset in the step after it."""

    _length_after_end = -1  # the pseudo-transition does not count

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self._over, self._some_over = np.zeros(num_envs, np.bool_), False

    def reset(self) -> Transition:
        self._over, self._some_over = np.zeros(self._num_envs, np.bool_), False
        return super().reset()

    def step(self, reward: Array, terminated: Array, truncated: Array) -> Transition:
        """Envs whose episode was over before this step take the pseudo-transition."""
        restarted = self._over
        valid = ~restarted
        terminated = np.asarray(terminated, np.bool_)
        self._over = terminated | np.asarray(truncated, np.bool_)
        reward = np.array(reward, np.float32)
        if self._some_over:
            reward[restarted] = 0
        episodes = self._count(reward, self._over)
        self._some_over = episodes is not None
        return Transition(restarted, reward, (valid > terminated).astype(np.float32), valid, episodes)

    def snapshot(self) -> dict[str, Nest]:
        return {**super().snapshot(), "over": self._over.copy()}

    def restore(self, snapshot: Nest) -> None:
        super().restore(snapshot)
        self._over = np.array(snapshot["over"], np.bool_)
        self._some_over = bool(self._over.any())


class SameStepStream(Stream):
    """For envs that show the reset observation in the step that ended the episode."""

    def step(self, reward: Array, terminated: Array, truncated: Array) -> Transition:
        """A truncated transition is invalid, because its successor cannot be shown."""
        terminated = np.asarray(terminated, np.bool_)
        first = terminated | np.asarray(truncated, np.bool_)
        going_on = ~first
        valid = terminated | going_on
        reward = np.asarray(reward).astype(np.float32)
        episodes = self._count(reward, first)
        reward[~valid] = 0
        return Transition(first, reward, going_on.astype(np.float32), valid, episodes)


class GymVectorEnv(VectorEnv):
    """A Gymnasium vector env in our time convention; `first_seed` is None if it is seeded already, and `metrics` are
    keys of its infos."""

    def __init__(self, env: GymVector, first_seed: int | None, metrics: Sequence[str] = ()) -> None:
        self._metrics = InfoMetrics(metrics)
        self.env = env
        self.num_envs = env.num_envs
        if first_seed is not None and isinstance(env.unwrapped, SyncVectorEnv):
            self.seeds = first_seed + np.arange(env.num_envs)
        if first_seed is not None:
            seed_spaces(env, first_seed)
        self._autoreset = autoreset_mode(env)
        next_step = self._autoreset is AutoresetMode.NEXT_STEP
        self._stream: Stream = NextStepStream(env.num_envs) if next_step else SameStepStream(env.num_envs)
        action, self._convert_action = action_converter(env.single_action_space)
        observation, self._convert = observation_converter(env.single_observation_space, action)
        # Only a reset shows whether an env gives masks; the first call of reset() returns this start.
        self._start: tuple[Nest, dict[str, Any]] | None = env.reset(seed=first_seed)
        self._masks: InfoMasks | None = None
        if ACTION_MASK in self._start[1] and not (isinstance(observation, dict) and ACTION_MASK in observation):
            self._masks = InfoMasks(env.num_envs, action)
            observation = {"observation": observation, ACTION_MASK: self._masks.spec}
        self.spec = EnvSpec(observation, action, env.metadata.get("frame_stack", 1))

    def reset(self) -> Timestep:
        observation, info = self._start or self.env.reset()
        self._start = None
        masks = None if self._masks is None else self._masks.read(info)
        return Timestep(self._shown(observation, masks), *self._stream.reset())

    def step(self, action: Array) -> Timestep:
        observation, reward, terminated, truncated, info = self.env.step(self._convert_action(action))
        if info:
            self._metrics.read(info)
        transition = self._stream.step(reward, terminated, truncated)
        masks = None if self._masks is None else self._masks.read(info)
        if transition.episodes is not None and self._autoreset is AutoresetMode.DISABLED:
            observation, masks = self._reset_ended(transition.first, observation, masks)
        return Timestep(self._shown(observation, masks), *transition)

    def to_nest(self, batch: Nest) -> Nest:
        """Observations in the env's own format; with masks by info as `{"observation": …, "action_mask": …}`."""
        if self._masks is None:
            return self._convert(batch)
        return self._shown(batch["observation"], flat_rows(batch[ACTION_MASK]))

    def to_action(self, action: Array) -> Array:
        return self._convert_action(action)

    def render(self) -> Any:
        pictures = self.env.render()
        return pictures[0] if pictures else None

    def take_metrics(self) -> dict[str, tuple[float, float]]:
        return self._metrics.take()

    def close(self) -> None:
        self.env.close()

    def snapshot(self) -> Nest | None:
        """The envs' attributes and the running episodes; None when an attribute is of an unknown mutable type."""
        envs = capture(self.env)
        return None if envs is None else {"envs": envs, "stream": self._stream.snapshot()}

    def no_snapshot(self) -> str:
        return obstacle(self.env)

    def restore(self, snapshot: Nest) -> None:
        restore(self.env, snapshot["envs"])
        self._stream.restore(snapshot["stream"])
        self._start = None

    def _shown(self, observation: Nest, masks: Array | None) -> Nest:
        nest = self._convert(observation)
        return nest if masks is None else {"observation": nest, ACTION_MASK: masks}

    def _reset_ended(self, ended: Array, observation: Nest, masks: Array | None) -> tuple[Nest, Array | None]:
        """Reset the envs that ended and show their first observation beside the others' newest one."""
        fresh, info = self.env.reset(options={"reset_mask": ended.copy()})
        if masks is not None and self._masks is not None:
            masks[ended] = 1
            masks = self._masks.read(info, masks)

        def merge(old: Array, new: Array) -> Array:
            rows = ended.reshape(-1, *[1] * (np.ndim(old) - 1))
            return np.where(rows, new, old)

        return optree.tree_map(merge, observation, fresh), masks


def autoreset_mode(env: GymVector) -> AutoresetMode:
    """How the env resets when an episode ends; an env that does not declare it is refused: guessing corrupts data."""
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise UserError(
            f"{type(env).__name__} has metadata['autoreset_mode']={mode!r}; "
            "set the gymnasium.vector.AutoresetMode that its step() follows"
        ) from None


def seed_spaces(env: Any, seed: int) -> None:
    """Seed the spaces of envs, of their wrappers and sub-envs: Gymnasium takes seeds of spaces from the system, and an
    env may draw from its spaces."""
    for value in vars(env).values():
        if isinstance(value, gym.Space):
            value.seed(seed)
    inside = [getattr(env, "env", None)]
    if isinstance(env, gym.vector.VectorEnv):
        inside += getattr(env, "envs", ())
    for i, one in enumerate(inner for inner in inside if isinstance(inner, gym.Env | gym.vector.VectorEnv)):
        seed_spaces(one, seed + i)


def trusting(env: GymVector) -> GymVector:
    """The same native vector env, which checks only the shape of actions.

    Comparing every action with the bounds takes a sixth of a step of CartPole; ours are within them by construction.
    """
    space: Any = copy.copy(env.unwrapped.action_space)  # other envs may share it
    shape = space.shape
    space.contains = lambda action: action.shape == shape
    env.unwrapped.action_space = space
    return env
