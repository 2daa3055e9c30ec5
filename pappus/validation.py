"""Sizes that cannot work, refused before anything is started."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from pappus.config import RunConfig
from pappus.errors import UserError, install_line
from pappus.telemetry.cost import check_cost
from pappus.transports.addresses import check_files, check_page

RULES: tuple[tuple[str, Callable[[float], bool], tuple[str, ...]], ...] = (
    ("must be at least 1", lambda value: value >= 1, (
        "steps", "envs_per_actor", "unroll_length", "queue_size", "learners", "evaluation.episodes",
        "checkpoint.keep_last", "network.core_size", "network.hidden_sizes", "env_options.atari.max_frames",
        "env_options.atari.screen_size", "topology.wire.max_envs",
        "hooks.queue_size",
    )),
    ("must be positive", lambda value: value > 0, (
        "seconds", "optimizer.learning_rate", "optimizer.clip_norm", "checkpoint.every_seconds",
        "evaluation.max_seconds", "supervision.stop_seconds", "supervision.grace_seconds", "cluster.patience",
        "env_options.atari.frame_skip", "env_options.atari.frame_stack", "algorithm.rho_clip", "evaluation.at_steps",
    )),
    ("must not be negative", lambda value: value >= 0, (
        "actors", "envs", "max_envs", "seed", "evaluation.every_steps", "evaluation.every_seconds",
        "supervision.hang_seconds", "supervision.stall_seconds", "env_options.step_timeout", "hooks.end_seconds",
        "supervision.max_deaths_in_a_row", "optimizer.epsilon", "env_options.threads", "env_options.atari.noop_max",
        "algorithm.c_clip", "algorithm.baseline_cost", "algorithm.epsilon.alpha", "algorithm.epsilon.steps",
        "algorithm.head_size",
    )),
    ("must not be negative; 0 takes one unroll of every env", lambda value: value >= 0, ("batch_size",)),
    ("must lie between 0 and 1", lambda value: 0 <= value <= 1, (
        "optimizer.decay", "optimizer.momentum", "algorithm.discount", "env_options.atari.sticky_actions",
        "algorithm.gae_lambda", "algorithm.trace_lambda",
    )),
    ("must be a finite number", math.isfinite, (
        "target_return", "optimizer.learning_rate", "optimizer.epsilon", "algorithm.baseline_cost",
        "algorithm.entropy_cost", "algorithm.reward_scale", "algorithm.epsilon.alpha", "algorithm.noise.sigma",
        "algorithm.rescaling", "algorithm.smoothing", "algorithm.alpha", "algorithm.beta", "algorithm.awac_lambda",
        "algorithm.policy_penalty", "algorithm.critic_penalty", "algorithm.temperature", "algorithm.entropy_per_action",
        "algorithm.v_min", "algorithm.v_max", "topology.inference_deadline_ms",
    )),
    ("must not be 0: nothing would be learned", lambda value: value != 0, ("algorithm.reward_scale",)),
    ("must not be negative; -1 chooses by measurement", lambda value: value >= 0 or value == -1, (
        "topology.inference_deadline_ms",
    )),
    ("must be at most a million", lambda value: value <= 1_000_000, (
        "actors", "envs", "envs_per_actor", "learners", "queue_size", "network.core_size", "network.hidden_sizes",
        "env_options.threads", "algorithm.head_size",
    )),
)
"""Rules, and the settings that must keep each (every number of a list), unless they are None or the config has none of
that name. Settings of one algorithm or topology that depend on each other are checked where they are."""

NO_ENV = "--env is missing; give a Gymnasium id such as --env CartPole-v1"
NO_GPU = "device={!r} needs a CUDA build of torch and a GPU, and none is here; use cpu"
NO_DATA = "--data is missing: {!r} learns from a data set; give its folder, such as --data DIR"


def validate(config: RunConfig) -> None:
    """Raise `UserError` for the first rule that a config breaks."""
    validate_settings(config)
    _validate_device(config)


def validate_settings(config: RunConfig) -> None:
    """The same without a look at this machine's GPUs, which needs torch."""
    _validate_data(config)
    if not config.env:
        raise UserError(NO_ENV)
    validate_numbers(config)
    if config.learners > 1 and not config.topology.many_learners:
        raise UserError(
            f"learners={config.learners}: {config.system_name!r} supports only one learner; use --learners 1, "
            "or impala, seed-vtrace or ppo"
        )
    config.topology.check(config)
    check_page(config.page_server)
    _validate_cluster(config)


def validate_numbers(config: RunConfig) -> None:
    """Raise `UserError` for the first number that breaks a rule of its own, whatever the others are."""
    for rule, holds, names in RULES:
        for name in names:
            value: object = config
            for part in name.split("."):
                value = getattr(value, part, None)
            numbers = value if isinstance(value, tuple) else (value,)
            _require(all(holds(one) for one in numbers if isinstance(one, int | float)), name, value, rule)
    check_cost(config.cost)
    for name, value in _numbers(config):
        _require(not math.isnan(value), name, value, "must be a number")


def _numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every setting that is a number, by its dotted name."""
    for item in dataclasses.fields(config):
        value, name = getattr(config, item.name), prefix + item.name
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        else:
            values = value if isinstance(value, tuple) else (value,)
            yield from ((name, one) for one in values if isinstance(one, float))


def _validate_data(config: RunConfig) -> None:
    name, uses = config.system_name, config.topology.uses_data
    if uses == "only" and not config.data:
        raise UserError(NO_DATA.format(name))
    if uses == "only" and config.record:
        raise UserError(f"record={config.record!r}: {name!r} plays no episodes to record; leave --record out")
    if uses == "no" and config.data:
        raise UserError(
            f"data={config.data!r}: {name!r} learns from what its actors see; use a system @offline, or one with "
            "replay such as apex-dqn, dqn or td3"
        )
    if config.data_share is not None and not config.mixes_data:
        why = "all its batches come from data" if uses == "only" else "there is no --data"
        raise UserError(f"data_share={config.data_share} has no effect in {name!r}: {why}; leave it out")
    share = config.share_of_data
    if not 0 < share < 1:
        raise UserError(f"data_share={share} must lie between 0 and 1; for data alone use @offline")
    if config.mixes_data and _only_data(config.env):
        raise UserError(
            f"data={config.data!r}: {name!r} plays an env beside the data, and there is none; give --env ID, or learn "
            "from data alone with a system @offline"
        )
    if config.mixes_data and not 0 < config.batch_from_data < config.batch_size:
        raise UserError(
            f"data_share={share} of batch_size={config.batch_size} takes no item from one table; use a larger batch, "
            "or another share"
        )


def _only_data(env: str) -> bool:
    """Whether a run has no env, only a spec that comes from its data."""
    from pappus.envs.external import DATA_PREFIX  # which imports NumPy, and most refusals need none

    return env == "none" or env.startswith(DATA_PREFIX)


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise UserError(f"{name}={value} {rule}")


def _validate_cluster(config: RunConfig) -> None:
    fewest, cluster = config.cluster.fewest_actors, config.cluster
    if config.runtime != "ray":
        if config.cluster.address:
            raise UserError(f"cluster.address={config.cluster.address!r} is for the ray runtime; give --runtime ray")
        if fewest:
            raise UserError(f"--actors {fewest}..{config.actors} is for the ray runtime; give a number")
        return
    for package in ("ray", "grpc"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--runtime ray needs {package}, which is not installed; run {install_line('ray')}")
    if any(given := (cluster.certificate, cluster.key, cluster.authority)):
        if not all(given):
            raise UserError("--cluster.certificate, .key and .authority belong together; give all three")
        check_files("", *given, "--cluster.")
    _require(0 <= fewest <= config.actors, "cluster.fewest_actors", fewest, f"must lie in 0 … actors={config.actors}")
    if fewest and config.topology.waits_for_all_actors:
        raise UserError(
            f"--actors {fewest}..{config.actors}: {config.system_name!r} waits for every actor, and its number cannot "
            "change; give one number"
        )


def validate_device_name(device: str) -> None:
    """Raise `UserError` for what is no device, whether or not it is there."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UserError(f"device={device!r} is unknown; use auto, cpu, cuda, or cuda:0 and so on")


@cache
def has_gpu_driver() -> bool:
    """Whether a GPU may be here: a quick look, without torch."""
    if sys.platform != "linux" or os.path.exists("/dev/kfd"):  # kfd: AMD's driver
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def validate_device(config: RunConfig) -> None:
    """Raise `UserError` for a GPU that is surely not here, or that a cluster does not let one choose."""
    kind, _, index = config.device.partition(":")
    validate_device_name(config.device)
    if config.runtime == "ray":  # a node of the cluster has it, or Ray refuses to place the learner
        if index:
            raise UserError(f"device={config.device!r}: on a cluster Ray chooses which GPU a learner gets; use cuda")
    elif kind == "cuda" and not has_gpu_driver():
        raise UserError(NO_GPU.format(config.device))


def _validate_device(config: RunConfig) -> None:
    validate_device(config)
    kind, _, index = config.device.partition(":")
    if config.runtime == "ray" or kind == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(NO_GPU.format(config.device))
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise UserError(f"device={config.device!r} does not exist: there are {count} GPUs, counted from 0; use cuda")
    if count < config.learners:
        raise UserError(
            f"learners={config.learners} need a GPU each, and there are {count}; use fewer learners, or --device cpu"
        )
