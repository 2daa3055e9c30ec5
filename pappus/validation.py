"""Sizes that cannot work, refused before anything is started."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping

from pappus.config import RunConfig
from pappus.errors import UserError

POSITIVE = ("steps", "envs_per_actor", "unroll_length", "queue_size")


def validate(config: RunConfig) -> None:
    """Raise `UserError` for the first rule that a config breaks."""
    if not config.env:
        raise UserError("--env is missing; give a Gymnasium id such as --env CartPole-v1")
    for name in POSITIVE:
        _require(getattr(config, name) >= 1, name, getattr(config, name), "must be at least 1")
    _require(config.actors >= 0, "actors", config.actors, "must not be negative")
    _require(config.seed >= 0, "seed", config.seed, "must not be negative")
    episodes, keep, rate = config.evaluation.episodes, config.checkpoint.keep_last, config.optimizer.learning_rate
    _require(episodes >= 1, "evaluation.episodes", episodes, "must be at least 1")
    _require(keep >= 1, "checkpoint.keep_last", keep, "must be at least 1")
    _require(rate > 0, "optimizer.learning_rate", rate, "must be positive")
    _validate_ranges(config)
    batch = config.batch_size
    _require(batch >= 0, "batch_size", batch, "must not be negative; 0 takes one unroll of every env")
    _validate_learners(config)
    config.topology.check(config)
    _validate_device(config)
    _validate_cluster(config)


def _validate_cluster(config: RunConfig) -> None:
    fewest = config.cluster.fewest_actors
    if config.runtime != "ray":
        if config.cluster.address:
            raise UserError(f"cluster.address={config.cluster.address!r} is for the ray runtime; give --runtime ray")
        if fewest:
            raise UserError(f"--actors {fewest}..{config.actors} is for the ray runtime; give a number")
        return
    for package in ("ray", "grpc"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--runtime ray needs {package}, which is not installed; run pip install 'pappus[ray]'")
    _require(0 <= fewest <= config.actors, "cluster.fewest_actors", fewest, f"must lie in 0 … actors={config.actors}")
    _require(config.cluster.patience > 0, "cluster.patience", config.cluster.patience, "must be positive")
    if fewest and config.topology.waits_for_all_actors:
        raise UserError(
            f"--actors {fewest}..{config.actors}: {config.system!r} waits for every actor, and its number cannot "
            "change; give one number"
        )


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise UserError(f"{name}={value} {rule}")


def _validate_learners(config: RunConfig) -> None:
    _require(config.learners >= 1, "learners", config.learners, "must be at least 1")
    if config.learners > 1 and not config.topology.many_learners:
        raise UserError(
            f"learners={config.learners}: in {config.system!r} no learners share their updates; use --learners 1, or "
            "impala, seed-vtrace or ppo"
        )


def _validate_ranges(config: RunConfig) -> None:
    optimizer, atari = config.optimizer, config.env_options.atari
    for name, value, low, high in (
        ("optimizer.decay", optimizer.decay, 0.0, 1.0),
        ("optimizer.momentum", optimizer.momentum, 0.0, 1.0),
        ("algorithm.discount", getattr(config.algorithm, "discount", 1.0), 0.0, 1.0),
        ("env_options.atari.sticky_actions", atari.sticky_actions, 0.0, 1.0),
    ):
        _require(low <= value <= high, name, value, f"must lie between {low:g} and {high:g}")
    for name, value in (
        ("optimizer.clip_norm", optimizer.clip_norm),
        ("checkpoint.every_seconds", config.checkpoint.every_seconds),
        ("evaluation.max_seconds", config.evaluation.max_seconds),
        ("supervision.stop_seconds", config.supervision.stop_seconds),
        ("env_options.atari.frame_skip", atari.frame_skip),
        ("env_options.atari.frame_stack", atari.frame_stack),
    ):
        _require(value > 0, name, value, "must be positive")
    target, seconds = config.target_return, config.seconds
    for name in ("every_steps", "every_seconds"):
        value = getattr(config.evaluation, name)
        _require(value >= 0, f"evaluation.{name}", value, "must not be negative")
    _require(min(config.evaluation.at_steps, default=1) > 0, "evaluation.at_steps", config.evaluation.at_steps,
             "must be positive")
    _require(seconds is None or seconds > 0, "seconds", seconds, "must be positive")
    _require(target is None or math.isfinite(target), "target_return", target, "must be a finite number")


def validate_memory(needed: Mapping[str, int]) -> None:
    """Refuse queues that do not fit, with the sum; bytes by name."""
    total = sum(needed.values())
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total > available:
        parts = " + ".join(f"{name} {nbytes / 2**30:.1f}" for name, nbytes in needed.items())
        raise UserError(
            f"the program needs {total / 2**30:.1f} GiB of shared memory ({parts}) and {available / 2**30:.1f} GiB are "
            "free; use fewer actors or envs_per_actor, or a shorter unroll_length"
        )


def _validate_device(config: RunConfig) -> None:
    import torch

    kind, _, index = config.device.partition(":")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", config.device):
        raise UserError(f"device={config.device!r} is unknown; use cpu, cuda, or cuda:0 and so on")
    if config.runtime == "ray":  # a node of the cluster has it, or Ray refuses to place the learner
        if index:
            raise UserError(f"device={config.device!r}: on a cluster Ray chooses which GPU a learner gets; use cuda")
        return
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={config.device!r} needs a CUDA build of torch and a GPU, and none is here; use cpu")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device={config.device!r} is not here: there are {torch.cuda.device_count()} GPUs, counted from 0; "
            "use cuda"
        )
    if kind == "cuda" and torch.cuda.device_count() < config.learners:
        raise UserError(
            f"learners={config.learners} need a GPU each, and there are {torch.cuda.device_count()}; use fewer "
            "learners, or --device cpu"
        )


