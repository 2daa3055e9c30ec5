"""`pappus data record`: play a policy for some episodes, and record them as a data set.

    env ⇄ policy (of a run, or random) ──steps──▶ recorder ──▶ data set
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from pappus.accelerator import one_thread
from pappus.algorithms.dqn import GREEDY
from pappus.config import EnvOptions, RunConfig
from pappus.data.assemble import complete
from pappus.data.metadata import METADATA, raw_metadata
from pappus.data.recorder import LOG_PROB, EpisodeRecorder, Recording
from pappus.envs.vector import VectorEnv, make_env
from pappus.errors import UserError
from pappus.record import RunRecording, about_env
from pappus.roles.acting import LocalPolicy
from pappus.roles.evaluator import MAX_ENVS
from pappus.system import System
from pappus.systems import saved_config
from pappus.telemetry.run_folders import find_checkpoint
from pappus.trained import stored_policy, unused_settings
from pappus.trust import env_asked, remember
from pappus.types import ACTION_MASK, ActionSpec, Array, ContinuousAction, Timestep

RANDOM = "random"
"""The name of the policy that takes any action."""


@dataclass(frozen=True)
class Playing:
    """What to play, and how."""

    policy: str
    """A run directory, or `random`."""
    out: Path
    env: str = ""
    """The env; empty: that of the run."""
    episodes: int = 100
    epsilon: float = 0.0
    """Share of actions that are random, of a policy that is greedy otherwise."""
    sample: bool = False
    """Sample actions from the policy, as its actors did."""
    seed: int = 0
    """Of envs and actions of a new set; one that is continued counts on from it."""
    checkpoint: str = "latest"
    trust: bool = False
    """Run the code that the run directory names, whoever wrote it."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise UserError(f"episodes={self.episodes} must be at least 1")
        if not 0 <= self.epsilon <= 1:
            raise UserError(f"epsilon={self.epsilon} is no probability; use 0 … 1")
        if self.policy == RANDOM and not self.env:
            raise UserError("a random policy needs an env to play in; give --env ID")
        if self.epsilon and (self.sample or self.policy == RANDOM):
            raise UserError(f"epsilon={self.epsilon} is for a greedy policy; leave --epsilon or --sample out")


class Player(Protocol):
    """Timesteps → actions `[N, …]`, and what is recorded with them."""

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]: ...


class RandomPlayer:
    """Every allowed action is as likely as any other."""

    def __init__(self, action: ActionSpec, seed: int) -> None:
        self._action, self._random = action, np.random.default_rng(seed)

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Uniform actions, and their log-probabilities: those of continuous ones are densities."""
        count, spec = len(timestep.first), self._action
        if isinstance(spec, ContinuousAction):
            action = self._random.uniform(-1, 1, (count, *spec.shape)).astype(np.float32)
            return action, {LOG_PROB: np.full(count, -np.log(2.0) * action[0].size, np.float32)}
        chosen, log_prob = [], np.zeros(count)
        for mask in np.split(allowed_actions(timestep, spec), np.cumsum(spec.choices)[:-1], axis=1):
            dice = np.where(mask, self._random.random(mask.shape), -1.0)
            chosen.append(dice.argmax(1))
            log_prob -= np.log(mask.sum(1))
        shaped = np.stack(chosen, 1) if spec.array.shape else chosen[0]
        return shaped, {LOG_PROB: log_prob.astype(np.float32)}


class EpsilonPlayer:
    """Takes the greedy action of a policy or, with probability ε, any."""

    def __init__(self, policy: LocalPolicy, action: ActionSpec, epsilon: float, seed: int) -> None:
        self._policy, self._spec, self._epsilon = policy, action, epsilon
        self._any, self._random = RandomPlayer(action, seed), np.random.default_rng([seed, 1])

    def act(self, timestep: Timestep) -> tuple[Array, dict[str, Array]]:
        """Where one of several actions is taken, its log-probability is known."""
        best, _ = self._policy.act(timestep)
        anything, uniform = self._any.act(timestep)
        explores = self._random.random(len(best)) < self._epsilon
        action = np.where(explores.reshape(-1, *[1] * (best.ndim - 1)), anything, best)
        epsilon = np.full(len(best), self._epsilon, np.float32)
        if isinstance(self._spec, ContinuousAction):
            return action, {"epsilon": epsilon}
        greedy = (action == best).reshape(len(best), -1).all(1)
        probability = greedy * (1 - epsilon) + epsilon * np.exp(uniform[LOG_PROB])
        return action, {"epsilon": epsilon, GREEDY: greedy, LOG_PROB: np.log(probability).astype(np.float32)}


def allowed_actions(timestep: Timestep, spec: ActionSpec) -> Array:
    """Which actions each env allows, `[N, choices]`; an env that allows none takes what it gets."""
    seen = timestep.observation
    if isinstance(seen, dict) and ACTION_MASK in seen:
        mask: Array = seen[ACTION_MASK] > 0
        return mask
    return np.ones((len(timestep.first), sum(spec.choices)), np.bool_)


def play(playing: Playing) -> str:
    """Record the episodes, and say what was recorded."""
    playing = replace(playing, seed=playing.seed + episodes_in(playing.out))  # or a set would get the same ones again
    options, name = EnvOptions(), playing.env
    if playing.policy != RANDOM:
        _, config = saved_run(playing)
        options, name = config.env_options, playing.env or config.env
    remember(env_asked(playing.env))
    with contextlib.closing(make_env(name, min(playing.episodes, MAX_ENVS), playing.seed, options)) as env:
        player = player_of(playing, env)
        how = {"policy": playing.policy, "epsilon": playing.epsilon, "sampled": playing.sample}
        whole = RunRecording(playing.out, about_env(name, name, options, env.spec, **how))
        recording = Recording(playing.out)
        recorder = recording.recorder("player", env.num_envs, env.seeds)
        try:
            with one_thread():
                returns = play_episodes(env, player, recorder, playing.episodes)
        except KeyboardInterrupt:
            print(f"episodes up to the last second are kept: pappus data info {playing.out} makes a data set of them")
            raise
        recording.close()
    return f"{whole.finish()} (mean return {np.mean(returns):.2f}, standard deviation {np.std(returns):.2f})"


def episodes_in(directory: Path) -> int:
    """Episodes that a data set has already, those of whoever was interrupted among them."""
    with contextlib.suppress(UserError):  # what is wrong there is said when the recording begins
        complete(directory)
    folder = directory / "data"
    return int(raw_metadata(folder)["total_episodes"]) if (folder / METADATA).is_file() else 0


def saved_run(playing: Playing) -> tuple[System, RunConfig]:
    """The system and the config of the run whose policy plays."""
    return saved_config(Path(playing.policy), trust=playing.trust, without=unused_settings(playing.env))


def player_of(playing: Playing, env: VectorEnv) -> Player:
    """The policy that acts."""
    if playing.policy == RANDOM:
        return RandomPlayer(env.spec.action, playing.seed)
    run = Path(playing.policy)
    system, config = saved_run(playing)
    path, seed = find_checkpoint(run, playing.checkpoint), playing.seed if playing.sample else None
    policy = stored_policy(system, config, env.spec, path, env.num_envs, seed)
    if not playing.sample:
        return EpsilonPlayer(policy, env.spec.action, playing.epsilon, playing.seed)
    if LOG_PROB not in system.algorithm.make(config.algorithm, env.spec, config.network).behaviour:
        raise UserError(f"run {str(run)!r} has a policy that is not sampled from; use --epsilon instead of --sample")
    return policy


def play_episodes(env: VectorEnv, player: Player, recorder: EpisodeRecorder, episodes: int) -> list[float]:
    """Play so many episodes, divided among the envs in advance (the first to end are the short ones); their returns."""
    left = np.full(env.num_envs, episodes // env.num_envs) + (np.arange(env.num_envs) < episodes % env.num_envs)
    returns: list[float] = []
    timestep = env.reset()
    recorder.begin(timestep)
    while left.any():
        action, behaviour = player.act(timestep)
        timestep = env.step(action)
        wanted = left > 0
        recorder.record(action, behaviour, timestep._replace(valid=timestep.valid & wanted))  # the rest is no episode
        if timestep.episodes is not None:
            ended, envs = wanted[timestep.episodes.envs], timestep.episodes.envs
            returns += timestep.episodes.returns[ended].tolist()
            left[envs[ended]] -= 1
    return returns
