"""Toy MDPs whose values are known in closed form, played side by side: `--env tests.envs.exact_envs:walks`.

    chain    c0 ──0──▶ c1 ──0──▶ c2 ──0──▶ c3 ──4──▶ end                       Q(c_k) = 4 γ^(3−k)
    loop     l ──1──▶ l …, cut off                                             Q(l) = 1 / (1−γ)
    edge     s ──−2──▶ a ──0──▶ b ──2──▶ a …, cut off where an unroll ends     Q(b) = 2 / (1−γ²), Q(a) = γ Q(b)
    trap     j ──4──▶ w ──0──▶ w …, cut off                                    Q(j) = 4, Q(w) = 0
    bandit   left ──0──▶ open: 1 or 5 ──▶ end                                  Q(left) = 5 γ
             right ──0──▶ shut: 1 or (forbidden) 5 ──▶ end                     Q(right) = γ
    slope    foot ──0──▶ top: 2 + a, −1 ≤ a ≤ 1 ──▶ end                        Q(top, a) = 2 + a, Q(foot) = 3 γ

What is cut off is truncated by a limit that the observation does not show: its value is that of going on for ever.
In all but the last two it does not matter what is done. A step that only resets an env, as next-step autoreset has
them, comes with a reward of 9, which belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pappus.types import ACTION_MASK, Array

GAMMA = 0.7
"""What the values below are true for."""
UNROLL = 4
"""The edge's episodes end where unrolls of so many steps do."""
END = "end"
"""What is shown after a termination."""
NOBODYS_REWARD = 9.0
FORBIDDEN = float("nan")
"""The value of an action that the mask does not allow: there is none."""
JUDGED = (-0.5, 0.0, 0.5)
"""Continuous actions whose values are given."""

Gym: TypeAlias = VectorEnv[Any, Any, Any]


class Step(NamedTuple):
    """What an action does."""

    reward: float
    to: str


@dataclass(frozen=True)
class World:
    """A deterministic MDP. One step, or one value, stands for all actions where they are the same."""

    steps: Mapping[str, tuple[Step, ...]]
    starts: tuple[str, ...]
    """Where episodes start, in turn."""
    values: Mapping[str, tuple[float, ...]]
    """Q(state, action) by hand."""
    rows: tuple[int, ...] = ()
    """Steps, with the one that only resets where there is one, after which episodes are cut off, in turn; (): never."""
    looks_like: Mapping[str, str] = field(default_factory=dict)
    """States that show another one's light beside their own."""
    slopes: tuple[str, ...] = ()
    """States in which a continuous action is paid in addition."""


B = 2 / (1 - GAMMA**2)

WALKS: dict[str, World] = {
    "chain": World(
        steps={"c0": (Step(0, "c1"),), "c1": (Step(0, "c2"),), "c2": (Step(0, "c3"),), "c3": (Step(4, END),)},
        starts=("c0",),
        values={"c0": (4 * GAMMA**3,), "c1": (4 * GAMMA**2,), "c2": (4 * GAMMA,), "c3": (4.0,)},
    ),
    "loop": World(steps={"l": (Step(1, "l"),)}, starts=("l",), values={"l": (1 / (1 - GAMMA),)}, rows=(4, 3, 6)),
    "edge": World(
        steps={"s": (Step(-2, "a"),), "a": (Step(0, "b"),), "b": (Step(2, "a"),)}, starts=("s",),
        values={"s": (-2 + GAMMA**2 * B,), "a": (GAMMA * B,), "b": (B,)}, rows=(UNROLL, 2 * UNROLL),
    ),
    "trap": World(
        steps={"j": (Step(4, "w"),), "w": (Step(0, "w"),)}, starts=("j",), values={"j": (4.0,), "w": (0.0,)},
        rows=(3, 6, 4),
    ),
}
BANDIT: dict[str, World] = {
    "bandit": World(
        steps={
            "left": (Step(0, "open"),), "open": (Step(1, END), Step(5, END)),
            "right": (Step(0, "shut"),), "shut": (Step(1, END), Step(5, END)),
        },
        starts=("left", "right"),
        values={"left": (5 * GAMMA,), "open": (1.0, 5.0), "right": (GAMMA,), "shut": (1.0, FORBIDDEN)},
        looks_like={"shut": "open"},
    ),
}
SLOPE: dict[str, World] = {
    "slope": World(
        steps={"foot": (Step(0, "top"),), "top": (Step(2, END),)}, starts=("foot",),
        values={"foot": (3 * GAMMA,), "top": tuple(2 + action for action in JUDGED)}, slopes=("top",),
    ),
}


def walks(num_envs: int = 1, same_step: bool = False, continuous: bool = False) -> Gym:
    """Env i plays world i modulo 4."""
    return Worlds(WALKS, num_envs, same_step, continuous)


def bandit(num_envs: int = 1, same_step: bool = False) -> Gym:
    """Two arms, of which the better one is forbidden in every other episode."""
    return Worlds(BANDIT, num_envs, same_step, masked=True)


def slope(num_envs: int = 1, same_step: bool = False) -> Gym:
    """The larger a continuous action, the better."""
    return Worlds(SLOPE, num_envs, same_step, continuous=True)


def lights(worlds: Mapping[str, World]) -> dict[str, Array]:
    """What every state shows."""
    names = [name for world in worlds.values() for name in world.steps] + [END]
    shown = dict(zip(names, np.eye(len(names), dtype=np.float32), strict=True))
    for world in worlds.values():
        for name, other in world.looks_like.items():
            shown[name] = shown[name] + shown[other]
    return shown


class Worlds(VectorEnv[Any, Any, Any]):
    """Plays each world with several envs. The first episode of a world's k-th env is k steps longer than those of the
    others, which puts them out of phase: the edge's first env ends its episodes with an unroll's last step, and with
    next-step autoreset its second one resets with an unroll's first.
    """

    def __init__(
        self, worlds: Mapping[str, World], num_envs: int, same_step: bool, continuous: bool = False,
        masked: bool = False,
    ) -> None:
        self.num_envs, self._same_step, self._continuous, self._masked = num_envs, same_step, continuous, masked
        mode = AutoresetMode.SAME_STEP if same_step else AutoresetMode.NEXT_STEP
        self.metadata = {"autoreset_mode": mode}
        self._lights = np.stack(list(lights(worlds).values()))
        self._tabulate(worlds)
        self._worlds = [list(worlds.values())[env % len(worlds)] for env in range(num_envs)]
        self._delays = [env // len(worlds) for env in range(num_envs)]
        self._episode = np.zeros(num_envs, np.int64)
        self._place, self._left = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, bool)
        light = spaces.Box(0, 1, self._lights[0].shape, np.float32)
        self.single_observation_space = (
            spaces.Dict({"light": light, ACTION_MASK: spaces.MultiBinary(2)}) if masked else light
        )
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _tabulate(self, worlds: Mapping[str, World]) -> None:
        """Rewards, successors and masks, `[states, actions]`; nothing is allowed at the end."""
        self._numbers = {name: number for number, name in enumerate(lights(worlds))}
        self._reward, self._next, self._allowed = (np.zeros((len(self._numbers), 2)) for _ in range(3))
        self._slope = np.zeros(len(self._numbers))
        for world in worlds.values():
            for name, steps in world.steps.items():
                number = self._numbers[name]
                self._reward[number] = [step.reward for step in steps]
                self._next[number] = [self._numbers[step.to] for step in steps]
                self._allowed[number] = True if self._continuous else ~np.isnan(world.values[name])
                self._slope[number] = name in world.slopes
        self._next = self._next.astype(np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode[:], self._over[:] = 0, False
        self._begin(np.ones(self.num_envs, bool))
        return self._shown(), {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        restarts = self._over
        reward = np.where(restarts, NOBODYS_REWARD, self._paid(actions))
        choice = np.zeros(self.num_envs, np.int64) if self._continuous else actions
        self._place = np.where(restarts, self._place, self._next[self._place, choice])
        self._left -= 1
        terminated = ~restarts & (self._place == self._numbers[END])
        truncated = ~restarts & ~terminated & (self._left == 0)
        ended, info = terminated | truncated, dict[str, Any]()
        if self._same_step:
            info = {"final_obs": self._shown(), "_final_obs": ended} if ended.any() else info
            self._begin(ended)
        else:
            self._begin(restarts)
            self._over = ended
        return self._shown(), reward, terminated, truncated, info

    def _paid(self, actions: Array) -> Array:
        if not self._continuous:
            return np.asarray(self._reward[self._place, actions])
        return np.asarray(self._reward[self._place, 0] + self._slope[self._place] * actions[:, 0])

    def _begin(self, which: Array) -> None:
        for env in np.flatnonzero(which):
            world, episode = self._worlds[env], int(self._episode[env])
            rows = _in_turn(world.rows, episode) if world.rows else 10**9
            self._left[env] = rows + (self._delays[env] if episode == 0 else 0) - (0 if self._same_step else 1)
            self._place[env] = self._numbers[_in_turn(world.starts, episode)]
            self._episode[env] += 1

    def _shown(self) -> Any:
        light = self._lights[self._place]
        return {"light": light, ACTION_MASK: self._allowed[self._place].astype(np.int8)} if self._masked else light


def _in_turn(choices: Sequence[Any], episode: int) -> Any:
    return choices[episode % len(choices)]
