"""The `envpool` backend: envs stepped by a C++ thread pool.

EnvPool resets in the step after an episode ended (Gymnasium's NEXT_STEP): that step ignores the action and shows the
reset observation with reward 0. Envs are seeded when they are made and have no snapshots. For Atari it delivers the
same raw stream as ale-py.
"""

from __future__ import annotations

import warnings
from typing import Any

from pappus.config import AtariOptions, EnvOptions
from pappus.envs.atari import AtariEnv, open_kwargs
from pappus.envs.gym_vector import GymVectorEnv
from pappus.envs.vector import VectorEnv, first_env_seed
from pappus.errors import UserError, closest, install_line

_OPEN_KWARGS = ("difficulty", "mode", "thread_affinity_offset", "use_fire_reset", "use_inter_area_resize")


def make_envpool(env: str, num_envs: int, seed: int, options: EnvOptions) -> VectorEnv:
    """N envs of an EnvPool id; Atari games may also be named `ALE/Pong-v5`."""
    try:
        import envpool
    except ImportError:
        raise UserError(f"env {env!r} needs EnvPool, which is not installed; run {install_line('envpool')}") from None
    name, known = env.removeprefix("ALE/"), envpool.list_all_envs()
    if name not in known:
        raise UserError(f"env {env!r} is no EnvPool id{closest(name, known) or '; envpool.list_all_envs() lists all'}")
    is_atari = type(envpool.make_spec(name)).__name__ == "AtariEnvSpec"
    kwargs = _atari_kwargs(options.atari) | open_kwargs(options.kwargs, _OPEN_KWARGS) if is_atari else {}
    pool: Any = envpool.make_gymnasium(
        name, num_envs=num_envs, num_threads=options.threads, seed=first_env_seed(seed, num_envs),
        **(kwargs or options.kwargs),
    )
    with warnings.catch_warnings():  # Gymnasium warns of EnvPool's float64 bounds when the spaces are first read
        warnings.simplefilter("ignore")
        assert pool.single_observation_space is not None and pool.single_action_space is not None
    if is_atari:
        return AtariEnv(pool, None, options.atari, options.metrics)
    return GymVectorEnv(pool, None, options.metrics)


def _atari_kwargs(atari: AtariOptions) -> dict[str, Any]:
    return {
        "img_height": atari.screen_size, "img_width": atari.screen_size, "stack_num": 1,
        "frame_skip": atari.frame_skip, "max_episode_steps": atari.max_frames // atari.frame_skip,
        "noop_max": atari.noop_max + 1,  # EnvPool draws below its maximum
        "full_action_space": atari.full_action_space, "repeat_action_probability": atari.sticky_actions,
        "episodic_life": False, "reward_clip": False,
    }
