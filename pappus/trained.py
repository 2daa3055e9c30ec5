"""A policy out of a run directory: to act with, to evaluate, and to film."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pappus.accelerator import one_thread
from pappus.config import EnvOptions, RunConfig
from pappus.core import Algorithm
from pappus.data.no_env import env_to_act_in
from pappus.edges.weights import FlatWeights
from pappus.envs.vector import VectorEnv, backend_of, make_env
from pappus.errors import UserError, install_line
from pappus.kinds import EVALUATOR
from pappus.networks.flat import FlatParameters
from pappus.policy import TrainedPolicy
from pappus.roles.acting import LocalPolicy
from pappus.roles.evaluator import MAX_ENVS, Evaluator
from pappus.system import System
from pappus.systems import saved_config
from pappus.telemetry.run_folders import find_checkpoint
from pappus.telemetry.weights import stored_weights
from pappus.transports.memory import HeapBlock
from pappus.trust import ENV, REACHES
from pappus.types import Array, EnvSpec, Nest, Timestep

FRAMES_PER_SECOND = 30
MIN_SIDE = 336
"""Smaller pictures are enlarged by a whole factor."""


@dataclass(frozen=True)
class Evaluation:
    """Returns of greedy episodes."""

    returns: tuple[float, ...]
    lengths: tuple[float, ...]
    checkpoint: Path

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "mean_return": self.mean, "standard_deviation": float(np.std(self.returns)), "returns": list(self.returns),
            "lengths": list(self.lengths), "checkpoint": str(self.checkpoint),
        }

    def __str__(self) -> str:
        return (
            f"mean return {self.mean:.2f} over {len(self.returns)} greedy episodes "
            f"(standard deviation {np.std(self.returns):.2f}, min {min(self.returns):.1f}, "
            f"max {max(self.returns):.1f}, mean length {np.mean(self.lengths):.0f}) of {self.checkpoint}"
        )


def load_policy(
    run: str | Path, checkpoint: str = "latest", env: Callable[..., Any] | None = None, system: System | None = None,
    trust: bool = False, seed: int = 0,
) -> TrainedPolicy:
    """The policy of a run's `latest` or `best` checkpoint. Give `env` and `system` again where they were Python values
    that no name finds; `trust` the code that its config names, if you did not name it yourself in this folder before.
    `seed` is that of sampled actions. A run whose envs are elsewhere, or that has only data, needs no env here."""
    found, config = saved_config(Path(run), system, trust=trust, without=unused_settings(env))
    path = find_checkpoint(Path(run), checkpoint)
    vector = env_to_act_in(env or config.env, config.env_options, Path(run))
    return TrainedPolicy(vector, stored_policy(found, config, vector.spec, path, 1), seed)


def evaluate(
    run: str | Path, episodes: int = 20, seed: int = 0, checkpoint: str = "latest", video: Path | None = None,
    env: Callable[..., Any] | None = None, system: System | None = None, trust: bool = False,
) -> Evaluation:
    """Play whole greedy episodes with the policy of a run; with `video`, one by one and recorded there. For `env`,
    `system` and `trust` see `load_policy`."""
    if episodes < 1:
        raise UserError(f"episodes={episodes} must be at least 1")
    found, config = saved_config(Path(run), system, trust=trust, without=unused_settings(env))
    path, source = find_checkpoint(Path(run), checkpoint), env or config.env
    if video is not None:
        vector: VectorEnv = Recorder(source, seed, config.env_options, video, episodes)
    else:
        vector = make_env(source, min(episodes, MAX_ENVS), seed, config.env_options)
    evaluator = Evaluator(EVALUATOR.name, vector, stored_policy(found, config, vector.spec, path, vector.num_envs))
    evaluator.receive("evaluate", episodes)
    try:
        with one_thread():
            while evaluator.step() is None:
                pass
    finally:
        evaluator.close()
    played = evaluator.metrics.drain()["episodes"]
    return Evaluation(tuple(row[0] for row in played), tuple(row[1] for row in played), path)


def unused_settings(env: object) -> tuple[str, ...]:
    """Settings that mean nothing to who plays: by which a run reaches out, and the env's name where it is given."""
    return (*REACHES, *(["env"] if env else []))


def policy_on_data(
    run: str | Path, spec: EnvSpec, checkpoint: str = "latest", system: System | None = None, trust: bool = False
) -> LocalPolicy:
    """The policy of a run for observations of this spec, which need no env: those of a data set."""
    found, config = saved_config(Path(run), system, trust=trust, without=(*REACHES, *ENV))
    return stored_policy(found, config, spec, find_checkpoint(Path(run), checkpoint), 1)


def stored_policy(
    system: System, config: RunConfig, spec: EnvSpec, checkpoint: Path, num_envs: int, seed: int | None = None
) -> LocalPolicy:
    """The policy of a checkpoint, for so many envs; it acts greedily, or samples from a seed."""
    algorithm = system.algorithm.make(config.algorithm, spec, config.network)
    flat, size = stored_weights(checkpoint), FlatParameters(algorithm.build_network()).size
    if flat.size != size:
        raise UserError(
            f"the checkpoint holds {flat.size} weights, but this network has {size}; evaluate with the config that it "
            "was trained with"
        )
    return policy_of(algorithm, flat, num_envs, seed, config.precision_on("cpu"))


def policy_of(
    algorithm: Algorithm, flat: Array, num_envs: int, seed: int | None = None, precision: str = "float32"
) -> LocalPolicy:
    """The policy of an algorithm with these weights, for so many envs; it acts greedily, or samples from a seed."""
    weights = FlatWeights("weights", flat.size, HeapBlock(*FlatWeights.footprint(flat.size)))
    weights.publish(flat, 0)
    policy = LocalPolicy(algorithm, weights, num_envs, seed, precision)
    policy.refresh()
    return policy


class Recorder(VectorEnv):
    """One env whose episodes are written to `episode-0.mp4`, …: what it renders, or else what the agent sees."""

    num_envs = 1

    def __init__(
        self, env: str | Callable[..., Any], seed: int, options: EnvOptions, directory: Path, episodes: int
    ) -> None:
        self._imageio = _imageio()
        self._renders = backend_of(env, options) == "gymnasium"
        if self._renders and isinstance(env, str) and ":" not in env:  # a function decides for itself how it renders
            options = dataclasses.replace(options, kwargs={**options.kwargs, "render_mode": "rgb_array"})
        self._env = make_env(env, 1, seed, options)
        self.spec = self._env.spec
        self._directory, self._episodes = directory, episodes
        directory.mkdir(parents=True, exist_ok=True)
        self._written = 0
        self._writer: Any = None

    def reset(self) -> Timestep:
        timestep = self._env.reset()
        self._film(timestep)
        return timestep

    def step(self, action: Array) -> Timestep:
        """Step, film, and start the next film when an episode ended."""
        timestep = self._env.step(action)
        if timestep.first[0] or self._writer is not None:  # between films lies one frame of the episode that ended
            self._film(timestep)
        if timestep.episodes is not None and self._writer is not None:
            self._writer.close()
            self._writer = None
            self._written += 1
        return timestep

    def _film(self, timestep: Timestep) -> None:
        if self._written >= self._episodes:
            return
        if self._writer is None:
            path = self._directory / f"episode-{self._written}.mp4"
            self._writer = self._imageio.get_writer(path, fps=FRAMES_PER_SECOND, macro_block_size=2)
        self._writer.append_data(_enlarged(self._picture(timestep)))

    def _picture(self, timestep: Timestep) -> Array:
        shown = timestep.observation
        frame = shown["observation"] if isinstance(shown, dict) and "observation" in shown else shown
        picture: Any = self._env.render() if self._renders else frame[0]
        if not isinstance(picture, np.ndarray) or picture.ndim not in (2, 3):
            raise UserError("this env renders no pictures; give it a render_mode='rgb_array', or leave --video out")
        return picture

    def to_nest(self, batch: Nest) -> Nest:
        return self._env.to_nest(batch)

    def to_action(self, action: Array) -> Array:
        return self._env.to_action(action)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._env.close()


def _enlarged(picture: Array) -> Array:
    factor = -(-MIN_SIDE // min(picture.shape[:2]))
    return picture.repeat(factor, 0).repeat(factor, 1) if factor > 1 else picture


def _imageio() -> Any:
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401  (the codec behind imageio)
    except ImportError:
        text = f"--video needs imageio and ffmpeg, which are not installed; run {install_line('video')}"
        raise UserError(text) from None
    return imageio
