"""The `ale` backend: Atari games, stepped by ale-py's own vector env.

ale-py resets in the step after a game ended (Gymnasium's NEXT_STEP) and gives no access to the emulators' state, so
there are no snapshots. Three of its options are not used:

- `episodic_life` restarts the whole game when a life is lost, so later lives would never be played.
- `life_loss_info` reports a lost life like a game over, so that returns per game would be lost.
- `reward_clipping` hides the raw score.

Instead `GameRules` derives the learner's view from the raw stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from pappus.config import AtariOptions, EnvOptions
from pappus.envs.gym_vector import NextStepStream, Transition
from pappus.envs.info_metrics import InfoMetrics
from pappus.envs.vector import VectorEnv, first_env_seed
from pappus.errors import UserError, closest, install_line
from pappus.types import Array, ArraySpec, DiscreteAction, EnvSpec, Nest, Timestep

_OPEN_KWARGS = ("maxpool", "thread_affinity_offset", "use_fire_reset")


class GameRules:
    """The learner's view of a game: clipped rewards, and a lost life as the end of an episode, if configured.

    The game continues when a life is lost, so there is no pseudo-transition: the transition that lost it is valid
    with discount 0 and leads to an observation with `first` True. The loss of the last life is the end of the
    game, which the env reports itself; some games show 0 lives for a moment before, which does not count.
    """

    def __init__(self, options: AtariOptions, num_envs: int) -> None:
        self._options, self._lives = options, np.zeros(num_envs, np.int32)

    def start(self, lives: Array) -> None:
        self._lives = lives

    def apply(self, transition: Transition, lives: Array, ended: Array) -> Transition:
        """Change a transition of the raw game in place."""
        if self._options.life_loss_ends_episode:
            lost = (lives < self._lives) & (lives > 0) & transition.valid & ~ended
            self._lives = lives
            transition.discount[lost] = 0
            transition.first[lost] = True
        if self._options.clip_rewards:
            np.clip(transition.reward, -1, 1, out=transition.reward)
        return transition


class AtariEnv(VectorEnv):
    """N games of one kind: gray single frames `[N, height, width]`; `first_seed` is None if they are seeded already."""

    def __init__(
        self, env: Any, first_seed: int | None, options: AtariOptions, metrics: Sequence[str] = ()
    ) -> None:
        self._metrics = InfoMetrics(metrics)
        self.env = env
        self.num_envs = int(env.num_envs)
        side = options.screen_size
        self._num_actions = int(env.single_action_space.n)
        frame, action = ArraySpec((side, side), "uint8"), DiscreteAction(self._num_actions)
        self.spec = EnvSpec(frame, action, options.frame_stack)
        self._seed, self.clips_rewards = first_seed, options.clip_rewards
        self._stream = NextStepStream(self.num_envs)
        self._rules = GameRules(options, self.num_envs)

    def reset(self) -> Timestep:
        frames, info = self.env.reset(seed=self._seed)
        self._seed = None
        self._rules.start(info["lives"])
        return Timestep(frames[:, 0], *self._stream.reset())

    def step(self, action: Array) -> Timestep:
        if action.min() < 0 or action.max() >= self._num_actions:  # ale-py would wait for its dead thread forever
            raise ValueError(f"actions {action} are not all within 0 to {self._num_actions - 1}")
        frames, reward, terminated, truncated, info = self.env.step(action)
        self._metrics.read(info)
        transition = self._stream.step(reward, terminated, truncated)
        return Timestep(frames[:, 0], *self._rules.apply(transition, info["lives"], terminated | truncated))

    def to_nest(self, batch: Nest) -> Nest:
        """Frames in the env's own format, `[N, 1, height, width]` or without the 1."""
        return np.asarray(batch).reshape(-1, *self.spec.observation.shape)

    def take_metrics(self) -> dict[str, tuple[float, float]]:
        return self._metrics.take()

    def close(self) -> None:
        self.env.close()


def make_atari(env: str, num_envs: int, seed: int, options: EnvOptions) -> AtariEnv:
    """N games of `ALE/Name-v5`."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError:
        raise UserError(f"env {env!r} needs ale-py, which is not installed; run {install_line('atari')}") from None
    atari = options.atari
    games = AtariVectorEnv(
        _rom_of(env), num_envs, num_threads=options.threads, max_num_frames_per_episode=atari.max_frames,
        repeat_action_probability=atari.sticky_actions, full_action_space=atari.full_action_space,
        img_height=atari.screen_size, img_width=atari.screen_size, stack_num=1, frameskip=atari.frame_skip,
        noop_max=atari.noop_max + 1,  # ale-py draws below its maximum
        episodic_life=False, life_loss_info=False, reward_clipping=False,
        **open_kwargs(options.kwargs, _OPEN_KWARGS),
    )
    return AtariEnv(games, first_env_seed(seed, num_envs), atari, options.metrics)


def open_kwargs(kwargs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Constructor arguments that neither `AtariOptions` nor this backend sets."""
    for name in kwargs:
        if name not in names:
            raise UserError(f"env kwarg {name!r} cannot be set for Atari; use the atari options or {', '.join(names)}")
    return kwargs


def _rom_of(env: str) -> str:
    import ale_py

    gym.register_envs(ale_py)
    known = {name: spec.kwargs["game"] for name, spec in gym.registry.items() if spec.namespace == "ALE"}
    if env not in known:
        raise UserError(f"env {env!r} is not a game of ale-py{closest(env, list(known)) or '; write ALE/Pong-v5'}")
    return str(known[env])
