"""Films of greedy episodes: rendered by the env, or what the agent sees where the env renders nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pappus.config import EnvOptions
from pappus.envs.vector import VectorEnv, backend_of, make_env
from pappus.errors import UserError
from pappus.types import Array, Nest, Timestep

FRAMES_PER_SECOND = 30
MIN_SIDE = 336
"""Smaller pictures are enlarged by a whole factor."""


class Recorder(VectorEnv):
    """One env whose episodes are written to `episode-0.mp4`, `episode-1.mp4`, …"""

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
        raise UserError('--video needs imageio and ffmpeg; install them with pip install "pappus[video]"') from None
    return imageio
